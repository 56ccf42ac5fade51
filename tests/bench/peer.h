// Other engines' own benchmark programs, run beside ours on the same file: llama-bench and llama-batched-bench of
// llama.cpp and of its forks. They are not part of this project; the path is the caller's.
#ifndef BATON_TESTS_BENCH_PEER_H_
#define BATON_TESTS_BENCH_PEER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/bench/bench_clock.h"

namespace baton::bench {

// What is measured, by us and by a peer.
struct Cell {
  bool prefill = false;
  int tokens = 0;   // prompt tokens, or steps of decode
  int batch = 1;    // sequences decoded together
  int context = 0;  // positions each of them has before
  std::string name() const;  // "prefill 512", "decode b8 c2048"
};

class Peer {
 public:
  enum class Kind { kBench, kBatchedBench };

  // "NAME=PATH ARGUMENT..." or "PATH ARGUMENT..."; the kind follows from the program's name. INVALID_ARGUMENT when the
  // program cannot be run.
  static absl::StatusOr<Peer> Parse(absl::string_view text);

  const std::string& name() const { return name_; }
  Kind kind() const { return kind_; }
  // llama-bench does prefill and decode of one sequence, llama-batched-bench decode of several without much context
  // (it would have to prefill all of it each time).
  bool Runs(const Cell& cell) const;
  std::vector<std::string> Command(const Cell& cell, const std::string& model, int threads) const;
  // Tokens a second, as the program reports them. INTERNAL with the output's end when it fails or says nothing.
  // `cpu`: pinned to that processor when not negative. kCpu preloads `preload` (cpu_clock_preload.c).
  absl::StatusOr<double> Run(const Cell& cell, const std::string& model, int threads, int cpu, ClockKind clock,
                             const std::string& preload) const;

 private:
  std::string name_;
  std::string path_;
  std::vector<std::string> arguments_;
  Kind kind_ = Kind::kBench;
  bool has_depth_ = true;  // an option for the context; forks have another
};

// Tokens a second in the output of the two programs; negative when there is none.
double ParseBenchJson(const std::string& output);
double ParseBatchedTable(const std::string& output);  // of decode

}  // namespace baton::bench

#endif  // BATON_TESTS_BENCH_PEER_H_
