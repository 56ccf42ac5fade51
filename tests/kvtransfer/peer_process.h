// Starts and drives ucx_peer (see there) as a child process by fork and exec.
#ifndef BATON_TESTS_KVTRANSFER_PEER_PROCESS_H_
#define BATON_TESTS_KVTRANSFER_PEER_PROCESS_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/kv.pb.h"

namespace baton::kvtransfer::testing {

class PeerProcess {
 public:
  PeerProcess(const std::string& name, const std::string& key, int num_blocks, const char* small = nullptr) {
    int to[2];
    int from[2];
    if (pipe(to) != 0 || pipe(from) != 0) abort();
    const std::string blocks = absl::StrCat(num_blocks);
    const char* path = "tests/kvtransfer/ucx_peer";
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      for (int fd = 3; fd < 256; ++fd) close(fd);
      execl(path, path, name.c_str(), key.c_str(), blocks.c_str(), small, nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    in_ = fdopen(to[1], "w");
    out_ = fdopen(from[0], "r");
    EXPECT_EQ(Read(), "ready");
  }
  ~PeerProcess() {
    if (pid_ > 0) Quit();
    fclose(in_);
    fclose(out_);
  }

  // The answer; empty when the peer is gone.
  std::string Ask(const std::string& command) {
    fprintf(in_, "%s\n", command.c_str());
    fflush(in_);
    return Read();
  }
  v1::Ticket Export(const std::string& request, int epoch, int blocks, int seed, int lease_ms = 60000) {
    v1::Ticket ticket;
    const std::string hex = Ask(absl::StrCat("export ", request, " ", epoch, " ", blocks, " ", seed, " ", lease_ms));
    EXPECT_TRUE(ticket.ParseFromString(absl::HexStringToBytes(hex))) << hex;
    return ticket;
  }
  struct State {
    int64_t free = -1, leased = -1, quarantined = -1, total = -2;
    uint64_t hash = 0, outstanding = 0;
    bool AllFree() const { return free == total && outstanding == 0; }
  };
  State GetState() {
    State s;
    std::istringstream(Ask("state")) >> s.free >> s.leased >> s.quarantined >> s.total >> s.hash >> s.outstanding;
    return s;
  }
  struct Counters {
    int64_t malformed = -1, forged = -1, refused = -1, completed = -1, open = -1, handshake_timeouts = -1, expired = -1;
  };
  Counters GetCounters() {
    Counters c;
    std::istringstream(Ask("counters")) >> c.malformed >> c.forged >> c.refused >> c.completed >> c.open >>
        c.handshake_timeouts >> c.expired;
    return c;
  }
  pid_t pid() const { return pid_; }
  void Signal(int number) { kill(pid_, number); }
  // Dead, though not collected yet.
  bool Dead() {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
  }
  // Collects one that died, whatever of.
  void Bury() { Wait(); }
  // Waits for the end; exit status, or minus the signal.
  int Wait() {
    int status = 0;
    for (int i = 0; waitpid(pid_, &status, WNOHANG) == 0; ++i) {
      if (i == 2000) kill(pid_, SIGKILL);  // after 20 s: the caller sees a signal it did not expect
      usleep(10'000);
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  void Quit() {
    fprintf(in_, "quit\n");
    fflush(in_);
    EXPECT_EQ(Wait(), 0) << "the peer's pool was not free at its end, or it crashed";
  }

 private:
  std::string Read() {
    std::string line;
    for (int c = fgetc(out_); c != EOF && c != '\n'; c = fgetc(out_)) line.push_back(static_cast<char>(c));
    return line;
  }
  pid_t pid_ = -1;
  FILE* in_ = nullptr;
  FILE* out_ = nullptr;
};

}  // namespace baton::kvtransfer::testing

#endif  // BATON_TESTS_KVTRANSFER_PEER_PROCESS_H_
