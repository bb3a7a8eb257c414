package keylatch

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime counts also while the machine sleeps (clock_gettime(2)).
const clockBoottime = 7

// now is the time since the machine was started.
func now() time.Duration {
	var spec syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&spec)), 0)
	if errno != 0 {
		return time.Since(started)
	}
	return time.Duration(spec.Nano())
}

var started = time.Now()
