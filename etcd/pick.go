package etcd

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// policy is the name of the balancer of clients that a URL made: members in turn, but for those
	// that are silent. The client's own (round_robin, clientv3 3.7) sends a third of all requests to
	// one of three members that hangs, until its connection is given up after 13 s; and in step with
	// other requests it can send every one of a caller there.
	policy = "fencelock_etcd"
	// silentFor is for how long a member that left a request unanswered gets no other; silentLeast is
	// how long that request must have waited.
	silentFor   = 5 * time.Second
	silentLeast = 300 * time.Millisecond
)

func init() {
	balancer.Register(builder{base.NewBalancerBuilder(policy, pickers{}, base.Config{})})
}

// builder is grpc's, whose balancers know addresses only.
type builder struct{ balancer.Builder }

// Build implements balancer.Builder.
func (b builder) Build(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	return flat{b.Builder.Build(cc, o)}
}

type flat struct{ balancer.Balancer }

// UpdateClientConnState makes addresses of the endpoints that the client names (clientv3 3.7).
func (f flat) UpdateClientConnState(s balancer.ClientConnState) error {
	s.ResolverState.Addresses = nil
	for _, e := range s.ResolverState.Endpoints {
		s.ResolverState.Addresses = append(s.ResolverState.Addresses, e.Addresses...)
	}
	return f.Balancer.UpdateClientConnState(s)
}

// pickers makes the picker of the members that are connected.
type pickers struct{}

// Build implements base.PickerBuilder.
func (pickers) Build(info base.PickerBuildInfo) balancer.Picker {
	if len(info.ReadySCs) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	p := &picker{}
	for conn := range info.ReadySCs {
		p.members = append(p.members, &member{conn: conn})
	}
	p.next.Store(rand.Uint32())
	return p
}

// picker chooses a member for each request.
type picker struct {
	members []*member
	next    atomic.Uint32
}

// member is a connection, and what is known of the member behind it.
type member struct {
	conn   balancer.SubConn
	silent atomic.Int64 // when it was, in ns since start; 0: it answers
}

var start = time.Now()

// Pick implements balancer.Picker. A silent member gets one request in silentFor, or its turn where
// all are silent.
func (p *picker) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	n, began := int(p.next.Add(1)%uint32(len(p.members))), time.Since(start)
	m := p.members[n]
	for i := range p.members {
		o := p.members[(n+i)%len(p.members)]
		since := o.silent.Load()
		if since == 0 ||
			int64(began)-since > int64(silentFor) && o.silent.CompareAndSwap(since, int64(began)) {
			m = o
			break
		}
	}
	done := func(info balancer.DoneInfo) { m.done(began, info) }
	return balancer.PickResult{SubConn: m.conn, Done: done}, nil
}

// done takes in how a request ended.
func (m *member) done(began time.Duration, info balancer.DoneInfo) {
	now := time.Since(start)
	// Two codes are the client's own: it waited long enough, or a copy of the request was answered by another member.
	switch code := status.Code(info.Err); {
	case code != codes.DeadlineExceeded && code != codes.Canceled:
		m.silent.Store(0)
	case !info.BytesReceived && now-began >= silentLeast:
		m.silent.Store(int64(now))
	}
}
