#include "kernels/cuda/emulator/fiber_context.h"

namespace baton::cuda_emulator {

#if defined(__x86_64__)

// Keeps the registers that a called function must keep (System V ABI) on the stack, and the stack's pointer in *save.
extern "C" void BatonEmulatorSwitch(void** save, void* load);
asm(R"(
.text
.globl BatonEmulatorSwitch
.type BatonEmulatorSwitch, @function
BatonEmulatorSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size BatonEmulatorSwitch, .-BatonEmulatorSwitch
)");

void FiberContext::Prepare(std::byte* stack, size_t bytes, void (*entry)()) {
  // From the top: no return address (entry is aligned as if called), where to go, six registers.
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void FiberContext::SwitchTo(FiberContext* to) { BatonEmulatorSwitch(&stack_pointer_, to->stack_pointer_); }

#else

void FiberContext::Prepare(std::byte* stack, size_t bytes, void (*entry)()) {
  getcontext(&machine_);
  machine_.uc_stack.ss_sp = stack;
  machine_.uc_stack.ss_size = bytes;
  machine_.uc_link = nullptr;
  makecontext(&machine_, entry, 0);
}

void FiberContext::SwitchTo(FiberContext* to) { swapcontext(&machine_, &to->machine_); }

#endif

}  // namespace baton::cuda_emulator
