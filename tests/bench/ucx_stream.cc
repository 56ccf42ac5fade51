#include "tests/bench/ucx_stream.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace baton::bench {
namespace {

constexpr unsigned kMessage = 1;
constexpr int kWindow = 16;
constexpr char kShmTransports[] = "sysv,posix,cma,self";

void Must(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "ucx_stream: %s failed\n", what);
  exit(1);
}

std::byte* MapBuffers(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Must(base != MAP_FAILED, "mmap");
  (void)madvise(base, bytes, MADV_HUGEPAGE);
  std::memset(base, 1, bytes);
  return static_cast<std::byte*>(base);
}

ucp_worker_h StartWorker(absl::string_view carrier) {
  ucp_config_t* config = nullptr;
  Must(ucp_config_read(nullptr, nullptr, &config) == UCS_OK, "ucp_config_read");
  if (carrier == "tcp") {
    ucp_config_modify(config, "TLS", "tcp");
    ucp_config_modify(config, "NET_DEVICES", "lo");
  } else {
    ucp_config_modify(config, "TLS", kShmTransports);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  Must(ucp_init(&params, config, &context) == UCS_OK, "ucp_init");
  ucp_config_release(config);
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  Must(ucp_worker_create(context, &worker_params, &worker) == UCS_OK, "ucp_worker_create");
  return worker;
}

}  // namespace

void PinTo(int cpu) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

struct UcxStream::Receiver {
  ucp_worker_h worker = nullptr;
  std::byte* buffers = nullptr;
  size_t size = 0;
  int64_t num_buffers = 0;
  int64_t begun = 0, arrived = 0;

  static void OnArrived(void* request, ucs_status_t status, size_t, void* user_data) {
    Must(status == UCS_OK, "receiving");
    ++static_cast<Receiver*>(user_data)->arrived;
    if (request != nullptr) ucp_request_free(request);
  }
  static ucs_status_t OnMessage(void* arg, const void*, size_t, void* data, size_t length,
                                const ucp_am_recv_param_t* param) {
    auto* self = static_cast<Receiver*>(arg);
    Must(length == self->size, "a message's size");
    std::byte* to = self->buffers + static_cast<size_t>(self->begun++ % self->num_buffers) * self->size;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(to, data, length);
      ++self->arrived;
      return UCS_OK;
    }
    ucp_request_param_t receive{};
    receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    receive.cb.recv_am = &OnArrived;
    receive.user_data = self;
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(self->worker, data, to, length, &receive);
    if (request == nullptr) ++self->arrived;
    Must(!UCS_PTR_IS_ERR(request), "ucp_am_recv_data_nbx");
    return UCS_INPROGRESS;
  }
};

UcxStream::UcxStream(absl::string_view carrier, size_t size, int64_t num_buffers) : receiver_(new Receiver) {
  Receiver& r = *receiver_;
  r.size = size;
  r.num_buffers = num_buffers;
  r.buffers = MapBuffers(size * static_cast<size_t>(num_buffers));
  r.worker = StartWorker(carrier);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                       UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessage;
  handler.cb = &Receiver::OnMessage;
  handler.arg = &r;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  Must(ucp_worker_set_am_recv_handler(r.worker, &handler) == UCS_OK, "ucp_worker_set_am_recv_handler");
  ucp_address_t* address = nullptr;
  size_t length = 0;
  Must(ucp_worker_get_address(r.worker, &address, &length) == UCS_OK, "ucp_worker_get_address");
  int to[2];
  Must(pipe2(to, O_CLOEXEC) == 0, "pipe2");
  pid_ = fork();
  if (pid_ == 0) {
    dup2(to[0], 0);
    execl("/proc/self/exe", "transfer_bench", "--stream-sender", std::string(carrier).c_str(),
          absl::StrCat(size).c_str(), absl::StrCat(num_buffers).c_str(), nullptr);
    _exit(127);
  }
  close(to[0]);
  in_ = fdopen(to[1], "w");
  const absl::string_view bytes(reinterpret_cast<const char*>(address), length);
  std::fprintf(in_, "%s\n", absl::BytesToHexString(bytes).c_str());
  ucp_worker_release_address(r.worker, address);
}

