// Which worker's cache holds which prefix, as far as workers have told, and as far as what was sent to them lets expect.
//
// A worker tells changes against a version; a gap shows as a base version that is not what is known here, and then it
// is asked for everything. Workers go by slot: a small number that belongs to one incarnation at a time.
//
// Thread contract: thread-compatible.
#ifndef BATON_ROUTER_PREFIX_DIRECTORY_H_
#define BATON_ROUTER_PREFIX_DIRECTORY_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"

namespace baton::router {

class PrefixDirectory {
 public:
  struct Options {
    size_t max_names = 1 << 20;  // over all workers; more are not taken in
    size_t max_expected = 1 << 16;
    absl::Duration expect_for = absl::Seconds(5);  // what was sent is expected to be cached, until it is told
  };
  PrefixDirectory() = default;
  explicit PrefixDirectory(const Options& options) : options_(options) {}

  // The version of `slot` that is known afterwards; 0: nothing, the worker should send everything.
  uint64_t Apply(uint32_t slot, const v1::PrefixReport& report);
  // Forgets a worker.
  void Clear(uint32_t slot);
  // A prompt with these prefixes was sent to `slot`.
  void Expect(uint32_t slot, std::span<const uint64_t> names, absl::Time now);

  // (*depth)[slot]: how many of `names` (one prompt's, shortest first) `slot` holds without a gap. Slots beyond its end
  // hold none.
  void Match(std::span<const uint64_t> names, absl::Time now, std::vector<uint16_t>* depth) const;

  size_t size() const { return num_names_; }

 private:
  struct Told {
    uint64_t version = 0;
    bool silent = false;  // it says that it has nothing to tell: it keeps no prefixes
    absl::flat_hash_set<uint64_t> names;
  };
  struct Expected {
    uint32_t slot;
    absl::Time until;
  };

  void Add(uint32_t slot, uint64_t name);
  void Remove(uint32_t slot, uint64_t name);

  const Options options_;
  absl::flat_hash_map<uint64_t, absl::InlinedVector<uint32_t, 4>> holders_;
  std::vector<Told> told_;  // [slot]
  size_t num_names_ = 0;    // pairs of worker and name
  absl::flat_hash_map<uint64_t, Expected> expected_;
  std::deque<std::pair<absl::Time, uint64_t>> expiry_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFIX_DIRECTORY_H_
