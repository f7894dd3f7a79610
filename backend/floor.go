package backend

import "time"

// FloorAhead is how far a floor, or the mark of a guard, may be ahead of the numbers that the store grants now: one
// hour in microseconds, the unit of tokens where the store has a clock.
const FloorAhead = Token(time.Hour / time.Microsecond)

// CheckFloor returns nil for a floor that a store may obey whose next token is near now, and
// otherwise an error that matches [ErrInvalid]. Tokens never go back, so a store that obeyed one
// floor near the end of the numbers would have none left for its other names.
func CheckFloor(floor, now Token) error {
	if floor <= now+FloorAhead {
		return nil
	}
	return Invalid("floor %d: the tokens of this store are near %d now, and a floor may be at "+
		"most %d ahead of them (an hour in µs)",
		floor, now, FloorAhead)
}
