package file

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/backend"
)

// clock tells the time that all processes of this machine share: nanoseconds of
// CLOCK_BOOTTIME, valid for one boot of the kernel.
type clock struct{ boot string }

// anchor ties CLOCK_BOOTTIME to an Instant, once for the process, so that
// in a testing/synctest bubble, where only Instants move, all drivers agree.
var anchor = newAnchor()

type anchored struct {
	at   backend.Instant
	boot int64
}

func newAnchor() anchored {
	var best anchored
	width := time.Duration(1<<63 - 1)
	// The two clocks are read one after the other: of several readings the closest
	// is right to within its width.
	for range 20 {
		before := backend.Now()
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			break
		}
		if w := before.Elapsed(); w < width {
			width, best = w, anchored{before.Add(w / 2), ts.Nano()}
		}
	}
	return best
}

func newClock() (clock, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	raw, err := os.ReadFile(path)
	boot := strings.TrimSpace(string(raw))
	switch {
	case err != nil:
		return clock{}, backend.Unsupported("the kernel's boot id cannot be read, without which holds of before a reboot cannot be told: %w", err)
	case !plain(boot):
		return clock{}, backend.Unsupported("%s is %.60q: want the kernel's boot id", path, raw)
	case anchor.at.IsZero():
		return clock{}, backend.Unsupported("the kernel has no CLOCK_BOOTTIME")
	}
	if err := sameTime(); err != nil {
		return clock{}, err
	}
	return clock{boot}, nil
}

// sameTime returns an error if this process lives in a time namespace of its
// own, so that its clock is not that of the others.
func sameTime() error {
	raw, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return nil // a kernel without time namespaces
	}
	for line := range strings.Lines(string(raw)) {
		var id string
		var sec, nsec int64
		if n, _ := fmt.Sscan(line, &id, &sec, &nsec); n == 3 && id == "boottime" && (sec != 0 || nsec != 0) {
			return backend.Unsupported("this process is in a time namespace whose clock is %d s off: the locks need the clock of the machine", sec)
		}
	}
	return nil
}

// at returns the shared time of a moment.
func (c clock) at(i backend.Instant) int64 { return anchor.boot + int64(i.Sub(anchor.at)) }
