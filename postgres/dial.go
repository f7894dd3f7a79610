package postgres

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/backend"
)

// connectMost is how long one connection may take to be made, if the URL does not say, and theirsMost one that is made
// as the program makes its own, which may have no limit.
const connectMost, theirsMost = 2 * time.Second, 5 * time.Second

// beginMost is how many connections a pool begins at once. After an outage it would begin all that it lacks, and so
// would every other process: a server that takes 40 ms for each would be done with none within connect_timeout, and be
// asked for all of them again.
const beginMost = 8

// pace is what connections are begun by: few at once, and one after the other while none gets through. Those that a
// network swallows last as long as they may, and if they were begun together, none would be begun after an outage until
// they end together.
type pace struct {
	places chan struct{} // full while beginMost are begun
	every  time.Duration // how often one is begun while none gets through

	mu      sync.Mutex
	last    time.Time // when one was begun
	failing bool      // one was too late, and none has got through since
}

// newPace returns the pace of a pool with so many connections, each of which may take so long to be made; 0: any time.
func newPace(conns int, most time.Duration) *pace {
	every := connectMost // nobody waits for longer
	if most > 0 {
		every = min(every, max(most/time.Duration(conns), connectMost/time.Duration(min(conns, beginMost))))
	}
	return &pace{places: make(chan struct{}, beginMost), every: every}
}

// begin waits until a connection may be begun, until ctx ends, and returns what gives its place back: once it got
// through, or failed. When connectMost is over the place is given back all the same.
func (p *pace) begin(ctx context.Context) (over func(), err error) {
	select {
	case p.places <- struct{}{}:
	case <-ctx.Done():
		return nil, crowded(ctx)
	}
	for {
		p.mu.Lock()
		wait := p.every - time.Since(p.last)
		if !p.failing || wait <= 0 {
			p.last = time.Now()
			p.mu.Unlock()
			held, over := context.WithTimeout(context.Background(), connectMost)
			context.AfterFunc(held, func() {
				if held.Err() == context.DeadlineExceeded {
					p.set(true)
				}
				<-p.places
			})
			return over, nil
		}
		p.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			<-p.places
			return nil, crowded(ctx)
		}
	}
}

// crowded is the error of a caller that has no place when ctx ends: nothing was sent.
func crowded(ctx context.Context) error {
	return backend.Refusal(fmt.Errorf("other connections are being made, and none was done in time: %w", ctx.Err()))
}

// set notes that a connection was too late, or that one got through.
func (p *pace) set(failing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = failing
}

// dialer is the way to dial of pools that the driver opened: it begins few connections at once, and can end every one
// at once.
type dialer struct {
	pace   *pace
	cancel chan struct{} // full while beginMost are there to cancel something
	slow   slow
	mu     sync.Mutex
	conns  map[*dialed]struct{} // nil when it is closed
}

type dialed struct {
	net.Conn
	of     *dialer
	closed func()
}

func newDialer() *dialer {
	return &dialer{conns: map[*dialed]struct{}{}, cancel: make(chan struct{}, beginMost)}
}

// soon notices a dead network soon.
var soon = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
	Enable: true, Idle: 5 * time.Second,
	Interval: 2 * time.Second, Count: 4,
}}

// serve makes a pool of the driver's dial by d, have no connection to a replica, and lose those that
// carry nothing any more before they cost a lease.
func (d *dialer) serve(config *pgxpool.Config) {
	d.pace = newPace(int(config.MaxConns), config.ConnConfig.ConnectTimeout)
	before := config.BeforeConnect
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		if before != nil {
			if err := before(ctx, c); err != nil {
				return err
			}
		}
		return d.begin(ctx, c)
	}
	if config.ConnConfig.ValidateConnect == nil {
		config.ConnConfig.ValidateConnect = primaryOnly
	}
	told := config.ConnConfig.OnNotice
	config.ConnConfig.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" { // somebody has ended the wait for a standby: that is no answer
			_ = conn.Close(context.Background())
		}
		if told != nil {
			told(conn, n)
		}
	}
	if config.ShouldPing == nil {
		config.ShouldPing = func(ctx context.Context, p pgxpool.ShouldPingParams) bool {
			return wasIdle(ctx, p) && !d.slow.answers()
		}
	}
	if config.PingTimeout == 0 {
		config.PingTimeout = pingMost
	}
	next := config.BeforeClose
	config.BeforeClose = func(conn *pgx.Conn) {
		if next != nil {
			next(conn)
		}
		if conn.IsClosed() { // pgx goes on to wait for the server, for 15 s
			select {
			case <-conn.PgConn().CleanupDone():
			case <-time.After(cleanMost):
				_ = conn.PgConn().Conn().Close()
			}
		}
	}
}

