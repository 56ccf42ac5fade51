// A man in the middle of plain-text HTTP/2: passes bytes on, and does to some of the DATA frames what a broken or hostile
// network might.
#ifndef BATON_TESTS_CHAOS_FRAME_MANGLER_H_
#define BATON_TESTS_CHAOS_FRAME_MANGLER_H_

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace baton::e2e {

enum class Mangling { kFlip, kTruncate, kRepeat, kReorder, kForge };
inline constexpr int kNumManglings = 5;

// Thread-safe. Threads of its own, until it goes.
class FrameMangler {
 public:
  // Listens on a free port of 127.0.0.1 and connects to `target_port` for each connection it gets. Before SetRate(n > 0),
  // which changes one of n DATA frames, it only passes on.
  FrameMangler(int target_port, uint64_t seed);
  ~FrameMangler();

  int port() const { return port_; }
  void SetRate(int one_in) { one_in_ = one_in; }
  int64_t done(Mangling kind) const { return done_[static_cast<size_t>(kind)]; }
  int64_t frames() const { return frames_; }

 private:
  struct Relay {
    int client = -1, server = -1;
    std::thread up, down;
    std::atomic<bool> over{false};
  };
  void Accept();
  static void End(Relay* relay);
  // One direction of one connection.
  void Pass(Relay* relay, int from, int to, uint64_t seed, bool from_client);
  // What is sent instead of `frame` (header and payload); false: the connection ends here.
  bool Mangle(std::string frame, std::string* held, std::mt19937_64* random, std::string* out);
  std::string AnotherPayload(const std::string& own);

  const int target_port_;
  int listen_fd_ = -1;
  int port_ = 0;
  std::atomic<int> one_in_{0};
  std::atomic<bool> stopping_{false};
  std::array<std::atomic<int64_t>, kNumManglings> done_{};
  std::atomic<int64_t> frames_{0};
  std::atomic<uint64_t> seed_;
  Mutex mu_;
  std::string other_ ABSL_GUARDED_BY(mu_);  // the payload of an earlier frame, of whatever stream
  std::vector<std::unique_ptr<Relay>> relays_ ABSL_GUARDED_BY(mu_);
  std::thread accept_;
};

}  // namespace baton::e2e

#endif  // BATON_TESTS_CHAOS_FRAME_MANGLER_H_
