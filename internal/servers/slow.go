package servers

import (
	"sync"
	"time"
)

// Slow reports whether the first use of a page of memory takes this machine long, as it does some
// virtual machines: 14 µs where others take a quarter of one. There a connection to PostgreSQL, which
// is a process of the server's, costs 30 ms, and tests that open many at once wait longer for each
// other than the library waits for a server: fewer of them are to run at once.
var Slow = sync.OnceValue(func() bool {
	const pages, size, quick = 4096, 4096, 8 * time.Microsecond
	memory := make([]byte, pages*size)
	began := time.Now()
	for at := 0; at < len(memory); at += size {
		memory[at] = 1
	}
	return time.Since(began)/pages > quick
})
