// Prefill and decode workers without a model: real gRPC servers in this process that answer by a script. For tests of
// who talks to workers. A decode worker here has the KV as soon as it has the ticket.
//
// The text of choice c is `texts[c]`, one byte a token, whichever worker is asked: a function of the request alone, as
// with real workers. Where a script says so, a call stops at a point and waits to be cancelled, resumed, failed or
// killed.
#ifndef BATON_TESTS_FAKES_SCRIPTED_WORKER_H_
#define BATON_TESTS_FAKES_SCRIPTED_WORKER_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/rpc/server.h"
#include "common/rpc/stream_writer.h"
#include "proto/cluster.pb.h"
#include "proto/worker.grpc.pb.h"

namespace baton::fakes {

// The tickets of all scripted workers of a test. Thread-safe.
class TicketBook {
 public:
  // `redeemed` is called once if it is.
  uint64_t Issue(std::function<void()> redeemed);
  // False unless the ticket is outstanding.
  bool Redeem(uint64_t id);
  bool Release(uint64_t id);

  int issued() const;
  int released() const;
  int outstanding() const;

 private:
  mutable Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  int released_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::function<void()>> outstanding_ ABSL_GUARDED_BY(mu_);
};

// Points at which a call can stop.
enum class Pause { kNever, kBeforeFirstToken, kBeforePrefilled, kBeforeFetch, kInDecode };

struct Script {
  std::vector<std::string> texts = {"abcdefghijklmnopqrstuvwxyz"};  // of choice c: texts[c % size]
  Pause pause = Pause::kNever;
  int pause_after = 3;         // kInDecode: decode tokens of each choice before the pause
  absl::Status prefill_error;  // at once
  absl::Status reserve_error;  // at once
  absl::Status decode_error;   // instead of Fetched
  bool feeds = true;           // knows DecodeWorker.Feed
  absl::Status after_pause;    // not OK: the call fails with it instead of pausing
};

class ScriptedWorker {
 public:
  // Serves at once. `book` outlives the worker.
  ScriptedWorker(std::string name, std::string role, TicketBook* book, Script script = {});
  ~ScriptedWorker();

  // For Cluster.Register; change what the test wants different.
  v1::WorkerInfo info() const;
  void set_script(Script script);
  // Continues paused calls, or ends them with an error.
  void Resume(const absl::Status& then = absl::OkStatus());
  // As a SIGKILL: connections break.
  void Kill();
  // Feeds end as if their connection had broken; calls' own streams do not.
  void BreakFeeds();

  int calls() const;   // so far
  int open() const;    // running now
  int drains() const;  // asked for
  std::vector<std::string> roles() const;  // likewise
  int paused() const;  // waiting at a pause now
  std::vector<v1::PrefillRequest> prefills() const;
  std::vector<v1::DecodeRequest> decodes() const;
  std::vector<v1::UpdateDecodeRequest> updates() const;

 private:
  class PrefillService;
  class DecodeService;
  class WorkerService;
  struct State;

  const std::string name_;
  const std::string incarnation_;
  const std::string role_;
  std::shared_ptr<State> state_;
  std::unique_ptr<PrefillService> prefill_;
  std::unique_ptr<DecodeService> decode_;
  std::unique_ptr<WorkerService> worker_;
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
};

}  // namespace baton::fakes

#endif  // BATON_TESTS_FAKES_SCRIPTED_WORKER_H_
