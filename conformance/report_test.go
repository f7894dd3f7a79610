package conformance

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// A run whose ctx has ended says so, whichever rules it has checked: nobody is to take it for one that kept them all.
func TestReportOfACtxThatEnds(t *testing.T) {
	for _, only := range []string{"A1", "A", "J"} { // J has rules that are checked alone
		synctest.Test(t, func(t *testing.T) {
			r := newRig(&mistake{})
			defer close(r.store.stop)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var last Result
			for res := range Report(ctx, r.harness(), only) {
				last = res
				cancel()
			}
			if last.Rule != NoHarness || !errors.Is(last.Err, context.Canceled) {
				t.Errorf("rules %s: the last result is %+v, want the end of ctx", only, last)
			}
			if err := Check(ctx, r.harness()); !errors.Is(err, context.Canceled) {
				t.Errorf("Check with a ctx that has ended: %v", err)
			}
		})
	}
}

// A driver that heeds no ctx keeps its rule from ending, and no other: the report names it.
func TestReportOfARuleThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(&mistake{alter: func(r *rig, d core.Caller, _ Client) core.Caller {
			return &changed{Caller: d, acquire: func(ctx context.Context, req *backend.Request) (backend.Grant, error) {
				if req.Wait {
					<-r.store.stop
				}
				return d.Acquire(ctx, req)
			}}
		}})
		defer close(r.store.stop)
		got := outcome{}
		for res := range Report(t.Context(), r.harness(), "A1", "A6") {
			got[res.Rule] = res
		}
		if err := got["A1"].Err; err != nil {
			t.Error(err)
		}
		if err := got["A6"].Err; err == nil || !strings.Contains(err.Error(), "does not return") {
			t.Errorf("got %v, want an error that says that a call does not return", err)
		}
	})
}

// A driver that does not come back with a first client is one result, once its time is over.
func TestReportOfAFirstClientThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		defer close(never)
		h := Harness{Driver: func(context.Context, Client) (backend.Driver, error) {
			<-never
			return nil, errDown
		}}
		n := 0
		for res := range Report(t.Context(), h) {
			if n++; n > 1 || res.Rule != NoHarness || !strings.Contains(res.Error, "does not return") {
				t.Errorf("got %+v, want one result, which says that a call does not return", res)
			}
		}
	})
}

// A fault proxy cannot stand before a server whose certificate is for another address.
func TestNoLinkBeforeTLS(t *testing.T) {
	for at, want := range map[string]bool{
		"redis://redis.example.com": true, "redis://redis.example.com?tls=false": true,
		"redis://redis.example.com?tls=true": false, "rediss://redis.example.com": false,
	} {
		h, err := FromURL(at)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.Link != nil; got != want {
			t.Errorf("%s: a link: %v, want %v", at, got, want)
		}
	}
}
