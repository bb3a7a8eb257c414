package keylatch

import (
	"context"
	"time"
)

// Clock is the time that a client goes by. Package keylatchtest has one that a test moves.
type Clock interface {
	// Now is the time since some moment. It also counts while the machine sleeps.
	Now() time.Duration
	// SleepUntil waits until then or until ctx is done, and returns the error of ctx. It may return early.
	SleepUntil(ctx context.Context, then time.Duration) error
	// Go runs what a client does beside its caller.
	Go(func())
}

type machineClock struct{}

func (machineClock) Now() time.Duration { return now() }
func (machineClock) Go(run func())      { go run() }

func (machineClock) SleepUntil(ctx context.Context, then time.Duration) error {
	for left := then - now(); left > 0; left = then - now() {
		// A timer may stand still while the machine sleeps.
		timer := time.NewTimer(shorter(left, time.Second))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// sleepClock counts also while the machine sleeps, where no clock of the platform does. The monotonic clock of Go stands
// still in a sleep on macOS, so what the wall clock is ahead of it by more than a second is added: that makes a lease
// shorter, and never longer.
type sleepClock struct{ slept time.Duration }

// at takes the times since the program was started on both clocks.
func (c *sleepClock) at(monotonic, wall time.Duration) time.Duration {
	if ahead := wall - monotonic; ahead > c.slept+time.Second {
		c.slept = ahead
	}
	return monotonic + c.slept
}

func longer(one, other time.Duration) time.Duration {
	if one > other {
		return one
	}
	return other
}

func shorter(one, other time.Duration) time.Duration {
	if one < other {
		return one
	}
	return other
}
