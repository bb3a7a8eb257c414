package keylatch

import (
	"context"
	"time"
)

// step is what a timer that stands still during a sleep may miss of it at most.
const step = time.Second

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
