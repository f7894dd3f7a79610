package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	a := must(e.Open(ctx, fencelock.WithOwner("who: \"ä\"\n%41\\\x01")))
	b := must(e.Open(ctx))
	leases := map[string]*fencelock.Lease{}
	for _, name := range hostile() {
		le := must(try(
			ctx, a, name, fmt.Sprintf("name %.40q (with %d others held)", name, len(leases)),
		))
		leases[name] = le
	}
	for _, prefix := range []string{"", "a", "*", "?", "[a]", "%", "_", "\\", "é"} {
		check(listed(ctx, b, prefix, leases))
	}
	for name, le := range leases {
		check(held(ctx, b, name, fmt.Sprintf("name %.40q", name)))
		info, err := b.Inspect(ctx, name)
		if err != nil || !info.Held || info.Name != name || info.Token != le.Token() || info.Owner != le.Owner() {
			return fmt.Errorf("Inspect of %.40q: got %+v, %v; want it held by %q with token %d",
				name, info, err, le.Owner(), le.Token())
		}
		if info.Leaked || info.ExpiresIn < 0 || info.ExpiresIn > 2*ample { // a server may grant more than was asked for
			return fmt.Errorf("Inspect of %.40q: got %+v; want it to expire within its TTL, %v", name, info, ample)
		}
		check(unlock(ctx, le, fmt.Sprintf("name %.40q", name)))
		if info, err := b.Inspect(ctx, name); err != nil || info.Held {
			return fmt.Errorf("Inspect of %.40q after Unlock: got %+v, %v; want it free", name, info, err)
		}
	}
	return nil
}

// listed checks that List names each lease whose name begins with prefix once, and no others.
func listed(ctx context.Context, l *fencelock.Locker, prefix string, leases map[string]*fencelock.Lease) error {
	got := map[string]bool{}
	for info, err := range l.List(ctx, prefix) {
		check(want(err, nil, fmt.Sprintf("List of %q", prefix)))
		if leases[info.Name] == nil || !strings.HasPrefix(info.Name, prefix) {
			return fmt.Errorf("List of %q names %.40q", prefix, info.Name)
		}
		if got[info.Name] {
			return fmt.Errorf("List of %q names %.40q twice", prefix, info.Name)
		}
		got[info.Name] = true
	}
	for name := range leases {
		if !got[name] && strings.HasPrefix(name, prefix) {
			return fmt.Errorf("List of %q does not name %.40q", prefix, name)
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
