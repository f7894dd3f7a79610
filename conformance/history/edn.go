package history

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// EDN returns, for each lock that nobody shared, the operations of a lock workload as a Jepsen history in EDN: a map a
// line, as knossos reads them, of which one reads
//
//	{:index 1, :time 5000000, :process 0, :type :ok, :f :acquire, :value {:client "w2.1#17", :fence 17, :uid "3"}}
//
// :value is as in Hazelcast's fenced lock workloads. :client is the lease, as a process may have
// several one after the other; :fence is 0 where none is known. The times are nanoseconds since the first of the lock.
// How leases that end by themselves become releases that are :info is said at the second judge, tenure in mutex.go;
// knossos's own mutex does not look at :client, so it may take such a release for another's, and then hides breaks.
// An acquire that nobody learnt of is :info too. As in Jepsen, a process of the history has one operation under way,
// and none after an :info: it is a number without another meaning.
func EDN(events []Event, o Options) map[string][]byte {
	all := map[string][]byte{}
	ops := map[string][]jepsenOp{}
	events = exclusiveOnly(events)
	for name, ts := range tenures(events, o) {
		for _, t := range ts {
			ops[name] = append(ops[name],
				jepsenOp{f: "acquire", client: t.endpoint(), fence: int64(t.fence), window: t.acquire, end: "ok"})
			release := jepsenOp{f: "release", client: t.endpoint(), window: t.release, end: "ok"}
			if t.failed != (window{}) {
				failed := release
				failed.window, failed.end = t.failed, "fail"
				ops[name] = append(ops[name], failed)
			}
			if t.release.to == forever {
				release.to, release.end = t.release.from, "info"
			}
			if t.release.from != forever {
				ops[name] = append(ops[name], release)
			}
		}
	}
	for _, e := range events {
		if e.Kind == Asked {
			ops[e.Name] = append(ops[e.Name],
				jepsenOp{f: "acquire", client: e.Process, window: window{e.Called, e.At}, end: "info"})
		}
	}
	for name := range ops {
		all[name] = edn(ops[name])
	}
	return all
}

// A jepsenOp is an operation with its completion.
type jepsenOp struct {
	f, client string
	fence     int64
	window
	end string // ok, fail, info
}

// edn writes the operations of one lock.
func edn(ops []jepsenOp) []byte {
	slices.SortStableFunc(ops, func(a, b jepsenOp) int { return cmp.Compare(a.from, b.from) })
	type entry struct {
		at   Moment
		op   int
		done bool
	}
	var entries []entry
	for i, op := range ops {
		entries = append(entries, entry{op.from, i, false}, entry{op.to, i, true})
	}
	slices.SortStableFunc(entries, func(a, b entry) int { // moments that are alike overlap
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(strconv.FormatBool(a.done), strconv.FormatBool(b.done)))
	})
	var text bytes.Buffer
	var free []int
	process := map[int]int{}
	last := 0
	for i, e := range entries {
		op := ops[e.op]
		kind, fence := op.end, op.fence
		if !e.done {
			kind, fence = "invoke", 0
			if len(free) == 0 {
				free, last = append(free, last), last+1
			}
			process[e.op], free = free[0], free[1:]
		} else if op.end != "info" {
			free = append(free, process[e.op])
			slices.Sort(free)
		}
		client, err := json.Marshal(op.client) // which EDN reads as it does JSON
		if err != nil {
			panic(err) // a string has a JSON form
		}
		fmt.Fprintf(&text, "{:index %d, :time %d, :process %d, :type :%s, :f :%s, "+
			":value {:client %s, :fence %d, :uid \"%d\"}", i, e.at-entries[0].at, process[e.op], kind, op.f,
			client, fence, e.op)
		switch kind {
		case "fail":
			text.WriteString(", :error :not-lock-owner")
		case "info":
			text.WriteString(", :error :unknown")
		}
		text.WriteString("}\n")
	}
	return text.Bytes()
}
