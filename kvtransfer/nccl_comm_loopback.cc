// NCCL for tests: two ranks over a Unix socket in the abstract namespace. A thread of each communicator does one part of a
// group after the other, as a stream does; staging memory is ordinary memory (the emulated device copies from and to it too).
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "kvtransfer/nccl_comm.h"
#include "kvtransfer/nccl_loopback.h"
#include "kvtransfer/ticket.h"

namespace baton::kvtransfer {
namespace {

std::atomic<int> num_comms{0};

// Sockets of ids whose rank 0 has not begun: NewNcclId listens, as NCCL does.
struct Listeners {
  Mutex mu;
  std::map<std::string, int> fds ABSL_GUARDED_BY(mu);
  static Listeners& Get() {
    static auto* const listeners = new Listeners();
    return *listeners;
  }
  int Take(const std::string& id) {
    MutexLock lock(&mu);
    const auto it = fds.find(id);
    if (it == fds.end()) return -1;
    const int fd = it->second;
    fds.erase(it);
    return fd;
  }
};

// The id's first 32 bytes name the socket, after a zero byte.
socklen_t AddressOf(const std::string& id, sockaddr_un* address) {
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  const std::string name = absl::StrCat("baton-nccl-", id.substr(0, 32));
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

class LoopbackComm final : public NcclComm {
 public:
  LoopbackComm(std::string id, int rank, int listener, size_t staging_bytes)
      : id_(std::move(id)), rank_(rank), listener_(listener), staging_(staging_bytes), stop_fd_(eventfd(0, EFD_CLOEXEC)) {
    ++num_comms;
    thread_ = std::thread([this] { Run(); });
  }
  ~LoopbackComm() override { Abort(); }

  absl::StatusOr<bool> Settled() override {
    MutexLock lock(&mu_);
    if (!error_.ok()) return error_;
    return made_;
  }
  absl::Status CopyIn(size_t offset, std::span<const std::byte> from) override {
    if (offset + from.size() > staging_.size()) return absl::InternalError("a copy beyond the staging buffer");
    std::memcpy(staging_.data() + offset, from.data(), from.size());
    return absl::OkStatus();
  }
  absl::Status CopyOut(size_t offset, std::span<std::byte> to) override {
    if (offset + to.size() > staging_.size()) return absl::InternalError("a copy beyond the staging buffer");
    std::memcpy(to.data(), staging_.data() + offset, to.size());
    return absl::OkStatus();
  }
  std::byte* staging() override { return staging_.data(); }
  absl::StatusOr<uint64_t> SendGroup(size_t offset, std::span<const size_t> sizes) override {
    return Add(/*sends=*/true, offset, sizes);
  }
  absl::StatusOr<uint64_t> ReceiveGroup(size_t offset, std::span<const size_t> sizes) override {
    return Add(/*sends=*/false, offset, sizes);
  }
  absl::StatusOr<bool> Completed(uint64_t group) override {
    MutexLock lock(&mu_);
    if (!error_.ok()) return error_;
    return group <= completed_;
  }
  void Abort() override {
    if (!thread_.joinable()) return;
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      if (error_.ok()) error_ = absl::UnavailableError("the communicator is aborted");
      wake_.SignalAll();
    }
    const uint64_t one = 1;
    (void)!write(stop_fd_, &one, sizeof(one));
    absl::SleepFor(absl::Milliseconds(LoopbackFaults().abort_ms.load()));
    thread_.join();
    for (const int fd : {stop_fd_, listener_, socket_}) {
      if (fd >= 0) close(fd);
    }
    --num_comms;
  }

 private:
  struct Group {
    bool sends = false;
    size_t offset = 0;
    std::vector<size_t> sizes;
  };

  absl::StatusOr<uint64_t> Add(bool sends, size_t offset, std::span<const size_t> sizes) {
    size_t end = offset;
    for (const size_t size : sizes) end += size;
    if (end > staging_.size()) return absl::InternalError("a group beyond the staging buffer");
    MutexLock lock(&mu_);
    if (!error_.ok()) return error_;
    groups_.push_back({sends, offset, {sizes.begin(), sizes.end()}});
    wake_.SignalAll();
    return ++added_;
  }

  void Run() {
    if (!Connect()) return Break("the peer did not come");
    if (rank_ == 1) absl::SleepFor(absl::Milliseconds(LoopbackFaults().slow_rank_1_ms.load()));
    {
      MutexLock lock(&mu_);
      made_ = true;
    }
    for (uint64_t number = 1;; ++number) {
      Group group;
      {
        MutexLock lock(&mu_);
        while (groups_.empty() && !stopping_) wake_.Wait(&mu_);
        if (stopping_) return;
        group = std::move(groups_.front());
        groups_.pop_front();
      }
      const NcclLoopbackFaults& faults = LoopbackFaults();
      if (faults.break_at_group == static_cast<int>(number)) return Report("unhandled system error");
      if (faults.hang_at_group == static_cast<int>(number)) return Hang();
      if (!Do(group, faults.corrupt_at_group == static_cast<int>(number))) return Break("the peer has vanished");
      MutexLock lock(&mu_);
      completed_ = number;
    }
  }

  bool Connect() {
    if (LoopbackFaults().init_hangs) {
      Hang();
      return false;
    }
    sockaddr_un address;
    const socklen_t size = AddressOf(id_, &address);
    if (rank_ == 0) {
      if (!WaitFor(listener_, POLLIN)) return false;
      socket_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } else {
      socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), size) != 0) return false;
    }
    // The rest of the id proves that the other end has it.
    std::string theirs(id_.size(), '\0');
    return socket_ >= 0 && Write(id_.data(), id_.size()) && Read(theirs.data(), theirs.size()) && theirs == id_;
  }

  bool Do(const Group& group, bool corrupt) {
    std::byte* at = staging_.data() + group.offset;
    for (const size_t size : group.sizes) {
      uint64_t announced = size;
      if (group.sends) {
        if (!Write(&announced, sizeof(announced)) || !Write(at, size)) return false;
      } else {
        if (!Read(&announced, sizeof(announced)) || announced != size || !Read(at, size)) return false;
        if (std::exchange(corrupt, false)) at[size / 2] ^= std::byte{4};
      }
      at += size;
    }
    return true;
  }

  // False: aborted meanwhile.
  bool WaitFor(int fd, short events) {
    pollfd fds[] = {{fd, events, 0}, {stop_fd_, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    return (fds[1].revents & POLLIN) == 0;
  }
  bool Write(const void* data, size_t size) {
    for (size_t done = 0; done < size;) {
      const ssize_t n = send(socket_, static_cast<const char*>(data) + done, size - done, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      done += n > 0 ? static_cast<size_t>(n) : 0;
      if (n < 0 && !WaitFor(socket_, POLLOUT)) return false;
    }
    return true;
  }
  bool Read(void* data, size_t size) {
    for (size_t done = 0; done < size;) {
      const ssize_t n = recv(socket_, static_cast<char*>(data) + done, size - done, 0);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
      done += n > 0 ? static_cast<size_t>(n) : 0;
      if (n < 0 && !WaitFor(socket_, POLLIN)) return false;
    }
    return true;
  }

  void Hang() { WaitFor(stop_fd_, POLLIN); }
  // The peer is gone.
  void Break(absl::string_view what) {
    if (!LoopbackFaults().reports_death) return Hang();
    Report(what);
  }
  void Report(absl::string_view what) {
    MutexLock lock(&mu_);
    if (error_.ok()) error_ = absl::UnavailableError(absl::StrCat("the communicator broke: ", what));
  }

  const std::string id_;
  const int rank_;
  const int listener_;
  std::vector<std::byte> staging_;
  const int stop_fd_;
  int socket_ = -1;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool made_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  std::deque<Group> groups_ ABSL_GUARDED_BY(mu_);
  uint64_t added_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t completed_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

NcclLoopbackFaults& LoopbackFaults() {
  static NcclLoopbackFaults faults;
  return faults;
}

int NumLoopbackComms() { return num_comms; }

absl::StatusOr<std::string> StartNccl(bool network_trusted) { return std::string("loopback"); }

absl::StatusOr<std::string> NewNcclId() {
  std::string id;
  while (id.size() < kNcclIdBytes) id += RandomIncarnation();
  id.resize(kNcclIdBytes);
  sockaddr_un address;
  const socklen_t size = AddressOf(id, &address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 || listen(fd, 1) != 0) {
    if (fd >= 0) close(fd);
    return absl::UnavailableError("no socket for a communicator");
  }
  Listeners& listeners = Listeners::Get();
  MutexLock lock(&listeners.mu);
  listeners.fds[id] = fd;
  return id;
}

absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Begin(const std::string& id, int rank, size_t staging_bytes) {
  if (id.size() != kNcclIdBytes) return absl::InvalidArgumentError("an id of NCCL has another size");
  const int listener = rank == 0 ? Listeners::Get().Take(id) : -1;
  if (rank == 0 && listener < 0) return absl::UnavailableError("the id is not of this process, or was used");
  return std::make_unique<LoopbackComm>(id, rank, listener, staging_bytes);
}

}  // namespace baton::kvtransfer
