// A data race on purpose, in our own code and with our own lock beside it: under --config=tsan this must be reported, with
// the project's suppressions in force. Otherwise a clean run of the other tests would show nothing.
#include <cstdio>
#include <thread>

#include "common/mutex.h"

namespace baton {
namespace {

struct Counter {
  Mutex mu;
  int guarded = 0;    // under mu: must not be reported
  int unguarded = 0;  // the planted race
};

void Work(Counter* counter) {
  for (int i = 0; i < 10000; ++i) {
    {
      MutexLock lock(&counter->mu);
      ++counter->guarded;
    }
    counter->unguarded = counter->unguarded + 1;
  }
}

}  // namespace
}  // namespace baton

int main() {
  baton::Counter counter;
  std::thread a(baton::Work, &counter);
  std::thread b(baton::Work, &counter);
  a.join();
  b.join();
  printf("guarded %d\n", counter.guarded);
  return 0;
}