// madeAt is where a connection carries when it was made.
const madeAt = "fencelock: made at"

// wasIdle is pgxpool's ShouldPing: a second of idleness. The pool counts that from when a connection was asked for: one
// that took longer to make would be pinged at once, and be thrown away if its caller has no time for that any more.
func wasIdle(_ context.Context, p pgxpool.ShouldPingParams) bool {
	made, _ := p.Conn.PgConn().CustomData()[madeAt].(time.Time)
	return min(p.IdleDuration, time.Since(made)) > time.Second
}

// primaryOnly is a pgconn.ValidateConnectFunc that refuses a replica. Its answers are of before, and
// its connection would stay in the pool when the address leads to the primary again. A server says
// by itself what it is; a pooler may repeat what was.
func primaryOnly(ctx context.Context, conn *pgconn.PgConn) error {
	if conn.ParameterStatus("in_hot_standby") == "off" {
		return nil
	}
	return pgconn.ValidateConnectTargetSessionAttrsPrimary(ctx, conn)
}

// begin waits for a place among the connections that are begun. It waits before pgx counts connect_timeout, so that a
// connection with a place has the whole of it. A caller gives up after connectMost: otherwise an outage would leave a
// line of callers that have gone. The place is given back when the connection has begun, when no host could be reached,
// or after connectMost, because the server may never answer.
func (d *dialer) begin(ctx context.Context, c *pgx.ConnConfig) error {
	ctx, done := context.WithTimeout(ctx, connectMost)
	defer done()
	begun, err := d.pace.begin(ctx)
	if err != nil {
		return err
	}
	next, lookup, after, unknown := c.DialFunc, c.LookupFunc, c.AfterConnect, 0
	var made atomic.Bool
	c.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		addrs, err := lookup(ctx, host)
		if err != nil {
			unknown++
		}
		if unknown > len(c.Fallbacks) { // so none is dialed
			begun()
		}
		return addrs, err
	}
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if made.Load() {
			return d.toCancel(ctx, next, network, addr)
		}
		context.AfterFunc(ctx, func() {
			if ctx.Err() == context.Canceled { // every host was tried; otherwise this one took too long
				begun()
			}
		})
		return d.dial(ctx, next, network, addr, func() {})
	}
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		made.Store(true)
		d.pace.set(false)
		begun()
		conn.CustomData()[madeAt] = time.Now()
		if after != nil {
			return after(ctx, conn)
		}
		return nil
	}
	return nil
}

// toCancel is a way to dial by which pgx asks the server to cancel what was under way on a connection that it gives up,
// if there is a place for that. It would wait for the server for 15 s, and the connection's place in the pool with it.
func (d *dialer) toCancel(ctx context.Context, next pgconn.DialFunc, network, addr string) (net.Conn, error) {
	ctx, end := context.WithTimeout(ctx, cleanMost)
	select {
	case d.cancel <- struct{}{}:
	case <-ctx.Done():
		end()
		return nil, ctx.Err()
	}
	context.AfterFunc(ctx, func() { <-d.cancel })
	conn, err := d.dial(ctx, next, network, addr, end)
	if err != nil {
		end()
		return nil, err
	}
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until) // not every way that a program dials has one
	return conn, nil
}

// dial dials by next, unless the dialer is closed meanwhile. closed is called when the connection is.
func (d *dialer) dial(
	ctx context.Context, next pgconn.DialFunc, network, addr string, closed func(),
) (net.Conn, error) {
	c, err := next(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	one := &dialed{c, d, closed}
	d.conns[one] = struct{}{}
	return one, nil
}

// Close closes the connection and forgets it.
func (c *dialed) Close() error {
	c.closed()
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// close ends every connection. The pool, when it is closed too, ends what dials or waits for one.
func (d *dialer) close() {
	d.mu.Lock()
	all := d.conns
	d.conns = nil
	d.mu.Unlock()
	for c := range all {
		_ = c.Conn.Close()
	}
}
