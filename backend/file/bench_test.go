package file

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/core"
)

// raw is what the medium takes for a change of a state file: the yardstick.
func BenchmarkFile(b *testing.B) {
	b.Run("op=raw-rename", func(b *testing.B) {
		dir := b.TempDir()
		text := make([]byte, 4000)
		for b.Loop() {
			if err := replace(filepath.Join(dir, "a"), filepath.Join(dir, "b"), text); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, held := range []int{0, 10000} {
		b.Run(fmt.Sprintf("op=lock-unlock/held=%d", held), func(b *testing.B) {
			d := newDriver(b, b.TempDir())
			for i := range held {
				take(b, d, try(fmt.Sprint("other", i), time.Hour))
			}
			for b.Loop() {
				release(b, d, take(b, d, try("x", time.Minute)))
			}
		})
	}
	b.Run("op=renew-10000", func(b *testing.B) {
		d := newDriver(b, b.TempDir())
		var hs []*core.Hold
		for i := range 10000 {
			hs = append(hs, take(b, d, try(fmt.Sprint("n", i), time.Hour)))
		}
		for b.Loop() {
			for _, err := range d.Renew(b.Context(), hs) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("op=hand-over", func(b *testing.B) {
		dir := b.TempDir()
		x, y := newDriver(b, dir), newDriver(b, dir)
		h := take(b, x, try("x", time.Hour))
		for b.Loop() {
			next := later(b.Context(), y, wait("x", time.Hour))
			for inspect(b, x, "x").Waiters == 0 {
			}
			release(b, x, h)
			h = (<-next).h
			x, y = y, x
		}
	})
}
