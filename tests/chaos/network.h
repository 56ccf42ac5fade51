// A network of its own for a test's processes: each host is a network namespace with one address, all joined by a bridge.
// The test itself stands at the bridge and reaches every host.
//
// Packets of one host to another are lost silently, as behind a broken switch, by pointing the sender's neighbour entry at
// an Ethernet address that nobody has: this needs no packet filter, and works in one direction.
#ifndef BATON_TESTS_CHAOS_NETWORK_H_
#define BATON_TESTS_CHAOS_NETWORK_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::e2e {

struct Host {
  std::string name;
  std::string address;  // IPv4
  int netns = -1;       // descriptor of its namespace
};

// Thread contract: one thread. Errors carry what `ip` said.
class Network {
 public:
  // Moves the calling thread, and threads it starts from now on, into a new namespace with the bridge: call it before
  // anything has opened a socket or started a thread. Once a process. FAILED_PRECONDITION where the system does not allow
  // it, or has no `ip`.
  static absl::StatusOr<std::unique_ptr<Network>> Create();
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // A new host, or the one of that name.
  absl::StatusOr<const Host*> AddHost(const std::string& name);
  // What `from` sends to `to` is lost from now on.
  absl::Status Cut(const Host& from, const Host& to);
  absl::Status CutBoth(const Host& a, const Host& b);
  // From everybody else, in both directions, but not from the test.
  absl::Status Isolate(const Host& host);
  // All that was cut works again.
  absl::Status HealAll();
  // Every TCP connection of `host` is reset, at both its ends. FAILED_PRECONDITION where the kernel cannot.
  absl::Status ResetConnections(const Host& host);

 private:
  Network() = default;
  std::map<std::string, Host> hosts_;
  std::set<std::pair<std::string, std::string>> cut_;  // names
};

}  // namespace baton::e2e

#endif  // BATON_TESTS_CHAOS_NETWORK_H_
