// engine_bench --model FILE: speed of the engine's forward pass, in both phases, next to the machine's limits and to other
// engines. tests/bench/README.md has examples.
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/kernel_bench.h"
#include "tests/bench/model_bench.h"
#include "tests/bench/peaks.h"
#include "tests/bench/peer.h"
#include "tests/bench/report.h"

namespace baton::bench {
namespace {

struct Flags {
  std::string model, json, plots, commit, isa = "auto", numerics = "int", clock = "wall", preload;
  std::vector<std::string> peers;
  std::vector<int> prefill = {128, 512, 2048}, batch = {1, 4, 8, 16, 32}, context = {0, 2048};
  int threads = 1, cpu = -1, repetitions = 3, decode_steps = 32;
  size_t read_mib = 1024;
  bool kernels = false;
};

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (parts.size() == 2 && line.rfind("model name", 0) == 0) return parts[1];
  }
  return "unknown";
}

std::vector<Cell> Cells(const Flags& flags) {
  std::vector<Cell> cells;
  for (int tokens : flags.prefill) cells.push_back({.prefill = true, .tokens = tokens});
  for (int context : flags.context) {
    for (int batch : flags.batch) {
      cells.push_back({.prefill = false, .tokens = flags.decode_steps, .batch = batch, .context = context});
    }
  }
  return cells;
}

double MeasureOnce(const Cell& cell, ModelBench& bench) {
  return cell.prefill ? bench.Prefill(cell.tokens) : bench.Decode(cell.batch, cell.context, cell.tokens);
}

// Ours and every peer's in turn, `repetitions` times.
absl::Status MeasureCell(const Flags& flags, ClockKind clock, const std::vector<Peer>& peers, ModelBench& bench,
                         CellResult* result) {
  Cell warm_up = result->cell;
  warm_up.tokens = std::min(warm_up.tokens, warm_up.prefill ? 32 : 2);
  MeasureOnce(warm_up, bench);
  for (int i = 0; i < flags.repetitions; ++i) {
    result->ours.push_back(MeasureOnce(result->cell, bench));
    for (const Peer& peer : peers) {
      if (!peer.Runs(result->cell)) continue;
      const auto rate = peer.Run(result->cell, flags.model, flags.threads, flags.cpu, clock, flags.preload);
      if (!rate.ok()) return rate.status();
      result->peers[peer.name()].push_back(*rate);
    }
  }
  return absl::OkStatus();
}

int MaxTokens(const std::vector<Cell>& cells) {
  int max_tokens = 16;
  for (const Cell& cell : cells) {
    max_tokens = std::max(max_tokens, cell.prefill ? cell.tokens : cell.batch * (cell.context + cell.tokens + 16));
  }
  return max_tokens;
}

absl::Status Run(const Flags& flags) {
  const ClockKind clock = flags.clock == "cpu" ? ClockKind::kCpu : ClockKind::kWall;
  std::vector<Peer> peers;
  for (const std::string& text : flags.peers) {
    auto peer = Peer::Parse(text);
    if (!peer.ok()) return peer.status();
    peers.push_back(*std::move(peer));
  }
  const std::vector<Cell> cells = Cells(flags);
  const kernels::Isa isa = kernels::IsaFromName(flags.isa).value_or(kernels::Isa::kAuto);
  const kernels::NumericsClass numerics =
      kernels::NumericsFromName(flags.numerics).value_or(kernels::NumericsClass::kInt);
  auto bench = ModelBench::Load({flags.model, flags.threads, isa, numerics, MaxTokens(cells), clock});
  if (!bench.ok()) return bench.status();

  Report report;
  report.commit = flags.commit;
  report.model = flags.model.substr(flags.model.rfind('/') + 1);
  report.backend = (*bench)->backend().name();
  report.numerics = std::string(kernels::Name(numerics));
  report.processor = ProcessorName();
  report.clock = flags.clock;
  report.threads = flags.threads;
  report.load_seconds = (*bench)->load_seconds();
  report.peaks = PeakMeter(flags.threads, flags.read_mib << 20).Measure(clock);
  const model::GgufTensor* gate = (*bench)->file().FindTensor("blk.0.ffn_gate.weight");
  const bool integer = gate != nullptr && kernels::BlockElements(gate->dtype) > 1;
  for (const Cell& cell : cells) {
    CellResult result;
    result.cell = cell;
    if (absl::Status status = MeasureCell(flags, clock, peers, **bench, &result); !status.ok()) return status;
    FillShare((*bench)->cost(), report.peaks, integer, &result);
    report.cells.push_back(std::move(result));
    std::fprintf(stderr, "%s: %.1f tokens/s\n", cell.name().c_str(), Median(report.cells.back().ours));
  }
  if (flags.kernels) report.kernels = MeasureKernels(**bench, report.peaks, integer, clock);
  std::fputs(Table(report).c_str(), stdout);
  if (!flags.json.empty()) {
    std::ofstream file(flags.json);
    file << Json(report) << "\n";
    if (!file.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", flags.json));
  }
  return flags.plots.empty() ? absl::OkStatus() : WritePlots(report, flags.plots);
}

void Pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) std::fprintf(stderr, "cannot pin to processor %d\n", cpu);
}

