package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// zooSession is a session of the doctor's own.
type zooSession struct {
	*zk.Conn
	granted time.Duration // the timeout that the server grants
	opened  time.Time     // by our clock, just before the request
	took    time.Duration // until the grant
}

// greeting keeps the beginning of a connection's first frame, which the client library does not tell. The
// frame is the server's answer to the request for a session, with the timeout in its bytes 8 to 11.
type greeting struct {
	net.Conn
	head *[]byte
}

func (g greeting) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if left := 12 - len(*g.head); left > 0 {
		*g.head = append(*g.head, p[:min(n, left)]...)
	}
	return n, err
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// dialZoo opens a session. The servers grant the length that is nearest to what is asked for.
func dialZoo(ctx context.Context, x *exam, length time.Duration) (*zooSession, error) {
	var head []byte // of the latest connection, as opened is; the client library has one at a time
	var opened time.Time
	s := &zooSession{}
	up := make(chan struct{})
	var once sync.Once
	dial := func(network, address string, _ time.Duration) (net.Conn, error) {
		one, cancel := context.WithTimeout(ctx, askMost)
		defer cancel()
		conn, err := x.zooDial(one, network, address)
		if err != nil {
			return nil, err
		}
		head, opened = nil, x.now()
		return greeting{conn, &head}, nil
	}
	began := time.Now()
	conn, events, err := zk.Connect(backend.Hosts(x.u, "2181"), length,
		zk.WithDialer(dial), zk.WithHostProvider(&tlsurl.ByName{}), zk.WithLogger(quiet{}), zk.WithLogInfo(false),
		zk.WithEventCallback(func(e zk.Event) {
			if e.State == zk.StateHasSession {
				once.Do(func() {
					s.granted = time.Duration(binary.BigEndian.Uint32(head[8:])) * time.Millisecond
					s.opened = opened
					close(up)
				})
			}
		}))
	if err != nil {
		return nil, err
	}
	s.Conn = conn
	go func() {
		for range events { // they came to the callback; Close ends it
		}
	}()
	select {
	case <-up:
	case <-time.After(2 * askMost):
		err = errors.New("no server of the ensemble grants a session")
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil && x.u.User != nil {
		password, _ := x.u.User.Password()
		_, err = zooAsk(ctx, func() (struct{}, error) {
			return struct{}{}, conn.AddAuth("digest", []byte(x.u.User.Username()+":"+password))
		})
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	s.took = time.Since(began)
	return s, nil
}

// zooAsk bounds a call of the client library, which knows no ctx. The goroutine ends when the
// connection is closed.
func zooAsk[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := call()
		done <- answer{v, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	select {
	case a := <-done:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// zooRights checks that the user has all rights on the nodes of the prefix, and may make missing nodes.
func (x *exam) zooRights(ctx context.Context, s *zooSession) error {
	root := strings.TrimSuffix(x.u.Path, "/") + "/" + zooName(x.prefix)
	for _, node := range []string{"", "/locks", "/tokens", "/tokens/00", "/done", "/clients"} {
		need, err := int32(zk.PermAll&^zk.PermAdmin), error(nil)
		at := root + node
		for {
			var acl []zk.ACL
			acl, err = zooAsk(ctx, func() ([]zk.ACL, error) {
				acl, _, err := s.GetACL(at)
				return acl, err
			})
			if errors.Is(err, zk.ErrNoNode) && at != "/" {
				at, need = path.Dir(at), zk.PermCreate|zk.PermRead
				continue
			}
			if err == nil && !x.allowed(acl, need) {
				err = zk.ErrNoAuth
			}
			break
		}
		switch {
		case errors.Is(err, zk.ErrNoAuth):
			x.add("zookeeper-rights", "", at)
			return nil // one is enough
		case err != nil:
			return err
		}
	}
	return nil
}

// allowed reports whether an ACL gives the user all of these rights.
func (x *exam) allowed(acl []zk.ACL, need int32) bool {
	name, id := "", ""
	if x.u.User != nil {
		name = x.u.User.Username()
		password, _ := x.u.User.Password()
		id = zk.DigestACL(zk.PermAll, name, password)[0].ID
	}
	var has int32
	for _, a := range acl {
		switch {
		case a.Scheme == "world":
		case a.Scheme == "digest" && name != "" && (a.ID == id || a.ID == name+":x"):
			// ":x" stands for a digest that only an administrator sees.
		case a.Scheme == "ip": // our address, as the servers see it, is not known
		default:
			continue
		}
		has |= a.Perms
	}
	return has&need == need
}

// zooName is a text as one element of a path, as the driver writes it.
func zooName(text string) string {
	if text == "" {
		return "%"
	}
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("-_:=+@,~", c) >= 0 || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
