package zookeeper_test

import (
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/zookeeper"
)

// Nobody is there: a Lock that has waited for it says why.
func TestLockWithoutServer(t *testing.T) {
	t.Parallel()
	l := through(t, []string{"127.0.0.1:1"}, zookeeper.Options{})
	_, err := l.Mutex("x").Lock(t.Context())
	want(t, "Lock", err, fencelock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want it to say why", err)
	}
}
