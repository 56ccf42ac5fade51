// Throughput of the hand-over beside ucx_perftest's active messages, at the same block size and transport, in one run:
// every round measures each of them once, one after the other, so that what else the machine does hits all alike.
//
//   bazel run //tests/bench:transfer_bench -- [--rounds=7] [--mib=64] [--sizes=262144,1048576,4194304,16777216]
//                                             [--certs=DIR] [--json=FILE]
//
// Needs ucx_perftest (Debian: ucx-utils). DIR is made by deploy/certs/make_certs.sh; without it there is no TLS column.
// Each figure is the median over rounds; a ratio is the median of the rounds' ratios. What is fetched is a set of --mib
// (at least 4 blocks), all different memory, while ucx_perftest sends one buffer again and again.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/rpc/security.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/ucx_transport.h"

namespace baton::kvtransfer {
namespace {

// 4 MiB a layer would be fewer than one block of 256 KiB, so a layer is 64 KiB: 16 tokens, 8 heads of 128, f16, K and V.
kernels::KvLayout LayoutOf(size_t block_bytes) {
  return {.dtype = kernels::DType::kF16,
          .block_size = 16,
          .num_layers = static_cast<int>(block_bytes / 65536),
          .num_kv_heads = 8,
          .head_dim = 128};
}

v1::ModelFingerprint Fingerprint() {
  v1::ModelFingerprint f;
  f.set_weights(std::string(64, 'a'));
  f.set_config(std::string(64, 'b'));
  f.set_tokenizer(std::string(64, 'c'));
  f.set_numerics_class("f32");
  return f;
}

const std::string kKey(32, 'k');

// One way to move blocks: "shm/off", "tcp/sum", "shm/tag", "grpc/sum", "tls/sum".
struct Way {
  std::string carrier;  // shm, tcp, grpc, tls
  std::string checks;   // off, sum, tag
  std::string name() const { return carrier + "/" + checks; }
};

rpc::Security SecurityOf(const std::string& certs, rpc::PeerRole role) {
  v1::Config config;
  config.set_tls_dir(certs);
  config.set_tls_reload_s(60);
  absl::StatusOr<rpc::Security> security = rpc::Security::FromConfig(config, {role});
  if (!security.ok()) {
    std::cerr << security.status() << "\n";
    exit(1);
  }
  return *security;
}

UcxOptions UcxFor(const Way& way) {
  UcxOptions options;
  options.only_transports = way.carrier == "tcp" ? "tcp" : "";
  return options;
}

GrpcKvOptions GrpcFor(const Way& way, const std::string& certs, rpc::PeerRole role) {
  GrpcKvOptions options;
  if (way.carrier == "tls") options.security = SecurityOf(certs, role);
  return options;
}

bool IsUcx(const Way& way) { return way.carrier == "shm" || way.carrier == "tcp"; }

// Receivers on one core, senders on another, ucx_perftest's as ours: where a busy machine puts them is not the question.
void Pin(int cpu) {
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

// The sending process: answers each line on stdin with a ticket for all its blocks.
int Peer(const Way& way, size_t block_bytes, int64_t num_blocks, const std::string& certs) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Pin(1);
  const kernels::KvLayout layout = LayoutOf(block_bytes);
  auto pool = *kvcache::BlockPool::Create(layout, num_blocks);
  Exporter exporter({.worker_name = "p0",
                     .incarnation = RandomIncarnation(),
                     .key = *ClusterKey::FromBytes(kKey),
                     .layout = layout,
                     .fingerprint = Fingerprint(),
                     .reap_interval = absl::Seconds(1),
                     .block_tags = way.checks == "tag",
                     .unchecked_for_bench = way.checks == "off"});
  std::unique_ptr<TransportServer> server;
  if (IsUcx(way)) {
    server = *UcxServer::Start(&exporter, UcxFor(way));
  } else {
    server = *GrpcKvServer::Start(&exporter, GrpcFor(way, certs, rpc::PeerRole::kPrefill));
  }
  {
    kvcache::BlockLease all = *pool->AllocateLease(num_blocks);
    for (int64_t i = 0; i < num_blocks; ++i) std::memset(all.bytes(i).data(), static_cast<int>(i + 1), block_bytes);
  }
  std::string line;
  for (int n = 0; std::getline(std::cin, line); ++n) {
    while (exporter.counters().outstanding > 0) absl::SleepFor(absl::Milliseconds(1));
    auto ticket = exporter.ExportSealed({.request_id = absl::StrCat("r", n),
                                         .epoch = 1,
                                         .num_tokens = static_cast<uint32_t>(num_blocks * 16),
                                         .lease = absl::Seconds(60)},
                                        *pool->AllocateLease(num_blocks));
    std::cout << absl::BytesToHexString(ticket->SerializeAsString()) << std::endl;
  }
  server->Shutdown();
  return 0;
}

// The receiving side of one way, and its peer.
class Lane {
 public:
  Lane(const Way& way, size_t block_bytes, int64_t num_blocks, const std::string& certs)
      : num_blocks_(num_blocks), pool_(*kvcache::BlockPool::Create(LayoutOf(block_bytes), num_blocks)) {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      execl("/proc/self/exe", "transfer_bench", "--peer", way.carrier.c_str(), way.checks.c_str(),
            absl::StrCat(block_bytes).c_str(), absl::StrCat(num_blocks).c_str(), certs.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    in_ = fdopen(to[1], "w");
    out_ = fdopen(from[0], "r");
    ReceiverOptions receiver{.key = *ClusterKey::FromBytes(kKey),
                             .layout = LayoutOf(block_bytes),
                             .fingerprint = Fingerprint(),
                             .consumer = RandomIncarnation(),
                             .unchecked_for_bench = way.checks == "off"};
    if (IsUcx(way)) {
      client_ = *UcxClient::Start(receiver, UcxFor(way));
    } else {
      client_ = MakeGrpcKvClient(receiver, GrpcFor(way, certs, rpc::PeerRole::kDecode));
    }
  }
  ~Lane() {
    fclose(in_);
    fclose(out_);
    waitpid(pid_, nullptr, 0);
  }

  // GB/s of one fetch of everything.
  double FetchOnce() {
    fputs("export\n", in_);
    fflush(in_);
    std::string hex;
    for (int c = fgetc(out_); c != EOF && c != '\n'; c = fgetc(out_)) hex.push_back(static_cast<char>(c));
    FetchRequest request;
    if (!request.ticket.ParseFromString(absl::HexStringToBytes(hex))) abort();
    request.destination = *pool_->AllocateLease(num_blocks_);
    request.deadline = absl::Now() + absl::Minutes(2);
    Mutex mu;
    CondVar cv;
    bool done = false;
    double speed = 0;
    const absl::Time begin = absl::Now();
    client_->Fetch(std::move(request), [&](absl::StatusOr<FetchResult> result, kvcache::BlockLease) {
      const absl::Duration took = absl::Now() - begin;
      if (!result.ok()) {
        std::cerr << result.status() << "\n";
        exit(1);
      }
      MutexLock lock(&mu);
      detail_ = result->stats.detail;
      speed = static_cast<double>(result->stats.bytes) / absl::ToDoubleSeconds(took) / 1e9;
      done = true;
      cv.Signal();
    });
    MutexLock lock(&mu);
    while (!done) cv.Wait(&mu);
    return speed;
  }
  const std::string& detail() const { return detail_; }

 private:
  const int64_t num_blocks_;
  std::shared_ptr<kvcache::BlockPool> pool_;
  std::unique_ptr<TransportClient> client_;
  pid_t pid_ = -1;
  FILE* in_ = nullptr;
  FILE* out_ = nullptr;
  std::string detail_;
};

// GB/s of ucx_perftest; 0 when it did not run.
double Perftest(const std::string& carrier, size_t size, uint64_t bytes) {
  static int next_port = 20000 + getpid() % 20000;
  const std::string port = absl::StrCat(next_port++);
  const std::string env = carrier == "tcp" ? "UCX_TLS=tcp UCX_NET_DEVICES=lo" : "UCX_TLS=sysv,posix,cma,self";
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
    const std::string client =
        absl::StrCat("taskset -c 1 env ", env, " ucx_perftest 127.0.0.1 -p ", port, " -t ucp_am_bw -f -w 4 -s ", size, " -n ",
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

double Median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Options {
  int rounds = 7;
  uint64_t bytes = 64 << 20;
  std::vector<size_t> sizes = {256 << 10, 1 << 20, 4 << 20, 16 << 20};
  std::string certs, json;
};

int Run(const Options& options) {
  Pin(0);
  nlohmann::ordered_json report;
  report["rounds"] = options.rounds;
  report["bytes_a_fetch"] = options.bytes;
  std::printf("%9s %-5s %9s | %9s %5s | %9s %5s | %9s %5s | %9s %9s  %s\n", "block", "by", "perftest", "unchecked", "", "checksums",
              "", "+ tags", "", "grpc", "grpc TLS", "GB/s (of ucx_perftest)");
  for (size_t size : options.sizes) {
    const int64_t num_blocks = std::max<int64_t>(4, static_cast<int64_t>(options.bytes / size));
    std::map<std::string, std::unique_ptr<Lane>> lanes;
    std::vector<Way> ways;
    for (const char* carrier : {"shm", "tcp"}) {
      for (const char* checks : {"off", "sum", "tag"}) ways.push_back({carrier, checks});
    }
    ways.push_back({"grpc", "sum"});
    if (!options.certs.empty()) ways.push_back({"tls", "sum"});
    for (const Way& way : ways) {
      lanes[way.name()] = std::make_unique<Lane>(way, size, num_blocks, options.certs);
      lanes[way.name()]->FetchOnce();  // connects, touches pages
    }
    std::map<std::string, std::vector<double>> speed;  // by way; "shm" and "tcp" are ucx_perftest
    std::map<std::string, std::vector<double>> ratio;
    for (int round = 0; round < options.rounds; ++round) {
      for (const char* carrier : {"shm", "tcp"}) {
        const double reference = Perftest(carrier, size, options.bytes);
        if (reference == 0) {
          std::fprintf(stderr, "ucx_perftest did not run; it is in Debian's package ucx-utils\n");
          return 1;
        }
        speed[carrier].push_back(reference);
        for (const char* checks : {"off", "sum", "tag"}) {
          const std::string name = Way{carrier, checks}.name();
          const double s = lanes[name]->FetchOnce();
          speed[name].push_back(s);
          ratio[name].push_back(s / reference);
        }
      }
      for (const char* name : {"grpc/sum", "tls/sum"}) {
        if (lanes.count(name) > 0) speed[name].push_back(lanes[name]->FetchOnce());
      }
    }
    for (const char* carrier : {"shm", "tcp"}) {
      const std::string c = carrier;
      std::printf("%9zu %-5s %9.2f |", size, carrier, Median(speed[c]));
      nlohmann::ordered_json row = {{"block_bytes", size}, {"transport", c}, {"ucx_perftest_gb_s", Median(speed[c])}};
      row["via"] = lanes[c + "/sum"]->detail();
      for (const char* checks : {"off", "sum", "tag"}) {
        const std::string name = Way{c, checks}.name();
        std::printf(" %9.2f %4.0f%% |", Median(speed[name]), 100 * Median(ratio[name]));
        row[absl::StrCat(checks, "_gb_s")] = Median(speed[name]);
        row[absl::StrCat(checks, "_ratio")] = Median(ratio[name]);
        row[absl::StrCat(checks, "_ratios")] = ratio[name];
      }
      std::printf(" %9.2f %9.2f  %s\n", Median(speed["grpc/sum"]), Median(speed["tls/sum"]),
                  lanes[c + "/sum"]->detail().c_str());
      row["grpc_gb_s"] = Median(speed["grpc/sum"]);
      row["grpc_tls_gb_s"] = Median(speed["tls/sum"]);
      report["rows"].push_back(std::move(row));
    }
    std::fflush(stdout);
  }
  if (!options.json.empty()) std::ofstream(options.json) << report.dump(2) << "\n";
  return 0;
}

int Main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc >= 6 && std::string(argv[1]) == "--peer") {
    return Peer({argv[2], argv[3]}, std::stoul(argv[4]), std::stol(argv[5]), argc > 6 ? argv[6] : "");
  }
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> flag = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    uint64_t number = 0;
    const bool is_number = absl::SimpleAtoi(flag.second, &number) && number > 0;
    if (flag.first == "--rounds" && is_number) {
      options.rounds = static_cast<int>(number);
    } else if (flag.first == "--mib" && is_number) {
      options.bytes = number << 20;
    } else if (flag.first == "--certs") {
      options.certs = flag.second;
    } else if (flag.first == "--json") {
      options.json = flag.second;
    } else if (flag.first == "--sizes") {
      options.sizes.clear();
      for (absl::string_view text : absl::StrSplit(flag.second, ',')) {
        if (!absl::SimpleAtoi(text, &number) || number < 65536 || number % 65536 != 0) {
          std::fprintf(stderr, "a size is a multiple of 65536\n");
          return 2;
        }
        options.sizes.push_back(number);
      }
    } else {
      std::fprintf(stderr, "unknown flag %s; the top of transfer_bench.cc has them\n", argv[i]);
      return 2;
    }
  }
  return Run(options);
}

}  // namespace
}  // namespace baton::kvtransfer

int main(int argc, char** argv) { return baton::kvtransfer::Main(argc, argv); }
