package backend

import "time"

// reserveAhead is how far a source that follows a clock may be moved ahead of it for tokens that are reserved.
const reserveAhead = 3 * time.Millisecond

// Reserve returns how many of the numbers after token a store whose source follows the clock may add to the
// grant of r, now by the store's clock: see [Grant.Reserved]. A source that is ahead of its clock would go back
// further when its data is lost.
func Reserve(r *Request, token Token, now time.Time) int {
	ahead := now.Add(reserveAhead).UnixMicro() - token
	return int(max(0, min(int64(r.Reserve), ahead)))
}
