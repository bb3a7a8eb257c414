//go:build !linux

package keylatch

import (
	"sync"
	"time"
)

var (
	started = time.Now()
	clock   sleepClock
	reading sync.Mutex
)

// now is the time since the program was started, also that in which the machine slept.
func now() time.Duration {
	moment := time.Now()
	reading.Lock()
	defer reading.Unlock()
	// Without their readings of the monotonic clock, the difference is that of the wall clock.
	return clock.at(moment.Sub(started), moment.Round(0).Sub(started.Round(0)))
}
