// Throughput of the hand-over beside UCX's own active messages, at the same block size, transport and memory, in one run:
// every round measures each of them once, one after the other, so that what else the machine does hits all alike.
//
//   bazel run //tests/bench:transfer_bench -- [--rounds=7] [--mib=64] [--sizes=262144,1048576,4194304,16777216]
//                                             [--certs=DIR] [--json=FILE] [--realtime]
//
// Needs ucx_perftest (Debian: ucx-utils). DIR is made by deploy/certs/make_certs.sh; without it there is no TLS column.
// Each figure is the median over rounds; a ratio is the median of the rounds' ratios. A fetch, and a run of a reference,
// is --mib (at least 4 blocks). What is fetched, at both ends:
//   one    the same memory for every block, as ucx_perftest does, which is the reference
//   many   different memory for every block, as KV is; the reference is ucx_stream.h, the same messages over such memory
// Senders have one processor, receivers another. --realtime runs everything at real-time priority (round robin), for a
// machine that has other work.
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/bench_clock.h"
#include "tests/bench/transfer_lane.h"
#include "tests/bench/ucx_stream.h"

namespace baton::bench {
namespace {

constexpr const char* kCarriers[] = {"shm", "tcp"};
constexpr const char* kChecks[] = {"off", "sum", "tag"};

struct Options {
  int rounds = 7;
  uint64_t bytes = 64 << 20;
  std::vector<size_t> sizes = {256 << 10, 1 << 20, 4 << 20, 16 << 20};
  std::string certs, json;
};

// All there is to measure at one block size, and what was measured, by name ("shm/off/one", "shm/perftest", ...).
class SizeBench {
 public:
  SizeBench(const Options& options, size_t size)
      : options_(options), size_(size),
        num_blocks_(std::max<int64_t>(4, static_cast<int64_t>(options.bytes / size))) {
    std::vector<Way> ways;
    for (const char* carrier : kCarriers) {
      for (const char* checks : kChecks) ways.push_back({carrier, checks});
      streams_[absl::StrCat(carrier, "/one")] = std::make_unique<UcxStream>(carrier, size, 1);
      streams_[absl::StrCat(carrier, "/many")] = std::make_unique<UcxStream>(carrier, size, num_blocks_);
    }
    ways.push_back({"grpc", "sum"});
    if (!options.certs.empty()) ways.push_back({"tls", "sum"});
    for (const Way& way : ways) {
      lanes_[way.name()] = std::make_unique<TransferLane>(way, size, num_blocks_, options.certs);
      lanes_[way.name()]->Fetch(Memory::kMany);  // connects, touches pages
    }
    for (auto& [name, stream] : streams_) stream->Run(num_blocks_);
  }

  // False: ucx_perftest does not run.
  bool Round() {
    for (const std::string carrier : kCarriers) {
      const double perftest = UcxPerftest(carrier, size_, options_.bytes);
      if (perftest == 0) return false;
      speed_[carrier + "/perftest"].push_back(perftest);
      for (const std::string memory : {"one", "many"}) {
        const double stream = streams_[carrier + "/" + memory]->Run(num_blocks_);
        speed_[carrier + "/stream/" + memory].push_back(stream);
        for (const std::string checks : kChecks) {
          const double s = lanes_[carrier + "/" + checks]->Fetch(memory == "one" ? Memory::kOne : Memory::kMany);
          const std::string name = carrier + "/" + checks + "/" + memory;
          speed_[name].push_back(s);
          ratio_[name].push_back(s / (memory == "one" ? perftest : stream));
        }
      }
    }
    for (const char* name : {"grpc/sum", "tls/sum"}) {
      if (auto lane = lanes_.find(name); lane != lanes_.end()) speed_[name].push_back(lane->second->Fetch(Memory::kMany));
    }
    return true;
  }

  void Print(nlohmann::ordered_json* rows) const {
    for (const std::string carrier : kCarriers) {
      for (const std::string memory : {"one", "many"}) {
        const std::string reference = memory == "one" ? carrier + "/perftest" : carrier + "/stream/many";
        nlohmann::ordered_json row = {{"block_bytes", size_}, {"transport", carrier}, {"memory", memory}};
        const std::string& via = lanes_.at(carrier + "/sum")->detail();
        std::printf("%9zu %-4s %-5s %9.2f |", size_, carrier.c_str(), memory.c_str(), Of(reference));
        row["via"] = via;
        row["reference_gb_s"] = Of(reference);
        row["stream_gb_s"] = Of(carrier + "/stream/" + memory);
        for (const std::string checks : kChecks) {
          const std::string name = carrier + "/" + checks + "/" + memory;
          std::printf(" %9.2f %4.0f%% |", Of(name), 100 * Median(ratio_.at(name)));
          row[checks + "_gb_s"] = Of(name);
          row[checks + "_ratio"] = Median(ratio_.at(name));
          row[checks + "_ratios"] = ratio_.at(name);
        }
        std::printf(" %9.2f %9.2f  %s\n", Of("grpc/sum"), Of("tls/sum"), via.c_str());
        row["grpc_gb_s"] = Of("grpc/sum");
        row["grpc_tls_gb_s"] = Of("tls/sum");
        rows->push_back(std::move(row));
      }
    }
    std::fflush(stdout);
  }

 private:
  double Of(const std::string& name) const {
    const auto it = speed_.find(name);
    return it == speed_.end() ? 0 : Median(it->second);
  }

  const Options& options_;
  const size_t size_;
  const int64_t num_blocks_;
  std::map<std::string, std::unique_ptr<TransferLane>> lanes_;
  std::map<std::string, std::unique_ptr<UcxStream>> streams_;
  std::map<std::string, std::vector<double>> speed_;
  std::map<std::string, std::vector<double>> ratio_;
};

int Run(const Options& options) {
  PinTo(0);
  nlohmann::ordered_json report = {{"rounds", options.rounds}, {"bytes_a_fetch", options.bytes}};
  report["rows"] = nlohmann::ordered_json::array();
  std::printf("%9s %-4s %-5s %9s | %15s | %15s | %15s | %9s %9s  %s\n", "block", "by", "of", "reference", "unchecked",
              "checksums", "+ tags", "grpc", "grpc TLS", "GB/s (of the reference)");
  for (size_t size : options.sizes) {
    SizeBench bench(options, size);
    for (int round = 0; round < options.rounds; ++round) {
      if (bench.Round()) continue;
      std::fprintf(stderr, "ucx_perftest did not run; it is in Debian's package ucx-utils\n");
      return 1;
    }
    bench.Print(&report["rows"]);
  }
  if (!options.json.empty()) std::ofstream(options.json) << report.dump(2) << "\n";
  return 0;
}

int Main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--lane-peer" && argc == 7) {
    return TransferLane::Peer({argv[2], argv[3]}, std::stoul(argv[4]), std::stol(argv[5]), argv[6]);
  }
  if (first == "--stream-sender" && argc == 5) {
    return UcxStream::Sender(argv[2], std::stoul(argv[3]), std::stol(argv[4]));
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
    } else if (flag.first == "--realtime") {
      const sched_param priority{.sched_priority = 1};
      if (sched_setscheduler(0, SCHED_RR, &priority) != 0) {
        std::fprintf(stderr, "--realtime: this user may not have real-time priority\n");
        return 2;
      }
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
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
