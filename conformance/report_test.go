package conformance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
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
