// A real etcd for tests, on loopback with its data in the test's folder.
#ifndef BATON_TESTS_COMMON_MEMBERSHIP_ETCD_PROCESS_H_
#define BATON_TESTS_COMMON_MEMBERSHIP_ETCD_PROCESS_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/membership/etcd_client.h"

namespace baton::membership::testing {

inline int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

// Thread contract: one thread.
class EtcdProcess {
 public:
  EtcdProcess() : client_port_(FreePort()), peer_port_(FreePort()) {
    const char* tmp = getenv("TEST_TMPDIR");
    data_ = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/etcd-", client_port_);
    Start();
  }
  ~EtcdProcess() {
    Kill();
    std::filesystem::remove_all(data_);
  }

  std::string endpoint() const { return absl::StrCat("127.0.0.1:", client_port_); }
  // Settings of a process that uses it.
  v1::Config Config() const {
    v1::Config config;
    config.set_membership("etcd");
    config.set_etcd_endpoints(endpoint());
    config.set_etcd_prefix("/baton");
    config.set_etcd_lease_s(2);
    return config;
  }
  void Signal(int number) { kill(pid_, number); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // On the same port; without its data when `empty`.
  void Restart(bool empty) {
    Kill();
    if (empty) std::filesystem::remove_all(data_);
    Start();
  }

 private:
  void Start() {
    const char* cache = getenv("BATON_CACHE");
    const std::string program =
        absl::StrCat(cache != nullptr && *cache != '\0' ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton"),
                     "/tools/usr/bin/etcd");
    ASSERT_EQ(access(program.c_str(), X_OK), 0) << program << " is missing; run scripts/setup --tests";
    const std::string client = absl::StrCat("http://127.0.0.1:", client_port_);
    const std::string peer = absl::StrCat("http://127.0.0.1:", peer_port_);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      execl(program.c_str(), "etcd", "--data-dir", data_.c_str(), "--listen-client-urls", client.c_str(),
            "--advertise-client-urls", client.c_str(), "--listen-peer-urls", peer.c_str(), "--initial-cluster",
            absl::StrCat("default=", peer).c_str(), "--initial-advertise-peer-urls", peer.c_str(), "--unsafe-no-fsync",
            "--log-level", "error", nullptr);
      _exit(127);
    }
    auto client_or = EtcdClient::Create(Config());
    ASSERT_TRUE(client_or.ok()) << client_or.status();
    absl::Status up;
    for (int i = 0; i < 300; ++i) {
      up = (*client_or)->List("/").status();
      if (up.ok()) return;
      absl::SleepFor(absl::Milliseconds(100));
    }
    FAIL() << "etcd does not answer: " << up;
  }

  const int client_port_, peer_port_;
  std::string data_;
  pid_t pid_ = -1;
};

}  // namespace baton::membership::testing

#endif  // BATON_TESTS_COMMON_MEMBERSHIP_ETCD_PROCESS_H_
