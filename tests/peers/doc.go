// Package peers asks other libraries, and this one, the same questions: what becomes of a lock when a
// reply is lost, a holder is cut off, a server hangs. Its test is the program: each question is asked
// of each library on a real server, what is seen is compared with what was recorded (results.json),
// and README.md shows it. It is a module of its own, so that their dependencies are nobody's.
//
//	go test -run 'TestPeers/unlock-again/etcd-concurrency' ./tests/peers   # one cell
package peers
