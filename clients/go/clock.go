package keylatch

import (
	"context"
	"time"
)

// step is what a timer that stands still during a sleep may miss of it at most.
const step = time.Second

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

// sleepUntil waits until then on the clock of now, or until the context is done.
func sleepUntil(ctx context.Context, then time.Duration) error {
	for left := then - now(); left > 0; left = then - now() {
		if left > step {
			left = step
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return ctx.Err()
}
