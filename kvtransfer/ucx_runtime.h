// One UCX context, one worker, and the thread that alone touches them.
#ifndef BATON_KVTRANSFER_UCX_RUNTIME_H_
#define BATON_KVTRANSFER_UCX_RUNTIME_H_

#include <ucp/api/ucp.h>

#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton::kvtransfer {

// "what: UCX's words", UNAVAILABLE.
// Whether ucx_null_lane.cc stands before the UCX of this process.
bool UcxSurvivesNullLanes();

absl::Status UcxError(absl::string_view what, ucs_status_t status);

// An IPv4 literal and port, "127.0.0.1:4711".
struct UcxAddress {
  uint32_t host = 0;  // host byte order
  uint16_t port = 0;

  // INVALID_ARGUMENT unless `text` is exactly that.
  static absl::StatusOr<UcxAddress> Parse(absl::string_view text);
  bool loopback() const { return (host >> 24) == 127; }
  std::string ToString() const;
};

// Base of both halves. Everything but Post, StartLoop and StopLoop belongs to the loop's thread. Subclasses call
// StopLoop before they are destroyed.
class UcxLoop {
 protected:
  using Task = absl::AnyInvocable<void()>;
  using SendDone = absl::AnyInvocable<void(ucs_status_t)>;

  UcxLoop() = default;
  virtual ~UcxLoop();

  // Starts the thread; returns when OnStart has, with its status.
  absl::Status StartLoop(bool network_trusted, const std::string& transports);
  // OnStop, then waits until Quiesced or a bound; destroys worker and context. Idempotent, any thread but the loop's.
  void StopLoop();
  // Runs `task` on the loop; false when the loop has stopped, and `task` is then untouched. Any thread.
  bool Post(Task&& task);

  virtual absl::Status OnStart() = 0;
  // Timers; returns when it wants to be called next at the latest.
  virtual absl::Time OnTick(absl::Time now) = 0;
  // Something is expected from a peer within microseconds: the loop then polls for a moment before it sleeps, for waking
  // it costs both sides a system call, and a virtual machine much more.
  virtual bool Busy() = 0;
  virtual void OnStop() = 0;
  virtual bool Quiesced() = 0;
  // After the worker is destroyed: no byte moves any more.
  virtual void OnStopped() {}
  // The worker is about to be destroyed and made anew (see Recycle): closes every connection; what they carried has to
  // begin again. Then, after OnRecycled (no byte moves any more), OnStart comes again.
  virtual void OnRecycle(const absl::Status& why) = 0;
  virtual void OnRecycled() {}

  // Runs `task` after the current UCX callback has returned: UCX must not be re-entered from its callbacks.
  void Defer(Task task) { deferred_.push_back(std::move(task)); }

  ucp_worker_h worker() const { return worker_; }  // null at the very end
  absl::Status SetHandler(unsigned id, ucp_am_recv_callback_t callback, void* arg);
  // For every id there is; call it before SetHandler. UCX 1.13.1 leaves its table of handlers uninitialised except for
  // the ids that were set (ucp_worker_set_am_handler_common initialises element `id` in a loop over `i`), so that a
  // message with any other id makes it call whatever the memory held.
  absl::Status SetHandlerOfAll(ucp_am_recv_callback_t callback, void* arg);
  // `data` must stay until `done`, which is deferred and comes exactly once; header and `owned` are kept here. With
  // data null, `owned` is the payload.
  void Send(ucp_ep_h ep, unsigned id, std::string header, std::string owned, const void* data, size_t size,
            uint32_t flags, SendDone done);
  // `done` (deferred, exactly once) when the connection is made and everything sent on it so far has left.
  void Flush(ucp_ep_h ep, SendDone done);
  // Cuts the connection. When `closed` (deferred) runs, its pending operations have ended, except for sends to a dead peer
  // that UCX keeps (Recycle): nobody reads for them any more.
  void CloseEndpoint(ucp_ep_h ep, Task closed);
  // The transports an endpoint uses, such as "sysv/cma".
  static std::string DescribeEndpoint(ucp_ep_h ep);

 private:
  struct SendOp;
  struct CloseOp;

  void ThreadMain();
  absl::Status Init();
  // Destroys the worker and makes a new one; false when told to stop meanwhile. Nothing less helps when a process dies that
  // UCX 1.13.1 shared memory with:
  // - A sender that dies between taking a place in our queue and filling it: what comes after it is never read, from anybody.
  // - A receiver that dies with its queue full: uct_mm_ep_flush says NO_RESOURCE even if it is told to cancel, so that the
  //   connection is never reported closed, or sends outlive it.
  // In both cases the worker says that there is something to do whenever the loop would sleep, and does nothing.
  bool Recycle();
  // When the worker is given up if it IsStuck like that; the infinite future if it seems well.
  absl::Time GiveUpAt() const;
  bool IsStuck(absl::Time now);
  void NoteOrphans(ucp_ep_h closed);
  void RunTasks();
  void RunDeferred();
  void Poll();
  void Wait(absl::Time until);
  void Destroy();
  static void OnSent(void* request, ucs_status_t status, void* user_data);
  static void OnClosed(void* request, ucs_status_t status, void* user_data);

  bool network_trusted_ = false;
  std::string transports_;
  std::thread thread_;
  Mutex mu_;
  CondVar started_cv_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool accepting_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status start_status_ ABSL_GUARDED_BY(mu_);
  std::deque<Task> inbox_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> posted_{false};  // since RunTasks
  Mutex join_mu_;
  int wake_fd_ = -1;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int ucx_fd_ = -1;
  std::deque<Task> deferred_;
  std::set<SendOp*> sends_;
  std::set<CloseOp*> closes_;
  int orphans_ = 0;  // of sends_: their connection is closed
  absl::Time orphaned_at_;
  // Since when there has been something to do whenever the loop would have slept, and the rounds in that time.
  absl::Time sleepless_since_ = absl::InfiniteFuture();
  int sleepless_rounds_ = 0;
  int progress_rounds_ = 0;
  // Tasks of closed connections. UCX 1.13.1 reports one closed while copies by CMA that it had begun are still queued: then
  // `closed` would give their memory back, and to destroy the worker would end the process by an assertion. Rounds
  // without progress say that none is left.
  std::deque<Task> closed_;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_UCX_RUNTIME_H_
