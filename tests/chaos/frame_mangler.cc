#include "tests/chaos/frame_mangler.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace baton::e2e {
namespace {

constexpr size_t kHeader = 9;
constexpr size_t kPreface = 24;  // "PRI * HTTP/2.0..."
constexpr char kData = 0;

size_t PayloadLength(const std::string& bytes) {
  const auto at = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
  return at(0) << 16 | at(1) << 8 | at(2);
}
void SetPayloadLength(std::string* frame, size_t length) {
  for (size_t i = 0; i < 3; ++i) (*frame)[i] = static_cast<char>(length >> (16 - 8 * i));
}

sockaddr_in Local(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool SendAll(int fd, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

FrameMangler::FrameMangler(int target_port, uint64_t seed) : target_port_(target_port), seed_(seed) {
  listen_fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Local(0);
  socklen_t length = sizeof(address);
  if (::bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listen_fd_, 64) != 0) abort();
  ::getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
  accept_ = std::thread([this] { Accept(); });
}

FrameMangler::~FrameMangler() {
  stopping_ = true;
  ::shutdown(listen_fd_, SHUT_RDWR);
  accept_.join();
  ::close(listen_fd_);
  std::vector<std::unique_ptr<Relay>> relays;
  {
    MutexLock lock(&mu_);
    relays.swap(relays_);
  }
  for (auto& relay : relays) End(relay.get());
}

void FrameMangler::End(Relay* relay) {
  ::shutdown(relay->client, SHUT_RDWR);
  ::shutdown(relay->server, SHUT_RDWR);
  relay->up.join();
  relay->down.join();
  ::close(relay->client);
  ::close(relay->server);
}

void FrameMangler::Accept() {
  while (!stopping_) {
    const int client = ::accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in target = Local(target_port_);
    if (::connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) != 0) {
      ::close(client);
      ::close(server);
      continue;
    }
    const int on = 1;
    for (const int fd : {client, server}) ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    std::vector<std::unique_ptr<Relay>> ended;
    {
      MutexLock lock(&mu_);
      for (auto& relay : relays_) {
        if (relay->over) ended.push_back(std::move(relay));
      }
      std::erase(relays_, nullptr);
    }
    for (auto& relay : ended) End(relay.get());
    auto relay = std::make_unique<Relay>();
    relay->client = client;
    relay->server = server;
    Relay* raw = relay.get();
    relay->up = std::thread([this, raw, seed = ++seed_] { Pass(raw, raw->client, raw->server, seed, true); });
    relay->down = std::thread([this, raw, seed = ++seed_] { Pass(raw, raw->server, raw->client, seed, false); });
    MutexLock lock(&mu_);
    relays_.push_back(std::move(relay));
  }
}

void FrameMangler::Pass(Relay* relay, int from, int to, uint64_t seed, bool from_client) {
  std::mt19937_64 random(seed);
  std::string buffer, held;
  size_t plain = from_client ? kPreface : 0;
  char chunk[16384];
  for (bool open = true; open;) {
    const ssize_t n = ::recv(from, chunk, sizeof(chunk), 0);
    if (n <= 0) break;
    buffer.append(chunk, static_cast<size_t>(n));
    std::string out;
    const size_t through = std::min(plain, buffer.size());
    out.append(buffer, 0, through);
    buffer.erase(0, through);
    plain -= through;
    while (open && plain == 0 && buffer.size() >= kHeader && buffer.size() >= kHeader + PayloadLength(buffer)) {
      std::string frame = buffer.substr(0, kHeader + PayloadLength(buffer));
      buffer.erase(0, frame.size());
      const int one_in = one_in_;
      const bool data = frame[3] == kData && frame.size() > kHeader + 8;
      frames_ += data;
      if (data && one_in > 0 && random() % static_cast<uint64_t>(one_in) == 0) {
        open = Mangle(std::move(frame), &held, &random, &out);
        continue;
      }
      if (data && random() % 4 == 0) {
        MutexLock lock(&mu_);
        other_ = frame.substr(kHeader);
      }
      out += frame;
      // What was held back comes after the next frame that passed.
      if (!held.empty() && frame[3] == kData) out += std::exchange(held, {});
    }
    if (!SendAll(to, out)) break;
  }
  ::shutdown(relay->client, SHUT_RDWR);
  ::shutdown(relay->server, SHUT_RDWR);
  relay->over = true;
}

std::string FrameMangler::AnotherPayload(const std::string& own) {
  MutexLock lock(&mu_);
  return other_.empty() ? own : other_;
}

bool FrameMangler::Mangle(std::string frame, std::string* held, std::mt19937_64* random, std::string* out) {
  const auto below = [random](size_t n) { return static_cast<size_t>((*random)() % n); };
  const size_t payload = frame.size() - kHeader;
  const auto kind = static_cast<Mangling>(below(kNumManglings));
  ++done_[static_cast<size_t>(kind)];
  switch (kind) {
    case Mangling::kFlip:
      frame[kHeader + below(payload)] ^= static_cast<char>(1 << below(8));
      *out += frame;
      return true;
    case Mangling::kTruncate: {
      // Either the frame says that it is shorter, or the connection ends in its middle.
      const size_t kept = below(payload);
      const bool cut = below(4) == 0;
      frame.resize(kHeader + kept);
      if (!cut) SetPayloadLength(&frame, kept);
      *out += frame;
      return !cut;
    }
    case Mangling::kRepeat:
      *out += frame;
      *out += frame;
      return true;
    case Mangling::kReorder:
      *out += std::exchange(*held, std::move(frame));
      return true;
    case Mangling::kForge: {
      // Bytes of another stream's frame, or none that make sense, under this one's header.
      std::string other = AnotherPayload(frame.substr(kHeader));
      if (below(2) == 0) {
        for (char& c : other) c = static_cast<char>(below(256));
      }
      other.resize(payload, '\0');
      *out += frame.substr(0, kHeader) + other;
      return true;
    }
  }
  return true;
}

}  // namespace baton::e2e