UcxStream::~UcxStream() {
  fclose(in_);
  kill(pid_, SIGKILL);  // it may still wait for an acknowledgement that nobody sends any more
  waitpid(pid_, nullptr, 0);
  munmap(receiver_->buffers, receiver_->size * static_cast<size_t>(receiver_->num_buffers));
}

double UcxStream::Run(int64_t count) {
  Receiver& r = *receiver_;
  r.begun = r.arrived = 0;
  const absl::Time begin = absl::Now();
  std::fprintf(in_, "%lld\n", static_cast<long long>(count));
  std::fflush(in_);
  while (r.arrived < count) ucp_worker_progress(r.worker);
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  // Its last acknowledgements: the sender takes the next count only then.
  for (const absl::Time until = absl::Now() + absl::Milliseconds(1); absl::Now() < until;) ucp_worker_progress(r.worker);
  return static_cast<double>(count) * static_cast<double>(r.size) / seconds / 1e9;
}

int UcxStream::Sender(absl::string_view carrier, size_t size, int64_t num_buffers) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PinTo(1);
  std::byte* const buffers = MapBuffers(size * static_cast<size_t>(num_buffers));
  ucp_worker_h worker = StartWorker(carrier);
  std::string line;
  std::getline(std::cin, line);
  const std::string address = absl::HexStringToBytes(line);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  ucp_ep_h ep = nullptr;
  Must(ucp_ep_create(worker, &params, &ep) == UCS_OK, "ucp_ep_create");
  int in_flight = 0;
  ucp_request_param_t send{};
  send.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  send.user_data = &in_flight;
  send.cb.send = [](void* request, ucs_status_t, void* user_data) {
    --*static_cast<int*>(user_data);
    ucp_request_free(request);
  };
  int64_t count = 0;
  while (std::getline(std::cin, line) && absl::SimpleAtoi(line, &count)) {
    for (int64_t i = 0; i < count || in_flight > 0;) {
      if (i < count && in_flight < kWindow) {
        const std::byte* from = buffers + static_cast<size_t>(i++ % num_buffers) * size;
        ++in_flight;
        const ucs_status_ptr_t request = ucp_am_send_nbx(ep, kMessage, nullptr, 0, from, size, &send);
        Must(!UCS_PTR_IS_ERR(request), "ucp_am_send_nbx");
        if (request == nullptr) --in_flight;
      }
      ucp_worker_progress(worker);
    }
  }
  return 0;
}

double UcxPerftest(absl::string_view carrier, size_t size, uint64_t bytes) {
  static int next_port = 20000 + getpid() % 20000;
  const std::string port = absl::StrCat(next_port++);
  const std::string env = carrier == "tcp" ? "UCX_TLS=tcp UCX_NET_DEVICES=lo" : absl::StrCat("UCX_TLS=", kShmTransports);
  const std::string server = absl::StrCat("exec taskset -c 0 env ", env, " ucx_perftest -p ", port, " >/dev/null 2>&1");
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl("/bin/sh", "sh", "-c", server.c_str(), nullptr);
    _exit(127);
  }
  double speed = 0;
  for (int attempt = 0; attempt < 20 && speed == 0; ++attempt) {
    absl::SleepFor(absl::Milliseconds(100));  // until it listens
    const std::string client = absl::StrCat("taskset -c 1 env ", env, " ucx_perftest 127.0.0.1 -p ", port,
                                            " -t ucp_am_bw -f -w 4 -s ", size, " -n ",
                                            std::max<uint64_t>(8, bytes / size), " 2>/dev/null");
    FILE* out = popen(client.c_str(), "r");
    char line[512];
    while (fgets(line, sizeof(line), out) != nullptr) {
      // iterations, then latency: median, average, overall; then MB/s (of 2^20): average, overall; then messages/s.
      const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
      double mib_s = 0;
      if (words.size() == 8 && absl::SimpleAtod(words[5], &mib_s)) speed = mib_s * 1048576 / 1e9;
    }
    pclose(out);
  }
  kill(pid, SIGTERM);
  waitpid(pid, nullptr, 0);
  return speed;
}

}  // namespace baton::bench
