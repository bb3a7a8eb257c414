/* The wall clock of a process, so many microseconds ahead as the first number says of the file that CLOCK_AHEAD names.
   The second number says how many microseconds each sync takes longer. Preloaded under the process; the clocks that
   measure spans do not change. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_AHEAD");
    int file = path ? open(path, O_RDONLY) : -1;
    void *found = mmap(NULL, 2 * sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) {
        ahead = found;
    }
    if (file >= 0) {
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t nanos = now->tv_nsec + *ahead % 1000000 * 1000;
        now->tv_sec += *ahead / 1000000 + nanos / 1000000000;
        now->tv_nsec = nanos % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) {
        *now = precise.tv_sec;
    }
    return precise.tv_sec;
}

static void delay_sync(void) {
    int64_t micros = ahead ? ahead[1] : 0;
    struct timespec pause = {micros / 1000000, micros % 1000000 * 1000};
    if (micros > 0) {
        nanosleep(&pause, NULL);
    }
}

int fsync(int file) {
    delay_sync();
    return syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    delay_sync();
    return syscall(SYS_fdatasync, file);
}
