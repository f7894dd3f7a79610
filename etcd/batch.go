package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// flights is how many transactions of a driver are under way before the next ones wait to share one: those few are
	// served at the same time, a crowd is served sooner in one.
	flights = 2
	// batchMost is how many share a transaction, and comparesMost how many compares they have: servers allow 128 operations by
	// default, counted over all levels.
	batchMost    = 100
	comparesMost = 120
	// slowly is how many batches go part by part after one in which a lock was not free, or a hold was gone.
	slowly = 16
	// batchWait is for how long none may have ended until those that wait go by themselves: a member may hang.
	batchWait = 250 * time.Millisecond
)

// part is a transaction about one queue that may share a request with those about others.
type part struct {
	queue     string
	gates     *gateSet // they must be so; nil: whatever they are
	ifs       []clientv3.Cmp
	then, els []clientv3.Op
	anchor    bool   // the base is to be compared with the clock first
	base      bool   // the last answer is to be the base
	freed     string // the nonce that goes to the key ~last with it
	unsure    func() // called when a send of it may have been applied, or may be yet, and nobody knows

	done chan struct{} // closed when what follows is set
	resp *clientv3.TxnResponse
	err  error
}

// batches sends transactions: at once if few are under way, and otherwise all that have come meanwhile in one.
type batches struct {
	d *Driver

	mu    sync.Mutex
	under int       // way
	slow  int       // how many go part by part yet
	queue []*part   // in the order of their coming
	ended time.Time // the last of those that were under way
}

// commit sends a transaction of which being sent twice does no harm.
func (b *batches) commit(ctx context.Context, p *part) (*clientv3.TxnResponse, error) {
	b.mu.Lock()
	if b.under < flights {
		b.under++
		b.mu.Unlock()
		defer b.land()
		return b.single(ctx, p)
	}
	p.done = make(chan struct{})
	b.queue = append(b.queue, p)
	b.mu.Unlock()
	timer := time.NewTimer(batchWait)
	defer timer.Stop()
	for {
		select {
		case <-p.done:
			if p.err != nil && !unanswered(p.err) {
				return b.single(ctx, p) // it may be another's part that the server refused
			}
			return p.resp, p.err
		case <-ctx.Done():
			if !b.withdraw(p) {
				p.unsure()
			}
			return nil, ctx.Err()
		case <-timer.C:
			if !b.moving() && b.withdraw(p) {
				return b.single(ctx, p)
			}
			timer.Reset(batchWait)
		}
	}
}

// moving reports whether a transaction has ended lately.
func (b *batches) moving() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.ended) < batchWait
}

// withdraw takes a part that was not sent yet out of the queue. It reports whether it was there.
func (b *batches) withdraw(p *part) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.queue, p)
	if i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	}
	return i >= 0
}

// land makes room for what waits.
func (b *batches) land() {
	if batch := b.next(); batch != nil {
		b.d.flying.Go(func() {
			for ; batch != nil; batch = b.next() {
				b.send(batch)
			}
		})
	}
}

// next takes what is to be sent together: one part for each queue, for all compares of a transaction are made before
// anything of it is done. If there is nothing, one flight less is under way.
func (b *batches) next() (batch []*part) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = time.Now()
	if len(b.queue) == 0 {
		b.under--
		return nil
	}
	taken := make(map[string]bool, min(len(b.queue), batchMost))
	left := b.queue[:0]
	compares := 0
	for _, p := range b.queue {
		if len(batch) == batchMost || compares+len(p.ifs) > comparesMost || taken[p.queue] {
			left = append(left, p)
			continue
		}
		taken[p.queue] = true
		compares += len(p.ifs)
		batch = append(batch, p)
	}
	clear(b.queue[len(left):])
	b.queue = left
	return batch
}

// single sends a part by itself.
func (b *batches) single(ctx context.Context, p *part) (*clientv3.TxnResponse, error) {
	ifs, then := b.flat(p)
	return b.try(ctx, ifs, then, p.els, p)
}

// flat returns a transaction that does what all parts are to do, if it can do all of it. Its last answer is the base if a part wants that.
func (b *batches) flat(parts ...*part) (ifs []clientv3.Cmp, then []clientv3.Op) {
	if slices.ContainsFunc(parts, func(p *part) bool { return p.anchor }) {
		then = append(then, b.d.anchor())
	}
	var gates *gateSet
	base := false
	for _, p := range parts {
		ifs, then = append(ifs, p.ifs...), append(then, p.then...)
		if p.gates != nil && (gates == nil || gates.rev != p.gates.rev) {
			gates = p.gates
			ifs = append(ifs, gates.same(b.d.keys))
		}
		base = base || p.base
	}
	then = append(then, b.freed(parts)...)
	if base {
		then = append(then, clientv3.OpGet(b.d.keys.base()))
	}
	return ifs, then
}

// freed is the operation that leaves the nonces of releases at the key ~last; none if there is no release.
func (b *batches) freed(parts []*part) []clientv3.Op {
	var nonces []string
	for _, p := range parts {
		if p.freed != "" {
			nonces = append(nonces, p.freed)
		}
	}
	if nonces == nil {
		return nil
	}
	return []clientv3.Op{clientv3.OpPut(b.d.keys.last(), strings.Join(nonces, " "))}
}

// send sends parts in one transaction. Mostly each can be done, which is least work for the server if it is asked for all or nothing;
// otherwise it is asked again, part by part.
func (b *batches) send(batch []*part) {
	defer func() {
		for _, p := range batch {
			close(p.done)
		}
	}()
	if !b.isSlow() {
		ifs, then := b.flat(batch...)
		resp, err := b.try(b.d.ctx, ifs, then, nil, batch...)
		for _, p := range batch {
			p.resp, p.err = resp, err
		}
		if err != nil || resp.Succeeded {
			return
		}
		b.setSlow()
	}
	var ops []clientv3.Op
	if slices.ContainsFunc(batch, func(p *part) bool { return p.anchor }) {
		ops = append(ops, b.d.anchor())
	}
	first := len(ops)
	for _, p := range batch {
		own := *p
		own.anchor, own.freed = false, ""
		ifs, then := b.flat(&own)
		ops = append(ops, clientv3.OpTxn(ifs, then, p.els))
	}
	ops = append(ops, b.freed(batch)...)
	resp, err := b.try(b.d.ctx, nil, ops, nil, batch...)
	for i, p := range batch {
		if p.err = err; err == nil {
			p.resp = (*clientv3.TxnResponse)(resp.Responses[first+i].GetResponseTxn())
			p.resp.Header = resp.Header
		}
	}
}

func (b *batches) isSlow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.slow == 0 {
		return false
	}
	b.slow--
	return true
}

func (b *batches) setSlow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slow = slowly
}

// try sends a transaction, and once more if no answer came.
func (b *batches) try(ctx context.Context, ifs []clientv3.Cmp, then, els []clientv3.Op, parts ...*part) (*clientv3.TxnResponse, error) {
	var resp *clientv3.TxnResponse
	err := b.d.do(ctx, func(ctx context.Context) (err error) {
		resp, err = b.d.client.Txn(ctx).If(ifs...).Then(then...).Else(els...).Commit()
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) { // with that one nothing was done
			for _, p := range parts {
				p.unsure()
			}
		}
		return err
	})
	return resp, err
}

// holdsNonce reports whether the value of the key ~last has a nonce.
func holdsNonce(last []byte, nonce string) bool {
	return slices.Contains(strings.Split(string(last), " "), nonce)
}
