package keylatch

import (
	"testing"
	"time"
)

func TestSleepCountsAndClockNeverGoesBack(t *testing.T) {
	var clock sleepClock
	for _, step := range []struct{ monotonic, wall, want time.Duration }{
		{10 * time.Second, 10*time.Second + 900*time.Millisecond, 10 * time.Second},
		{11 * time.Second, 71 * time.Second, 71 * time.Second},
		// The wall clock is set back.
		{12 * time.Second, -time.Hour, 72 * time.Second},
		{13 * time.Second, 133 * time.Second, 133 * time.Second},
	} {
		if got := clock.at(step.monotonic, step.wall); got != step.want {
			t.Errorf("at %v and %v: %v, not %v", step.monotonic, step.wall, got, step.want)
		}
	}
}
