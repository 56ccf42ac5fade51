#include "tests/chaos/network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::e2e {
namespace {

constexpr char kBridge[] = "br0";
constexpr char kBridgeAddress[] = "10.77.0.1";
constexpr char kNobody[] = "02:00:00:00:ff:ff";
constexpr int kPassed = 100;  // the number that a child finds a namespace's descriptor at

// Runs a program in a namespace (-1: in this one) and returns what it printed; `pass` is open there as kPassed.
absl::StatusOr<std::string> Run(int netns, const std::vector<std::string>& words, int pass = -1) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return absl::InternalError(absl::StrCat("pipe2: ", strerror(errno)));
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", strerror(errno)));
  if (pid == 0) {
    dup2(out[1], 1);
    dup2(out[1], 2);
    if (pass >= 0) dup2(pass, kPassed);
    if (netns >= 0 && setns(netns, CLONE_NEWNET) != 0) {
      dprintf(2, "setns: %s", strerror(errno));
      _exit(126);
    }
    setenv("PATH", "/usr/sbin:/sbin:/usr/bin:/bin", 1);
    execvp(argv[0], argv.data());
    dprintf(2, "cannot run it: %s; apt-get install iproute2", strerror(errno));
    _exit(127);
  }
  close(out[1]);
  std::string text;
  char buffer[1024];
  for (ssize_t got; (got = read(out[0], buffer, sizeof(buffer))) > 0 || (got < 0 && errno == EINTR);) {
    if (got > 0) text.append(buffer, static_cast<size_t>(got));
  }
  close(out[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  return absl::FailedPreconditionError(absl::StrCat(absl::StrJoin(words, " "), ": ", text));
}

absl::Status Ip(int netns, const std::vector<std::string>& words, int pass = -1) {
  std::vector<std::string> argv = {"ip"};
  argv.insert(argv.end(), words.begin(), words.end());
  return Run(netns, argv, pass).status();
}

absl::Status WriteFile(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good() ? absl::OkStatus() : absl::FailedPreconditionError(absl::StrCat("cannot write ", path));
}

// As root of the system, or of a user namespace where the system lets everybody make one.
absl::Status LeaveForANewNamespace() {
  if (unshare(CLONE_NEWNET) == 0) return absl::OkStatus();
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("no network namespaces here (unshare: ", strerror(errno), ")"));
  }
  absl::Status status = WriteFile("/proc/self/setgroups", "deny");
  if (status.ok()) status = WriteFile("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1"));
  if (status.ok()) status = WriteFile("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"));
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Network>> Network::Create() {
  if (absl::Status s = LeaveForANewNamespace(); !s.ok()) return s;
  auto network = std::unique_ptr<Network>(new Network());
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"link", "set", "lo", "up"},
           {"link", "add", kBridge, "type", "bridge", "forward_delay", "0"},
           {"addr", "add", absl::StrCat(kBridgeAddress, "/16"), "dev", kBridge},
           {"link", "set", kBridge, "up"}}) {
    if (absl::Status s = Ip(-1, words); !s.ok()) return s;
  }
  return network;
}

Network::~Network() {
  for (auto& [name, host] : hosts_) close(host.netns);
}

absl::StatusOr<const Host*> Network::AddHost(const std::string& name) {
  if (const auto known = hosts_.find(name); known != hosts_.end()) return &known->second;
  Host host;
  host.name = name;
  int error = 0;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) == 0) host.netns = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    error = errno;
  }).join();
  if (host.netns < 0) return absl::FailedPreconditionError(absl::StrCat("no namespace for a host: ", strerror(error)));
  const int number = static_cast<int>(hosts_.size()) + 2;
  host.address = absl::StrCat("10.77.", number / 250, ".", number % 250 + 2);
  const std::string port = absl::StrCat("v", number);
  absl::Status s = Ip(-1, {"link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
                           absl::StrCat("/proc/self/fd/", kPassed)}, host.netns);
  if (s.ok()) s = Ip(-1, {"link", "set", port, "master", kBridge, "up"});
  if (s.ok()) s = Ip(host.netns, {"link", "set", "lo", "up"});
  if (s.ok()) s = Ip(host.netns, {"addr", "add", absl::StrCat(host.address, "/16"), "dev", "eth0"});
  if (s.ok()) s = Ip(host.netns, {"link", "set", "eth0", "up"});
  if (!s.ok()) {
    close(host.netns);
    return s;
  }
  return &hosts_.emplace(name, std::move(host)).first->second;
}

absl::Status Network::Cut(const Host& from, const Host& to) {
  cut_.insert({from.name, to.name});
  return Ip(from.netns, {"neigh", "replace", to.address, "lladdr", kNobody, "dev", "eth0", "nud", "permanent"});
}

absl::Status Network::CutBoth(const Host& a, const Host& b) {
  absl::Status s = Cut(a, b);
  s.Update(Cut(b, a));
  return s;
}

absl::Status Network::Isolate(const Host& host) {
  absl::Status s;
  for (const auto& [name, other] : hosts_) {
    if (name != host.name) s.Update(CutBoth(host, other));
  }
  return s;
}

absl::Status Network::HealAll() {
  absl::Status s;
  for (const auto& [from, to] : cut_) {
    s.Update(Ip(hosts_.at(from).netns, {"neigh", "del", hosts_.at(to).address, "dev", "eth0"}));
  }
  cut_.clear();
  return s;
}

absl::Status Network::ResetConnections(const Host& host) {
  const absl::StatusOr<std::string> said = Run(host.netns, {"ss", "-K", "-tn"});
  if (!said.ok()) return said.status();
  if (absl::StrContains(*said, "Operation not supported")) return absl::FailedPreconditionError(*said);
  return absl::OkStatus();
}

}  // namespace baton::e2e
