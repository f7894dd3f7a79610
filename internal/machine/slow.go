// Package machine tells what tests must know of the machine that they run on.
package machine

import (
	"sync"
	"time"
)

// Slow reports whether the first use of a page of memory takes this machine long, as it does some
// virtual machines: 14 µs where others take a quarter of one. There a connection to PostgreSQL, which
// is a process of the server's, costs 30 ms, and tests that open many at once wait longer for each
// other than the library waits for a server: fewer of them are to run at once, with smaller numbers.
var Slow = sync.OnceValue(func() bool {
	const parts, pages, size, quick = 16, 256, 4096, 8 * time.Microsecond
	memory := make([]byte, parts*pages*size)
	least := time.Hour // of a part in which no other program ran
	for part := range parts {
		began := time.Now()
		for at := range pages {
			memory[(part*pages+at)*size] = 1
		}
		least = min(least, time.Since(began)/pages)
	}
	return least > quick
})
