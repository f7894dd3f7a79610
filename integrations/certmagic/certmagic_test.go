package certmagic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencelock/fencelock"
	fencecertmagic "github.com/fencelock/fencelock/integrations/certmagic"
	"github.com/fencelock/fencelock/locktest"
)

const (
	domain = "example.com"
	lock   = "certs/issue_cert_" + domain
)

var (
	_ certmagic.Storage          = (*fencecertmagic.Storage)(nil)
	_ certmagic.TryLocker        = (*fencecertmagic.Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*fencecertmagic.Storage)(nil)
)

// An authority issues certificates, before which it calls before.
type authority struct {
	before func(ctx context.Context) error
	issued atomic.Int32
}

func (*authority) IssuerKey() string { return "authority" }

func (a *authority) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if err := a.before(ctx); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(int64(a.issued.Add(1))), DNSNames: csr.DNSNames,
		NotBefore: time.Now(), NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, csr.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
	}, nil
}

// A server obtains certificates under the locks of store, for a folder that it shares with others.
func server(
	t *testing.T, store *locktest.Store, folder string, a *authority,
) (*certmagic.Config, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.ErrorLevel)
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil },
		Logger:           zap.New(core),
	})
	t.Cleanup(cache.Stop)
	config = certmagic.New(cache, certmagic.Config{
		Storage: fencecertmagic.New(&certmagic.FileStorage{Path: folder}, store.Locker(t), "certs/"),
		Issuers: []certmagic.Issuer{a},
		Logger:  zap.New(core),
	})
	return config, logs
}

func TestOneObtains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, folder, a := locktest.New(t), t.TempDir(), &authority{}
		one, _ := server(t, store, folder, a)
		two, _ := server(t, store, folder, a)
		second := make(chan error)
		inside := 0
		a.before = func(ctx context.Context) error {
			if inside++; inside > 1 {
				t.Error("two servers are at it")
				return nil
			}
			go func() { second <- two.ObtainCertSync(ctx, domain) }()
			synctest.Wait() // it waits for the lock
			return nil
		}
		if err := one.ObtainCertSync(t.Context(), domain); err != nil {
			t.Error(err)
		}
		if err := <-second; err != nil {
			t.Error(err)
		}
		if got := a.issued.Load(); got != 1 {
			t.Errorf("issued %d certificates, want 1", got)
		}
		store.AssertFree(t, lock)
	})
}

// Attempts are a minute apart and more. The lock is lost in the first, and free again before the third.
func TestLossBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, a, attempts := locktest.New(t), &authority{}, 0
		one, logs := server(t, store, t.TempDir(), a)
		began := time.Now()
		a.before = func(context.Context) error {
			if attempts++; attempts > 1 {
				store.AssertHeld(t, lock)
				return nil
			}
			store.Lose(lock)
			time.AfterFunc(90*time.Second, store.Hold(lock))
			return errors.New("the authority is out")
		}
		if err := one.ObtainCertAsync(t.Context(), domain); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); attempts != 2 || took < 90*time.Second {
			t.Errorf("%d attempts with the lock, the last after %v", attempts, took)
		}
		if got := logs.FilterMessage("unable to unlock").Len(); got != 0 {
			t.Errorf("%d errors of Unlock, want none", got)
		}
		store.AssertFree(t, lock)
	})
}

// A loss in the only attempt is logged when certmagic unlocks.
func TestLossIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		one, logs := server(t, store, t.TempDir(), &authority{before: func(context.Context) error {
			store.Lose(lock)
			return nil
		}})
		if err := one.ObtainCertSync(t.Context(), domain); err != nil {
			t.Error(err)
		}
		for _, entry := range logs.FilterMessage("unable to unlock").All() {
			for _, field := range entry.Context {
				if err, ok := field.Interface.(error); ok && errors.Is(err, fencelock.ErrLost) {
					return
				}
			}
		}
		t.Errorf("the loss is not in the log: %v", logs.All())
	})
}

