//go:build !linux

package keylatch

import "time"

var started = time.Now()

// now is the time since the program was started. Whether it counts a sleep is the platform's affair.
func now() time.Duration { return time.Since(started) }
