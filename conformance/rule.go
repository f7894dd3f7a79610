package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A Rule is one thing that every backend must keep.
type Rule struct {
	// Name is the rule's number: a letter for its group and a number.
	Name string
	// What is the rule in a few words.
	What string
	// Why is one sentence: what goes wrong in a program where the rule is broken.
	Why string
	// Needs are what the harness must offer for the rule to be checked.
	Needs Needs
	// Trait, if set, says why a backend with these traits is exempt; "" if it is not.
	Trait func(backend.Traits) string
	// Alone: no other rule of the backend may run meanwhile, because the rule stops the server, loads the machine or
	// measures the process.
	Alone bool
	// Solo says which rules of other backends that Run checks in this process may not run meanwhile either.
	Solo  Solo
	timed bool // Solo holds with small numbers too: the rule judges nothing but time
	modes bool // it is checked in the modes that the backend has (inModes)
	// Check returns nil if the backend keeps the rule, or what it did instead.
	Check func(ctx context.Context, e *Env) error
}

// Needs are abilities of a Harness.
type Needs struct {
	Link    bool // a Link between client and store
	Store   bool // a look at the store behind the library's back
	Behind  bool // one that is not the driver's own
	Server  bool // the server can be stopped
	Member  bool // one member of several can be stopped
	Process bool // a second process
	Wire    bool // a Link of bytes
	Given   bool // a driver over the caller's client
	Fill    bool // the store can be filled
	Writes  bool // holders write in the lock's own transaction
	Busy    bool // the store works for holders
	Shared  bool // a client that the program uses too
	Own     bool // connections of the driver's own beside that
	Told    bool // waiters are told of a release
	Waiters bool // the store tells how many wait
}

// Rules returns the table of rules, in order. The groups H (histories under faults) and
// I (migration) are not part of this version.
func Rules() []Rule {
	rules := slices.Concat(basics, releases, leases, losses, tokens, queues, processes, resources,
		hostileNodes, hostileKeyspaces, hostileDeaths, hostileClients, hostileStores, hostileLimits,
		hostileFloors, hostilePushes, hostilePassing, hostileResends, hostileTransactions, hostileObservers,
		hostileStalls, shared)
	for i, r := range rules {
		rules[i].Check = stopping(r.Check)
		if r.modes {
			rules[i].Check = inModes(rules[i].Check)
		}
	}
	return rules
}

// exempt says why the rule does not apply to the backend or cannot be checked
// with the harness; "" if it does and can.
func (r Rule) exempt(h *Harness, t backend.Traits) string {
	if r.Trait != nil {
		if why := r.Trait(t); why != "" {
			return why
		}
	}
	_, own := h.Store.(driverStore)
	for _, n := range []struct {
		needs, has bool
		what       string
	}{
		{r.Needs.Link, h.Link != nil, "Link"},
		{r.Needs.Store, h.Store != nil, "Store"},
		{r.Needs.Behind, h.Store != nil && !own, "Store that looks without the driver"},
		{r.Needs.Server, h.Server != nil, "Server"},
		{r.Needs.Member, h.Member != nil, "Member"},
		{r.Needs.Process, h.URL != nil, "URL"},
		{r.Needs.Wire, h.Link != nil && !h.Calls, "Link of bytes"},
		{r.Needs.Given, h.Given != nil, "Given"},
		{r.Needs.Fill, h.Fill != nil, "Fill"},
		{r.Needs.Writes, h.Writes != nil, "Writes"},
		{r.Needs.Busy, h.Busy != nil, "Busy"},
		{r.Needs.Shared, h.Shared != nil, "Shared"},
		{r.Needs.Own, h.Own, "driver with connections of its own (Own)"},
		{r.Needs.Told, !h.Polls, "waiters that are told of a release (Polls)"},
		{r.Needs.Waiters, !h.uncounted, "store that tells how many wait (Info.Waiters)"},
	} {
		if n.needs && !n.has {
			return "the harness has no " + n.what
		}
	}
	return ""
}

// Result is the outcome of one rule.
type Result struct {
	Rule     string        `json:"rule"`
	What     string        `json:"what"`
	Excluded string        `json:"excluded,omitempty"` // why it was not checked
	Known    string        `json:"known,omitempty"`    // it failed as its mark says: why, and how
	Err      error         `json:"-"`
	Error    string        `json:"error,omitempty"`
	Notes    []string      `json:"notes,omitempty"` // what it measured
	Took     time.Duration `json:"took"`
}

const (
	// limit bounds one rule: then its ctx ends.
	limit = 2 * time.Minute
	// overtime is how long Report waits for a rule after that. The rule closes all that it has opened in that time.
	overtime = time.Minute
)

// check checks one rule.
func (r Rule) check(ctx context.Context, h *Harness, t backend.Traits) (res Result) {
	res = Result{Rule: r.Name, What: r.What}
	if res.Excluded = r.exempt(h, t); res.Excluded != "" {
		return res
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	e := newEnv(h, t, r.Name)
	began := time.Now()
	err := finished(ctx, running(func() error { return errors.Join(r.Check(ctx, e), e.close()) }))
	res.Took, res.Notes = time.Since(began), e.noted()
	why, marked := h.Known[r.Name]
	switch {
	case marked && err != nil:
		res.Known = fmt.Sprintf("%s: %v", why, err)
		return res
	case marked:
		err = fmt.Errorf("it is marked as known to fail (%s) and passes: remove the mark", why)
	}
	if err != nil {
		res.Err = fmt.Errorf("%s (%s): %w", r.Name, r.What, err)
		res.Error = res.Err.Error()
	}
	return res
}

// finished returns what comes on done. A driver that heeds no ctx may keep its rule from ending: then the rule is left
// behind, so that a report names it.
func finished(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(overtime):
		return fmt.Errorf("it has not ended %v after its ctx has: a call of the driver does not return", overtime)
	}
}

// matches reports whether the rule is among only: names or groups; all if it is empty.
func (r Rule) matches(only []string) bool {
	return len(only) == 0 || slices.ContainsFunc(only, func(o string) bool {
		return strings.EqualFold(o, r.Name) || strings.EqualFold(o, r.Name[:1])
	})
}

// Solo says what a rule must have for itself.
type Solo int

const (
	// Never: other backends do not disturb it.
	Never Solo = iota
	// ForMeasure: only rules of this kind run beside it. With small numbers it is as Never, so that a run is short.
	ForMeasure
	// Always: the process, whose goroutines it counts.
	Always
)

// solo is what Solo means in a run, short if that is with small numbers.
func (r *Rule) solo(short bool) Solo {
	if short && r.Solo == ForMeasure && !r.timed {
		return Never
	}
	return r.Solo
}
