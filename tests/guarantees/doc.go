// Package guarantees is the table of what each backend promises under each fault ([Table]), and
// what was found when each of its cells was run ([Found]). The tests of this package are the
// program that runs them: worker processes lock real servers and add to what the locks protect, a
// fault is made, and the history of what they saw is checked by package history. What is promised
// is asserted; what is not is shown to happen. [Parts] are the document's tables made from both,
// and a test compares.
//
//	make faults ROUNDS=20 ONLY='etcd/server-killed redlock'   # more rounds of some cells, recorded
//	make soak HOURS=2                                         # every fault on every backend, overlapping, for hours
package guarantees
