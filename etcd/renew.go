package etcd

import (
	"context"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// perTxn is how many entries one transaction is about: servers allow 128 operations by default.
const perTxn = 120

// Renew implements backend.Driver: a keep-alive for each lease that the holds are
// under, many over one stream, and then a look whether their entries are there.
func (d *Driver) Renew(ctx context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	hds := make([]*hold, len(hs))
	var ls []*lease
	at := map[*lease]int{}
	for i, h := range hs {
		if hds[i], errs[i] = handle(h); errs[i] != nil {
			continue
		}
		l := hds[i].lease
		if _, ok := at[l]; !ok {
			at[l] = len(ls)
			ls = append(ls, l)
		}
	}
	kept := d.leases.keepAlive(ctx, ls)
	for i, hd := range hds {
		if errs[i] == nil {
			errs[i] = kept[at[hd.lease]]
		}
	}
	d.look(ctx, hds, errs, (*hold).isWritten, d.lookAt)
	d.look(ctx, hds, errs, func(h *hold) bool { return !h.isWritten() }, d.writeAt)
	return errs
}

// Check implements backend.Checker.
func (d *Driver) Check(ctx context.Context, hs []*backend.Hold) []error {
	errs := make([]error, len(hs))
	hds := make([]*hold, len(hs))
	for i, h := range hs {
		hds[i], errs[i] = handle(h)
	}
	d.look(ctx, hds, errs, func(*hold) bool { return true }, d.lookAt)
	return errs
}

// look calls at for the holds that have no error yet and are meant, as many at a
// time as fit into one transaction; at returns the error of each.
func (d *Driver) look(ctx context.Context, hds []*hold, errs []error, meant func(*hold) bool, at func(context.Context, []*hold) []error) {
	var open []int
	for i, err := range errs {
		if err == nil && meant(hds[i]) {
			open = append(open, i)
		}
	}
	for part := range slices.Chunk(open, perTxn) {
		some := make([]*hold, len(part))
		for n, i := range part {
			some[n] = hds[i]
		}
		for n, err := range at(ctx, some) {
			errs[part[n]] = err
		}
	}
}

// lookAt returns ErrLost for the holds whose entry is gone.
func (d *Driver) lookAt(ctx context.Context, hds []*hold) []error {
	errs := make([]error, len(hds))
	ifs, els := make([]clientv3.Cmp, len(hds)), make([]clientv3.Op, len(hds))
	for n, h := range hds {
		ifs[n] = clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.rev)
		els[n] = clientv3.OpGet(h.key, clientv3.WithKeysOnly())
	}
	p := d.history.now()
	resp, err := d.commit(ctx, ifs, nil, els)
	if err != nil {
		return all(errs, err)
	}
	d.history.see(p, resp.Header)
	if resp.Succeeded {
		return errs
	}
	for n, h := range hds {
		if kvs := resp.Responses[n].GetResponseRange().GetKvs(); len(kvs) == 0 || kvs[0].CreateRevision != h.rev {
			errs[n] = backend.ErrLost
		}
	}
	return errs
}

// writeAt is lookAt for holds that are renewed for the first time: it also writes
// the token into each entry, where Inspect finds it however long the lock is held.
func (d *Driver) writeAt(ctx context.Context, hds []*hold) []error {
	errs := make([]error, len(hds))
	ops := make([]clientv3.Op, len(hds))
	for n, h := range hds {
		ops[n] = clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.rev)},
			[]clientv3.Op{clientv3.OpPut(h.key, h.value.String(), clientv3.WithIgnoreLease())}, nil)
	}
	p := d.history.now()
	resp, err := d.commit(ctx, nil, ops, nil)
	if err != nil {
		return all(errs, err)
	}
	d.history.see(p, resp.Header)
	for n, h := range hds {
		if !resp.Responses[n].GetResponseTxn().GetSucceeded() {
			errs[n] = backend.ErrLost
			continue
		}
		h.setWritten()
	}
	return errs
}

func all(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}
