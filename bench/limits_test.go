package bench_test

// limits are the most that each operation may cost: cycle, an uncontended Lock and Unlock;
// handover, a Lock that waits for another client's Unlock, with the Lock before and the Unlock
// after; renew, many leases in one call; held, more leases. Allocations have a head-room of a tenth
// (more on several nodes), all else is exact, to the whole request for each operation. Goroutines
// are those that are left. To make the table anew: go test ./bench -run TestCounts -counts -v
var limits = map[string]map[string]counts{ // writes, commands, allocations, goroutines
	"memory": {
		"cycle":    {no, no, 17, 0},
		"handover": {no, no, no, no},
		"renew":    {no, no, 112, no},
		"held":     {no, no, no, 0},
	},
	"file": {
		"cycle":    {no, no, 86, 0},
		"handover": {no, no, no, no},
		"renew":    {no, no, 1219, no},
		"held":     {no, no, no, 0},
	},
	"redis": {
		"cycle":    {2, 10, 30, 0},
		"handover": {4, 40, no, 0},
		"renew":    {1, 201, 160, no},
		"held":     {no, no, no, 0},
	},
	"etcd": {
		"cycle":    {no, 2, 410, 0},
		"handover": {no, 10, no, 0},
		"renew":    {no, 2, 1732, no},
		"held":     {no, no, no, 0},
	},
	"zookeeper": {
		"cycle":    {2, 2, 174, 0},
		"handover": {15, 17, no, 0},
		"renew":    {1, 1, 720, no},
		"held":     {no, no, no, 0},
	},
	"postgres-row": {
		"cycle":    {2, no, 140, 0},
		"handover": {6, no, no, 0},
		"renew":    {8, no, 145, no},
		"held":     {no, no, no, no},
	},
	"postgres-lease": {
		"cycle":    {2, no, 104, 0},
		"handover": {5, no, no, 0},
		"renew":    {1, no, 2250, no},
		"held":     {no, no, no, 0},
	},
	"redlock": {
		"cycle":    {6, no, 285, 0},
		"handover": {no, no, no, no},
		"renew":    {3, no, 1100, no},
		"held":     {no, no, no, 0},
	},
}
