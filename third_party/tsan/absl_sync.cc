// Tells the thread sanitizer what absl::Mutex and absl::Status do. Debian's abseil is built without the sanitizer and locks by futexes
// and atomics, which it cannot see, so whatever gRPC hands from one thread to another under a lock would look like a
// race.
//
// Debian's libraries call these functions through the dynamic linker, which finds the ones below first. Each calls the
// real one and states the order that it makes, and no other: nothing is hidden, so real races are still reported.
// Linked into everything under --config=tsan, and only there; see docs/adr/0003.
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "third_party/tsan/real_function.h"

namespace {

using baton::tsan::RealFunction;

// Libraries lock in their initialisers, before the sanitizer is there; nothing is concurrent then.
bool sanitizer_runs = false;
__attribute__((constructor)) BATON_UNINSTRUMENTED void NoteThatSanitizerRuns() {
  __atomic_store_n(&sanitizer_runs, true, __ATOMIC_RELAXED);
}

BATON_UNINSTRUMENTED void Acquire(void* lock) {
  if (__atomic_load_n(&sanitizer_runs, __ATOMIC_RELAXED)) __tsan_acquire(lock);
}
BATON_UNINSTRUMENTED void Release(void* lock) {
  if (__atomic_load_n(&sanitizer_runs, __ATOMIC_RELAXED)) __tsan_release(lock);
}

// "debian3" is the namespace that Debian 12 builds abseil in.
#define MEMBER(name) "_ZN4absl7debian3" name
constinit RealFunction<void, absl::Mutex*> real_lock(MEMBER("5Mutex4LockEv"));
constinit RealFunction<void, absl::Mutex*> real_unlock(MEMBER("5Mutex6UnlockEv"));
constinit RealFunction<bool, absl::Mutex*> real_try_lock(MEMBER("5Mutex7TryLockEv"));
constinit RealFunction<void, absl::CondVar*, absl::Mutex*> real_wait(MEMBER("7CondVar4WaitEPNS0_5MutexE"));
constinit RealFunction<bool, absl::CondVar*, absl::Mutex*, absl::Duration> real_wait_with_timeout(
    MEMBER("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
constinit RealFunction<bool, absl::CondVar*, absl::Mutex*, absl::Time> real_wait_with_deadline(
    MEMBER("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
constinit RealFunction<void, uintptr_t> real_unref(MEMBER("6Status15UnrefNonInlinedEm"));

}  // namespace

// What gRPC, its C++ layer and abseil itself call (nm -DC says so).
namespace absl {
ABSL_NAMESPACE_BEGIN

BATON_UNINSTRUMENTED void Mutex::Lock() {
  real_lock(this);
  Acquire(this);
}

BATON_UNINSTRUMENTED void Mutex::Unlock() {
  Release(this);
  real_unlock(this);
}

BATON_UNINSTRUMENTED bool Mutex::TryLock() {
  const bool locked = real_try_lock(this);
  if (locked) Acquire(this);
  return locked;
}

BATON_UNINSTRUMENTED void CondVar::Wait(Mutex* mu) {
  Release(mu);
  real_wait(this, mu);
  Acquire(mu);
}

BATON_UNINSTRUMENTED bool CondVar::WaitWithTimeout(Mutex* mu, Duration timeout) {
  Release(mu);
  const bool timed_out = real_wait_with_timeout(this, mu, timeout);
  Acquire(mu);
  return timed_out;
}

BATON_UNINSTRUMENTED bool CondVar::WaitWithDeadline(Mutex* mu, Time deadline) {
  Release(mu);
  const bool timed_out = real_wait_with_deadline(this, mu, deadline);
  Acquire(mu);
  return timed_out;
}

// Copies of a status share its message, counted. Copies are made inline, and seen; they are dropped here. The counter's
// decrement is an acquire and a release, and so is this.
BATON_UNINSTRUMENTED void Status::UnrefNonInlined(uintptr_t rep) {
  void* const counter = reinterpret_cast<void*>(rep);
  Release(counter);
  Acquire(counter);
  real_unref(rep);
}

ABSL_NAMESPACE_END
}  // namespace absl
