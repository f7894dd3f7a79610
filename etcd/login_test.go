package etcd_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
)

// The login of a stream ends, by its time, while a waiter keeps the stream: others wait over another.
func TestLoginOfAStreamEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	public, err := x509.MarshalPKIXPublicKey(&k.PublicKey)
	must(t, err)
	for file, block := range map[string]*pem.Block{
		"private.pem": {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)},
		"public.pem":  {Type: "PUBLIC KEY", Bytes: public},
	} {
		must(t, os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600))
	}
	app := users(t, servers.Etcd(t, servers.EtcdOptions{Args: []string{fmt.Sprintf(
		"--auth-token=jwt,pub-key=%[1]s/public.pem,priv-key=%[1]s/private.pem,sign-method=RS256,ttl=3s", dir)}}))
	other, l := open(t, app), open(t, app)
	leader := lock(t, other.Mutex("leader"))
	wait := start(t, l.Mutex("leader"))
	waited := func(name string) {
		await(t, 5*time.Second, "a waiter for "+name, func() bool {
			info, err := l.Inspect(t.Context(), name)
			return err == nil && info.Waiters == 1
		})
	}
	waited("leader")
	<-time.After(4 * time.Second) // more than the ttl of the login
	held := lock(t, other.Mutex("b"))
	next := start(t, l.Mutex("b"))
	waited("b")
	unlock(t, held)
	unlock(t, next.Granted(t, 4*time.Second))
	unlock(t, leader)
	unlock(t, wait.Granted(t, 10*time.Second))
}

// stopped is a stream of a member that is stopped, until it goes on.
type stopped struct {
	grpc.ClientStream
	still *atomic.Bool
}

func (s stopped) RecvMsg(m any) error {
	for s.still.Load() {
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return s.ClientStream.RecvMsg(m)
}

// Who finds out what became of a lease that was broken leaves no stream of a watch behind, also if none answers.
func TestUnlockOfABrokenLeaseLeavesNoStream(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	r := on(t, e, "left:")
	var open, opened atomic.Int64
	var still atomic.Bool
	c := clientOf(t, clientv3.Config{
		Endpoints: e.Addrs(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(func(
			ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, next grpc.Streamer,
			opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			st, err := next(ctx, d, conn, method, opts...)
			if err == nil && method == "/etcdserverpb.Watch/Watch" {
				open.Add(1)
				opened.Add(1)
				context.AfterFunc(st.Context(), func() { open.Add(-1) })
				st = stopped{st, &still}
			}
			return st, err
		})},
	})
	l, _ := r.over(t, c)
	op := testkit.Open(t, r.url())
	still.Store(true)
	for i := range 5 {
		le := lock(t, l.Mutex(fmt.Sprint("x", i)))
		must(t, op.Break(t.Context(), le.Name()))
		_ = le.Unlock(within(t, time.Second))
	}
	still.Store(false)
	_ = l.Close()
	await(t, 5*time.Second, "every stream has ended", func() bool { return open.Load() == 0 })
	if opened.Load() == 0 {
		t.Error("no stream was opened")
	}
}

// checks counts the logins that a server has begun to check, each of which takes 300 ms.
type checks struct {
	clientv3.Auth
	n atomic.Int64
}

func (c *checks) Authenticate(ctx context.Context, _, _ string) (*clientv3.AuthenticateResponse, error) {
	c.n.Add(1)
	select {
	case <-time.After(300 * time.Millisecond):
		return &clientv3.AuthenticateResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A login goes on when the stream that asked for it is given up, and serves the next one.
func TestLogins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var server checks
		auth := etcd.ShareLogins(&server)
		for i, want := range []error{context.DeadlineExceeded, context.DeadlineExceeded, nil} {
			ctx, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
			if _, err := auth.Authenticate(ctx, "app", "secret"); !errors.Is(err, want) {
				t.Errorf("stream %d: got %v, want %v", i, err, want)
			}
			cancel()
		}
		if n := server.n.Load(); n != 1 {
			t.Errorf("got %d checks, want 1", n)
		}
	})
}
