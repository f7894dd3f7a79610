//go:build unix

package history

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/backend"
)

// A Counter is a number in a file that processes share, guarded by the greatest token that was
// shown for it: the resource behind the locks of a history. It outlives every process that uses it.
type Counter struct{ Path string }

// Read returns the number, unless the token is stale: then a [backend.StaleError].
func (c Counter) Read(t backend.Token) (int64, error) { return c.access(t, nil) }

// Write changes the number, unless the token is stale: then a [backend.StaleError].
func (c Counter) Write(t backend.Token, value int64) error {
	_, err := c.access(t, &value)
	return err
}

// Peek returns the number without a token, for when nobody uses it any more.
func (c Counter) Peek() (int64, error) { return c.access(1<<62, nil) }

func (c Counter) access(t backend.Token, value *int64) (int64, error) {
	f, err := os.OpenFile(c.Path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close() // which gives up the flock
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return 0, err
	}
	var now struct {
		Max   backend.Token
		Value int64
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(string(raw), &now.Max, &now.Value); err != nil && len(raw) > 0 {
		return 0, err
	}
	if t < now.Max {
		return 0, &backend.StaleError{Max: now.Max}
	}
	now.Max = t
	if value != nil {
		now.Value = *value
	}
	// One write of a fixed length: a process that is killed leaves the old text or the new one.
	if _, err := f.WriteAt(fmt.Appendf(nil, "%20d %20d\n", now.Max, now.Value), 0); err != nil {
		return 0, err
	}
	return now.Value, nil
}
