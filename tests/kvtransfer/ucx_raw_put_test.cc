// A plain TCP client that speaks the PUT requests of UCX's TCP transport: bytes for any address, with no connection of
// ours, no ticket, and no handler in between. What it reaches in each mode is what docs/TRANSPORT.md says.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tests/kvtransfer/peer_process.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::PeerProcess;

// Addresses, network byte order, and ports on which `pid` listens.
std::set<std::pair<uint32_t, uint16_t>> Listeners(pid_t pid) {
  std::set<std::string> inodes;
  const std::string fds = absl::StrCat("/proc/", pid, "/fd");
  DIR* dir = opendir(fds.c_str());
  if (dir == nullptr) return {};
  while (const dirent* entry = readdir(dir)) {
    char target[128] = {};
    if (readlink(absl::StrCat(fds, "/", entry->d_name).c_str(), target, sizeof(target) - 1) > 0) inodes.insert(target);
  }
  closedir(dir);
  std::set<std::pair<uint32_t, uint16_t>> listeners;
  std::ifstream in("/proc/net/tcp");
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, skip, inode;
    words >> number >> local >> remote >> state >> skip >> skip >> skip >> skip >> skip >> inode;
    if (state != "0A" || inodes.count(absl::StrCat("socket:[", inode, "]")) == 0) continue;
    listeners.insert({static_cast<uint32_t>(std::stoul(local.substr(0, 8), nullptr, 16)),
                      static_cast<uint16_t>(std::stoul(local.substr(9), nullptr, 16))});
  }
  return listeners;
}

// The largest private writable mapping without a file: the pool.
uint64_t PoolAddress(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/maps"));
  std::string line;
  uint64_t best = 0, size = 0;
  while (std::getline(in, line)) {
    uint64_t begin = 0, end = 0, offset = 0, inode = 0;
    char flags[8] = {}, device[16] = {}, path[256] = {};
    sscanf(line.c_str(), "%lx-%lx %7s %lx %15s %lu %255s", &begin, &end, flags, &offset, device, &inode, path);
    if (inode != 0 || path[0] != '\0' || std::string(flags) != "rw-p" || end - begin <= size) continue;
    best = begin;
    size = end - begin;
  }
  return best;
}

uint64_t ReadMemory(pid_t pid, uint64_t address) {
  uint64_t value = 0;
  const int fd = open(absl::StrCat("/proc/", pid, "/mem").c_str(), O_RDONLY | O_CLOEXEC);
  if (pread(fd, &value, sizeof(value), static_cast<off_t>(address)) != sizeof(value)) value = 0;
  close(fd);
  return value;
}

void Append(std::string* out, const void* data, size_t size) { out->append(static_cast<const char*>(data), size); }

// What one request did.
struct Harm {
  bool wrote = false;   // the value is where the request said
  bool killed = false;  // an assertion of UCX ended the process
};

// Magic number, header of a PUT request, `value` for `address`. Little-endian and packed, as UCX 1.13 has it.
Harm Put(PeerProcess* peer, uint32_t host, uint16_t port, uint64_t address, uint64_t value) {
  const uint64_t magic = 0xCAFEBABE12345678u;
  const uint8_t put_request = 33;  // one past the reserved id of its connection manager, which is UCT_AM_ID_MAX (32)
  const uint32_t header_bytes = 20;
  const uint64_t length = sizeof(value);
  const uint32_t sequence = 1;
  std::string bytes;
  Append(&bytes, &magic, 8);
  Append(&bytes, &put_request, 1);
  Append(&bytes, &header_bytes, 4);
  Append(&bytes, &address, 8);
  Append(&bytes, &length, 8);
  Append(&bytes, &sequence, 4);
  Append(&bytes, &value, 8);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = host;
  to.sin_port = htons(port);
  Harm harm;
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    for (int i = 0; i < 300 && !harm.wrote && !harm.killed; ++i) {
      absl::SleepFor(absl::Milliseconds(1));
      harm.wrote = ReadMemory(peer->pid(), address) == value;
      harm.killed = peer->Dead();
    }
  }
  close(fd);
  for (int i = 0; i < 300 && !harm.killed && !harm.wrote; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    harm.killed = peer->Dead();
  }
  return harm;
}

// UCX 1.13.1 serves such requests from whoever connects, UCX_TCP_PUT_ENABLE=n or not, and dies of an assertion when their
// sender leaves. So what guards a worker is that its UCX ports are on loopback, for users of this host only. If this test
// fails because the request does no harm, UCX has changed for the better: correct docs/TRANSPORT.md.
TEST(UcxRawPutTest, WhoeverReachesAUcxPortHarmsTheWorkerAndOnlyThisHostReachesIt) {
  PeerProcess peer("p0", std::string(32, 'k'), 16);
  peer.Export("r1", 1, 4, 7);
  const auto listeners = Listeners(peer.pid());
  EXPECT_FALSE(listeners.empty());
  for (const auto& [host, port] : listeners) EXPECT_EQ(ntohl(host) >> 24, 127u) << "a port beyond loopback: " << port;
  const uint64_t address = PoolAddress(peer.pid()) + 4096;
  const uint64_t value = ReadMemory(peer.pid(), address) + 1;
  // Which port serves the transport is not told from outside, and numbers are in no order: one process, each port in turn.
  Harm harm;
  for (const auto& [host, port] : listeners) {
    harm = Put(&peer, host, port, address, value);
    if (harm.wrote || harm.killed) break;
  }
  peer.Signal(SIGKILL);  // it may be dying
  peer.Bury();
  std::printf("  a PUT request: %s, %s\n", harm.wrote ? "memory written" : "memory not seen written",
              harm.killed ? "process dead" : "process alive");
  EXPECT_TRUE(harm.wrote || harm.killed);
}

}  // namespace
}  // namespace baton::kvtransfer