// Two of one process, which certmagic tells apart by nothing.
func TestLossInOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		s := fencecertmagic.New(&certmagic.FileStorage{}, store.Locker(t), "certs/")
		want := func(got, want error) {
			t.Helper()
			if !errors.Is(got, want) || want == nil && got != nil {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		want(s.Lock(t.Context(), "a"), nil)
		store.Lose("certs/a")
		if ok, err := s.TryLock(t.Context(), "a"); ok || err != nil {
			t.Errorf("TryLock: got %v, %v", ok, err)
		}
		locked := make(chan error, 1)
		go func() { locked <- s.Lock(t.Context(), "a") }()
		why := errors.New("the cause")
		short, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		err := s.Lock(short, "a")
		want(err, context.DeadlineExceeded)
		want(err, why)
		want(err, fencelock.ErrLocked)
		store.AssertFree(t, "certs/a")
		want(s.Unlock(t.Context(), "a"), fencelock.ErrLost)
		want(<-locked, nil)
		store.AssertHeld(t, "certs/a")
		want(s.RenewLockLease(t.Context(), "a", time.Hour), nil)
		want(s.Unlock(t.Context(), "a"), nil)
		store.AssertFree(t, "certs/a")
		want(s.Unlock(t.Context(), "a"), fencelock.ErrReleased)
		want(s.RenewLockLease(t.Context(), "a", time.Hour), fencelock.ErrReleased)

		if ok, err := s.TryLock(t.Context(), "a"); !ok || err != nil {
			t.Errorf("TryLock: got %v, %v", ok, err)
		}
		store.Outage(time.Hour)
		want(s.Lock(t.Context(), "b"), fencelock.ErrUnavailable)
		_, err = s.TryLock(t.Context(), "b")
		want(err, fencelock.ErrUnavailable)
		want(s.Unlock(t.Context(), "a"), fencelock.ErrUnavailable)
		store.Outage(0)
		want(s.Lock(t.Context(), "a"), nil) // after the TTL
		canceled, cancel := context.WithCancel(t.Context())
		defer store.Hold("certs/b")()
		time.AfterFunc(time.Second, cancel)
		want(s.Lock(canceled, "b"), context.Canceled)
		if ok, err := s.TryLock(t.Context(), "b"); ok || err != nil {
			t.Errorf("TryLock: got %v, %v", ok, err)
		}
		want(s.Unlock(t.Context(), "a"), nil)
	})
}

// An outage is ridden out once by all who wait for a name in this process, and by a Lock in full: a TryLock of the same
// process, which is told at once, does not end it.
func TestOutageIsWaitedOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, told := locktest.New(t), make(chan struct{})
		tried := watch(func(e fencelock.Event) {
			if e.Kind == fencelock.NotAcquired {
				<-told
			}
		})
		s := fencecertmagic.New(&certmagic.FileStorage{}, store.Locker(t, fencelock.WithObserver(tried)), "certs/")
		store.Outage(time.Hour)
		go func() { _, _ = s.TryLock(t.Context(), "b") }()
		synctest.Wait() // it holds the name in this process until it is told
		began, ends := time.Now(), make(chan error, 3)
		for range cap(ends) {
			go func() { ends <- s.Lock(t.Context(), "b") }()
		}
		synctest.Wait()
		close(told)
		for range cap(ends) {
			err, took := <-ends, time.Since(began)
			if !errors.Is(err, fencelock.ErrUnavailable) || took < 5*time.Second || took > 6*time.Second {
				t.Errorf("got %v after %v, want ErrUnavailable after 5 s", err, took)
			}
		}
	})
}

// Who waits behind a Lock that its own ctx ends in an outage goes on with a ctx of its own.
func TestAnothersCtxEndsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		s := fencecertmagic.New(&certmagic.FileStorage{}, store.Locker(t), "certs/")
		store.Outage(3 * time.Second)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() { _ = s.Lock(short, "b") }()
		synctest.Wait()
		if err := s.Lock(t.Context(), "b"); err != nil {
			t.Errorf("got %v, want the lock after the outage", err)
		}
	})
}

// An Observer that ends the goroutine of a Lock leaves the name as it was.
func TestLockThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		var end func()
		once := watch(func(e fencelock.Event) {
			if e.Kind != fencelock.Acquired {
				return
			}
			if fn := end; fn != nil {
				end = nil
				fn()
			}
		})
		s := fencecertmagic.New(&certmagic.FileStorage{}, store.Locker(t, fencelock.WithObserver(once)), "certs/")
		for _, fn := range []func(){runtime.Goexit, func() { panic("observed") }} {
			end = fn
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				_ = s.Lock(ctx, "b")
			}()
			<-ended
			if err := errors.Join(s.Lock(ctx, "b"), s.Unlock(ctx, "b")); err != nil {
				t.Errorf("the next Lock: %v", err)
			}
			cancel()
		}
	})
}

// watch is an Observer.
type watch func(fencelock.Event)

func (w watch) Observe(_ context.Context, e fencelock.Event) { w(e) }
