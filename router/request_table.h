// The requests there are: by key while they run, and counted until the last call of each is over.
#ifndef BATON_ROUTER_REQUEST_TABLE_H_
#define BATON_ROUTER_REQUEST_TABLE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace baton::router {

class RequestDriver;

// Thread-safe.
class RequestTable {
 public:
  explicit RequestTable(size_t max_running) : max_running_(max_running) {}

  // One driver's existence.
  class Live {
   public:
    explicit Live(RequestTable* table) : table_(table) { table_->Count(1); }
    ~Live() { table_->Count(-1); }
    Live(const Live&) = delete;
    Live& operator=(const Live&) = delete;

   private:
    RequestTable* const table_;
  };

  // ALREADY_EXISTS: a request of that key runs. RESOURCE_EXHAUSTED, with RetryInfo: max_running do.
  absl::Status Add(const std::string& key, const std::shared_ptr<RequestDriver>& driver);
  // Unknown keys are ignored. A key that Add refused is not the caller's: see Running.
  void End(const std::string& key, const RequestDriver* driver);

  size_t running() const;
  std::vector<std::shared_ptr<RequestDriver>> Running() const;
  // False when some still run at the end of `timeout`.
  bool WaitUntilNoneRuns(absl::Duration timeout);
  // Breaks off what is left of calls and returns when no driver is left.
  void WaitUntilGone();

 private:
  void Count(int change);

  struct Entry {
    const RequestDriver* id;
    std::weak_ptr<RequestDriver> driver;
  };
  const size_t max_running_;
  mutable Mutex mu_;
  CondVar cv_;
  std::map<std::string, Entry> running_ ABSL_GUARDED_BY(mu_);
  std::vector<std::weak_ptr<RequestDriver>> ended_ ABSL_GUARDED_BY(mu_);  // over for the client, maybe not for a worker
  int live_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TABLE_H_
