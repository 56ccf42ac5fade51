// Ctrl-C as a call on an ordinary thread.
#ifndef BATON_CLI_INTERRUPTS_H_
#define BATON_CLI_INTERRUPTS_H_

#include <functional>
#include <thread>

#include "common/mutex.h"

namespace baton::cli {

// Make one before any other thread starts: threads inherit the blocked SIGINT.
//
// Thread contract: thread-safe. The handler runs on this object's own thread, never twice at once.
class Interrupts {
 public:
  explicit Interrupts(std::function<void()> handler);
  // Afterwards the handler runs no more. SIGINT stays blocked.
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

 private:
  void Run();

  const std::function<void()> handler_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  std::thread thread_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_INTERRUPTS_H_
