// Package peers compares Fencelock with other libraries and with what one writes by hand, side by
// side in one run. It is a module of its own, so that their dependencies are not the library's.
//
// What is compared and how far we must be ahead is one table, [Goals]. Its command measures it:
//
//	go run ./cmd/targets -rounds 5 -duration 2s -only R
//
// In every round each library has its turn, and a goal's figure is the median of the rounds'
// ratios: what else the machine does falls on all. Each library has the best settings that its
// documents name ([Libraries] says which and where they stand). Where processes matter, there are
// processes: the program runs itself again as a [Child].
package peers
