// Switching between stacks. On x86-64 by hand: ucontext's switch asks the kernel for the signal mask, which a kernel's many
// barriers would pay hundreds of thousands of times.
#ifndef BATON_KERNELS_CUDA_EMULATOR_FIBER_CONTEXT_H_
#define BATON_KERNELS_CUDA_EMULATOR_FIBER_CONTEXT_H_

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace baton::cuda_emulator {

class FiberContext {
 public:
  // The next switch to it runs `entry`, which must not return, on the stack's `bytes` bytes.
  void Prepare(std::byte* stack, size_t bytes, void (*entry)());
  // Goes on where `to` left off; returns when something switches back to this.
  void SwitchTo(FiberContext* to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;  // registers are on the stack
#else
  ucontext_t machine_;
#endif
};

}  // namespace baton::cuda_emulator

#endif  // BATON_KERNELS_CUDA_EMULATOR_FIBER_CONTEXT_H_
