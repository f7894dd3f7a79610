//go:build !unix

package run

import "time"

// keeper does nothing here: the command outlives a run that is killed.
type keeper struct{}

// BecomeOther does nothing here.
func BecomeOther([]string) {}

func startKeeper() (*keeper, error) { return nil, nil }

func (k *keeper) watch(int) error { return nil }

func (k *keeper) until(time.Time) {}

func (k *keeper) dismiss() {}
