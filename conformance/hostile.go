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
	a, b, err := e.Two(ctx, fencelock.WithTTL(30*time.Second))
	if err != nil {
		return err
	}
	leases := map[string]*fencelock.Lease{}
	for _, name := range hostile() {
		le, err := try(ctx, a, name, fmt.Sprintf("name %.40q (with %d others held)", name, len(leases)))
		if err != nil {
			return err
		}
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
		if err := held(ctx, b, name, fmt.Sprintf("name %.40q", name)); err != nil {
			return err
		}
		info, err := b.Inspect(ctx, name)
		if err != nil || !info.Held || info.Name != name || info.Token != le.Token() {
			return fmt.Errorf("Inspect of %.40q: got %+v, %v; want it held with token %d", name, info, err, le.Token())
		}
		if !listed[name] {
			return fmt.Errorf("List does not name %.40q", name)
		}
		if err := unlock(ctx, le, fmt.Sprintf("name %.40q", name)); err != nil {
			return err
		}
		if info, err := b.Inspect(ctx, name); err != nil || info.Held {
			return fmt.Errorf("Inspect of %.40q after Unlock: got %+v, %v; want it free", name, info, err)
		}
	}
	return nil
}

func prefixesIsolate(ctx context.Context, e *Env) error {
	a, err := e.Open(ctx)
	if err != nil {
		return err
	}
	b, err := e.open(ctx, Client{Prefix: e.prefix + "other:"})
	if err != nil {
		return err
	}
	name := e.Name()
	one, err := try(ctx, a, name, "the first prefix")
	if err != nil {
		return err
	}
	two, err := try(ctx, b, name, "the second prefix")
	if err != nil {
		return err
	}
	for info, err := range b.List(ctx, "") {
		if err != nil || info.Name != name {
			return fmt.Errorf("List under the second prefix: got %q, %v; want %q only", info.Name, err, name)
		}
	}
	return errors.Join(unlock(ctx, one, "the first prefix"), unlock(ctx, two, "the second prefix"))
}
