package doctor

import (
	"context"
	"fmt"
	"time"
)

const (
	// skewMost is how far a server's clock may be from this machine's. A clock that NTP keeps is within a few
	// milliseconds of it.
	skewMost = time.Second
	// looks is how often a server is asked for the time; the fastest answer counts.
	looks = 5
	// slowShare is the part of the TTL that a round trip may take.
	slowShare = 10
)

// sample is a comparison of a server's clock with ours.
type sample struct {
	offset time.Duration // its clock minus ours
	took   time.Duration // the round trip
}

// sample asks a server for its time.
func (x *exam) sample(
	ctx context.Context, ask func(context.Context) (time.Time, error),
) (sample, error) {
	var best sample
	for i := range looks {
		one, cancel := context.WithTimeout(ctx, askMost)
		wall, began := x.now(), time.Now()
		theirs, err := ask(one)
		took := time.Since(began)
		cancel()
		if err != nil {
			return sample{}, err
		}
		if i == 0 || took < best.took {
			best = sample{theirs.Sub(wall.Add(took / 2)), took}
		}
	}
	return best, nil
}

// judge checks a clock and a round trip. resolution is the step of the server's answers.
func (x *exam) judge(where string, s sample, resolution time.Duration) {
	if s.offset.Abs() > skewMost+s.took/2+resolution {
		x.add("clock-differs", where, ahead(s.offset))
	}
	x.judgeTrip(where, s.took)
}

func (x *exam) judgeTrip(where string, took time.Duration) {
	if took > x.ttl/slowShare {
		x.add("round-trip-slow", where,
			fmt.Sprintf("%v, with a TTL of %v", took.Round(time.Millisecond), x.ttl))
	}
}

// ahead describes how far a clock is off.
func ahead(d time.Duration) string {
	word := "ahead"
	if d < 0 {
		word = "behind"
	}
	return fmt.Sprintf("%v %s", d.Abs().Round(100*time.Millisecond), word)
}