// The library lies beside the program.
std::string PreloadPath(const char* program) {
  const std::string path = program;
  const size_t slash = path.rfind('/');
  char* full = realpath((path.substr(0, slash == std::string::npos ? 0 : slash + 1) + "libcpu_clock_preload.so").c_str(),
                        nullptr);
  const std::string result = full == nullptr ? "" : full;
  free(full);
  return result;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  using namespace baton::bench;
  Flags flags;
  flags.preload = PreloadPath(argv[0]);
  CLI::App app("Speed of the engine's forward pass next to the machine's limits and to other engines");
  app.add_option("--model", flags.model, "GGUF file")->required();
  app.add_option("--threads", flags.threads)->check(CLI::Range(1, 1024));
  app.add_option("--cpu", flags.cpu, "pin everything to this processor (one thread)");
  app.add_option("--clock", flags.clock, "wall, or cpu: processor time of the process (one thread)")
      ->check(CLI::IsMember({"wall", "cpu"}));
  app.add_option("--prefill", flags.prefill, "prompt lengths")->delimiter(',')->check(CLI::Range(0, 1 << 20));
  app.add_option("--batch", flags.batch, "sequences decoded together")->delimiter(',')->check(CLI::Range(0, 4096));
  app.add_option("--context", flags.context, "positions before decode")->delimiter(',')->check(CLI::Range(0, 1 << 20));
  app.add_option("--steps", flags.decode_steps, "decode steps of a measurement")->check(CLI::Range(1, 1 << 16));
  app.add_option("--repetitions", flags.repetitions)->check(CLI::Range(1, 1000));
  app.add_option("--peer", flags.peers,
                 "[NAME=]PATH [ARGUMENT...]: a llama-bench or llama-batched-bench to run in turn; repeatable");
  app.add_flag("--kernels", flags.kernels, "each kernel alone too");
  app.add_option("--isa", flags.isa)->check(CLI::IsMember({"auto", "scalar", "avx2", "avx512", "avx512_bf16", "amx"}));
  app.add_option("--numerics", flags.numerics)->check(CLI::IsMember({"int", "bf16", "f32"}));
  app.add_option("--read_mib", flags.read_mib, "memory that bandwidth is measured on")->check(CLI::Range(1, 1 << 20));
  app.add_option("--json", flags.json, "write the report here");
  app.add_option("--plots", flags.plots, "write throughput.svg and itl.svg into this folder");
  app.add_option("--commit", flags.commit, "for the report");
  CLI11_PARSE(app, argc, argv);
  std::erase(flags.prefill, 0);  // "--prefill 0": none
  std::erase(flags.batch, 0);
  if (flags.clock == "cpu" && (flags.threads != 1 || (!flags.peers.empty() && flags.preload.empty()))) {
    std::fprintf(stderr, "--clock cpu needs --threads 1, and for peers libcpu_clock_preload.so beside this program\n");
    return 2;
  }
  Pin(flags.cpu);
  const absl::Status status = Run(flags);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
