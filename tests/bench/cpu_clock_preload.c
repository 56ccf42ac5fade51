// Preloaded into a peer of engine_bench --clock cpu: its monotonic clock then counts its own processor time, so that its
// figures and ours are disturbed equally little by other work on the machine. One thread only (see bench_clock.h).
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec* t) {
  const int steady = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_REALTIME;
  return (int)syscall(SYS_clock_gettime, steady ? CLOCK_PROCESS_CPUTIME_ID : clock, t);
}
