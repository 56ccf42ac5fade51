// For functions that stand in front of a library's own.
#ifndef BATON_THIRD_PARTY_TSAN_REAL_FUNCTION_H_
#define BATON_THIRD_PARTY_TSAN_REAL_FUNCTION_H_

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#define BATON_UNINSTRUMENTED __attribute__((no_sanitize_thread))

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace baton::tsan {

// The function that the dynamic linker finds next, looked up by its mangled name at the first call; a member function
// takes `this` first. Ends the process when there is none: then the stand-in would be of no use unnoticed.
template <class Result, class... Args>
class RealFunction {
 public:
  constexpr explicit RealFunction(const char* symbol) : symbol_(symbol) {}

  BATON_UNINSTRUMENTED Result operator()(Args... args) {
    Function* function = __atomic_load_n(&found_, __ATOMIC_RELAXED);
    if (function == nullptr) {
      function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol_));
      if (function == nullptr) {
        fprintf(stderr, "third_party/tsan: no %s; is the library another version, or linked statically?\n", symbol_);
        abort();
      }
      __atomic_store_n(&found_, function, __ATOMIC_RELAXED);
    }
    return function(std::forward<Args>(args)...);
  }

 private:
  using Function = Result(Args...);

  const char* const symbol_;
  Function* found_ = nullptr;  // by compiler builtins: members of std::atomic would be instrumented
};

}  // namespace baton::tsan

#endif  // BATON_THIRD_PARTY_TSAN_REAL_FUNCTION_H_
