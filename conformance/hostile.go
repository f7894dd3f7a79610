package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
)

// hostile are names that some store's naming cannot take as they are.
func hostile() []string {
	return []string{
		"a", "a/b", "a/b/", "a//b", "/a", "/", "//", "A", "a ", " a", " ", ".", "..", "../a", "a/../b", "a/./b",
		"{}", "{a}", "{a}b", "}{", "a{", "%", "%2F", "a%2Fb", "a:b", ":", "*", "?", "[a]", "\\",
		"\"", "'", "$", "\n", "\t", "\x01", "\x7f",
		"é", "e\u0301", "名前", "\U0001F512", "\u202e", "fl", "-", "--", "_c_", "lock-0000000001",
		strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("x", 511), strings.Repeat("é", 256),
	}
}

func hostileNames(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx, fencelock.WithTTL(30*time.Second)))
	leases := map[string]*fencelock.Lease{}
	for _, name := range hostile() {
		le := must(try(
			ctx, a, name, fmt.Sprintf("name %.40q (with %d others held)", name, len(leases)),
		))
		leases[name] = le
	}
	listed := map[string]bool{}
	for info, err := range b.List(ctx, "") {
		if err != nil {
			return fmt.Errorf("List: %w", err)
		}
		listed[info.Name] = true
	}
	for name, le := range leases {
		check(held(ctx, b, name, fmt.Sprintf("name %.40q", name)))
		info, err := b.Inspect(ctx, name)
		if err != nil || !info.Held || info.Name != name || info.Token != le.Token() {
			return fmt.Errorf("Inspect of %.40q: got %+v, %v; want it held with token %d", name, info, err, le.Token())
		}
		if !listed[name] {
			return fmt.Errorf("List does not name %.40q", name)
		}
		check(unlock(ctx, le, fmt.Sprintf("name %.40q", name)))
		if info, err := b.Inspect(ctx, name); err != nil || info.Held {
			return fmt.Errorf("Inspect of %.40q after Unlock: got %+v, %v; want it free", name, info, err)
		}
	}
	return nil
}

func prefixesIsolate(ctx context.Context, e *Env) error {
	a := must(e.Open(ctx))
	b := must(e.open(ctx, Client{Prefix: e.prefix + "other:"}))
	name := e.Name()
	one := must(try(ctx, a, name, "the first prefix"))
	two := must(try(ctx, b, name, "the second prefix"))
	for info, err := range b.List(ctx, "") {
		if err != nil || info.Name != name {
			return fmt.Errorf("List under the second prefix: got %q, %v; want %q only", info.Name, err, name)
		}
	}
	return errors.Join(unlock(ctx, one, "the first prefix"), unlock(ctx, two, "the second prefix"))
}
