// What a prefix index gained and lost, numbered, so that someone elsewhere can keep a copy of its names and notice when
// it missed something: changes since a version, or, when those are no longer kept, all names.
//
// Thread contract: thread-safe (the index writes on the engine's thread, heartbeats read on theirs).
#ifndef BATON_KVCACHE_PREFIX_JOURNAL_H_
#define BATON_KVCACHE_PREFIX_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

#include "common/mutex.h"

namespace baton::kvcache {

class PrefixJournal {
 public:
  struct Options {
    size_t max_events = 1 << 16;  // kept
    size_t max_names = 1 << 17;   // told at once; an index with more is told in part
  };
  struct Report {
    uint64_t base_version = 0;  // 0: `added` is all there is
    uint64_t version = 0;       // > 0
    std::vector<uint64_t> added;
    std::vector<uint64_t> removed;
  };

  PrefixJournal() = default;
  explicit PrefixJournal(const Options& options) : options_(options) {}

  void Added(uint64_t name);
  void Removed(uint64_t name);

  // Changes after `version`, net; everything when `version` is 0, too old, or not one that this journal gave out.
  Report Since(uint64_t version) const;

 private:
  struct Event {
    uint64_t name;
    bool added;
  };
  void Log(Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 1;  // of the last event; an empty journal is version 1
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);
  std::unordered_set<uint64_t> names_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::kvcache

#endif  // BATON_KVCACHE_PREFIX_JOURNAL_H_
