// Tells the thread sanitizer how gRPC hands things from thread to thread. Debian's gRPC 1.51 is built without the
// sanitizer, and beside abseil's locks (absl_sync.cc) it uses queues and counters of atomics, which it cannot see.
//
// gRPC calls these functions of its own through the dynamic linker, which finds the ones below first. Each states one
// order that gRPC guarantees, for one operation or one call, and calls the real function. So races between operations
// and in what callbacks do are still reported.
#include <grpc/grpc.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "absl/status/status.h"
#include "third_party/tsan/real_function.h"

struct grpc_cq_completion;

namespace {

using baton::tsan::RealFunction;
using Done = void(void* done_arg, grpc_cq_completion* storage);

constinit RealFunction<bool, grpc_completion_queue*, void*> real_begin_op(
    "_Z16grpc_cq_begin_opP21grpc_completion_queuePv");
constinit RealFunction<void, grpc_completion_queue*, void*, absl::Status, Done*, void*, grpc_cq_completion*, bool>
    real_end_op(
        "_Z14grpc_cq_end_opP21grpc_completion_queuePvN4absl7debian36StatusEPFvS1_P18grpc_cq_completionES1_S6_b");
constinit RealFunction<grpc_event, grpc_completion_queue*, gpr_timespec, void*> real_next("grpc_completion_queue_next");
constinit RealFunction<grpc_event, grpc_completion_queue*, void*, gpr_timespec, void*> real_pluck(
    "grpc_completion_queue_pluck");
constinit RealFunction<void, grpc::ClientContext*> real_end_context("_ZN4grpc13ClientContextD1Ev");
constinit RealFunction<void, void*, bool> real_schedule_on_done(
    "_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
constinit RealFunction<void, void*, grpc::internal::ServerReactor*> real_call_on_cancel(
    "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE");

// How a private member is named from outside: an explicit instantiation may.
using ChannelMember = std::shared_ptr<grpc::Channel> grpc::ClientContext::*;
ChannelMember ChannelOfContext();
template <ChannelMember member>
struct TellMember {
  friend ChannelMember ChannelOfContext() { return member; }
};
template struct TellMember<&grpc::ClientContext::channel_>;

// Stands before a reactor for the one call of OnCancel, on a thread that gRPC takes for it.
class TellCancelled final : public grpc::internal::ServerReactor {
 public:
  TellCancelled(grpc::internal::ServerReactor* reactor, void* counter)
      : reactor_(reactor), counter_(counter), inlineable_(reactor->InternalInlineable()) {}
  void OnDone() override {}
  void OnCancel() override {
    reactor_->OnCancel();
    __tsan_release(counter_);
    delete this;
  }
  bool InternalInlineable() override { return inlineable_; }

 private:
  grpc::internal::ServerReactor* const reactor_;
  void* const counter_;
  const bool inlineable_;
};

}  // namespace

// Dropping one reference to a channel comes before dropping the next, and the last one destroys it. References are dropped
// inline in our code, and seen; a call's own goes with its context, in the library.
extern "C" BATON_UNINSTRUMENTED void EndContext(grpc::ClientContext* context) __asm__("_ZN4grpc13ClientContextD1Ev");
extern "C" BATON_UNINSTRUMENTED void EndContext(grpc::ClientContext* context) {
  // A shared_ptr is a pointer and its control block, which begins with the address of its functions and then counts.
  char* words[2];
  static_assert(sizeof(words) == sizeof(std::shared_ptr<grpc::Channel>));
  __builtin_memcpy(words, &(context->*ChannelOfContext()), sizeof(words));
  if (words[1] != nullptr) {
    __tsan_release(words[1] + sizeof(void*));
    __tsan_acquire(words[1] + sizeof(void*));
  }
  real_end_context(context);
}

// An operation (a batch of one call, a request for the next call) is known by its tag. What was done before it was
// started comes before what follows its end, here and in whoever takes it from the queue.
BATON_UNINSTRUMENTED bool grpc_cq_begin_op(grpc_completion_queue* queue, void* tag) {
  if (tag != nullptr) __tsan_release(tag);
  return real_begin_op(queue, tag);
}

BATON_UNINSTRUMENTED void grpc_cq_end_op(grpc_completion_queue* queue, void* tag, absl::Status error, Done* done,
                                         void* done_arg, grpc_cq_completion* storage, bool internal) {
  if (tag != nullptr) {
    __tsan_acquire(tag);
    __tsan_release(tag);
  }
  real_end_op(queue, tag, std::move(error), done, done_arg, storage, internal);
}

extern "C" BATON_UNINSTRUMENTED grpc_event grpc_completion_queue_next(grpc_completion_queue* queue,
                                                                      gpr_timespec deadline, void* reserved) {
  const grpc_event event = real_next(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && event.tag != nullptr) __tsan_acquire(event.tag);
  return event;
}

extern "C" BATON_UNINSTRUMENTED grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                                                       gpr_timespec deadline, void* reserved) {
  const grpc_event event = real_pluck(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE && event.tag != nullptr) __tsan_acquire(event.tag);
  return event;
}

namespace grpc::internal {

// Whoever counts a call's last callback down runs OnDone after all of them. The counting is inlined in our code and seen
// there; in the library it is not.
BATON_UNINSTRUMENTED void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  __tsan_acquire(&callbacks_outstanding_);
  real_schedule_on_done(this, inline_ondone);
}

// The same for OnCancel, which follows the return of the service's method, and itself comes before OnDone.
BATON_UNINSTRUMENTED void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  __tsan_acquire(&on_cancel_conditions_remaining_);
  real_call_on_cancel(this, new TellCancelled(reactor, &callbacks_outstanding_));
}

}  // namespace grpc::internal
