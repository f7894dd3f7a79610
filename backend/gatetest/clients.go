package gatetest

import (
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

func clients(e *env) {
	c := backend.Client{
		ID: core.Nonce(), Move: e.move, Phase: backend.PhaseFrom, Host: "höst", PID: 42, MaxTTL: 30 * time.Second,
		Since:    time.Now().Add(-time.Minute).Truncate(time.Millisecond).UTC(),
		Reported: time.Now().Truncate(time.Millisecond).UTC(),
	}
	brief := c
	brief.ID, brief.Phase = core.Nonce(), backend.PhaseBoth
	report := func(c backend.Client, keep time.Duration) {
		e.Helper()
		if err := e.d.Report(e.Context(), c, keep); err != nil {
			e.Fatalf("Report: %v", err)
		}
	}
	reader := e.client()
	list := func() map[string]backend.Client {
		e.Helper()
		cs, err := reader.Clients(e.Context(), e.move)
		if err != nil {
			e.Fatalf("Clients: %v", err)
		}
		m := map[string]backend.Client{}
		for _, c := range cs {
			m[c.ID] = c
		}
		return m
	}
	if got := list(); len(got) != 0 {
		e.Errorf("before any report: %v", got)
	}
	report(c, time.Minute)
	const briefly = 2 * time.Second
	reported := time.Now()
	report(brief, briefly)
	both := list()
	forgotten := time.Since(reported) >= briefly // perhaps: the machine is busy
	if both[c.ID] != c || !forgotten && (both[brief.ID] != brief || len(both) != 2) {
		e.Errorf("got %+v, want %+v and %+v", both, c, brief)
	}
	c.Phase = backend.PhaseBoth
	report(c, time.Minute)
	e.until("the brief report is forgotten", func() bool { return len(list()) == 1 })
	if got := list(); got[c.ID] != c {
		e.Errorf("got %+v, want %+v", got, c)
	}
	if others, err := e.d.Clients(e.Context(), e.move+"x"); err != nil || len(others) != 0 {
		e.Errorf("of another migration: got %v, %v", others, err)
	}
	for range 2 {
		if err := e.d.Withdraw(e.Context(), c); err != nil {
			e.Fatalf("Withdraw: %v", err)
		}
	}
	if got := list(); len(got) != 0 {
		e.Errorf("after Withdraw: %v", got)
	}
}
