#include "tests/bench/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace baton::bench {

double CellResult::Ratio(const std::string& peer) const {
  std::vector<double> ratios;
  const std::vector<double>& theirs = peers.at(peer);
  for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) ratios.push_back(ours[i] / theirs[i]);
  return Median(ratios);
}

void FillShare(const ModelCost& cost, const Peaks& peaks, bool integer, CellResult* result) {
  const double rate = Median(result->ours);
  const Cell& cell = result->cell;
  if (cell.prefill) {
    const double operations = 2 * (static_cast<double>(cost.layer_weights) + 1.0 * cost.head_weights / cell.tokens);
    const double peak = integer ? peaks.int8_gops : peaks.bf16_gflops > 0 ? peaks.bf16_gflops : peaks.f32_gflops;
    result->limit = integer ? "int8" : peaks.bf16_gflops > 0 ? "bf16" : "f32";
    result->share = peak > 0 ? 1e-9 * rate * operations / peak : 0;
  } else {
    const double context = cell.context + 0.5 * cell.tokens;
    const double bytes = static_cast<double>(cost.layer_bytes + cost.head_bytes) +
                         cell.batch * context * static_cast<double>(cost.kv_token_bytes);
    result->limit = "read";
    result->share = peaks.read_gbps > 0 ? 1e-9 * bytes * rate / cell.batch / peaks.read_gbps : 0;
  }
}

std::string Table(const Report& report) {
  const Peaks& p = report.peaks;
  std::string text = absl::StrFormat(
      "%s, %d thread%s, %s, class %s, commit %s, %s time\n"
      "limits: int8 %.0f GOP/s, bf16 %.0f, f32 %.0f GFLOP/s, tiles int8 %.0f, bf16 %.0f; read %.1f GB/s\n"
      "loaded in %.2f s",
      report.model, report.threads, report.threads == 1 ? "" : "s", report.backend, report.numerics,
      report.commit.empty() ? "-" : report.commit, report.clock, p.int8_gops, p.bf16_gflops, p.f32_gflops,
      p.amx_int8_gops, p.amx_bf16_gflops, p.read_gbps, report.load_seconds);
  absl::StrAppend(&text, "\n\n");
  if (!report.cells.empty()) absl::StrAppendFormat(&text, "%-18s %10s %8s %14s", "", "tokens/s", "ITL ms", "share");
  std::vector<std::string> names;
  for (const CellResult& result : report.cells) {
    for (const auto& [name, samples] : result.peers) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  for (const std::string& name : names) absl::StrAppendFormat(&text, " %24s", name);
  if (!report.cells.empty()) absl::StrAppend(&text, "\n");
  for (const CellResult& result : report.cells) {
    const double rate = Median(result.ours);
    const std::string itl = result.cell.prefill ? "" : absl::StrFormat("%.2f", 1e3 * result.cell.batch / rate);
    absl::StrAppendFormat(&text, "%-18s %10.1f %8s %8.1f%% %-4s", result.cell.name(), rate, itl, 100 * result.share,
                          result.limit);
    for (const std::string& name : names) {
      const auto it = result.peers.find(name);
      const std::string cell =
          it == result.peers.end() ? "" : absl::StrFormat("%.1f  %.2fx", Median(it->second), result.Ratio(name));
      absl::StrAppendFormat(&text, " %24s", cell);
    }
    absl::StrAppend(&text, "\n");
  }
  if (!report.kernels.empty()) absl::StrAppendFormat(&text, "\n%-34s %10s %8s %14s\n", "", "GOP/s", "GB/s", "share");
  for (const KernelResult& kernel : report.kernels) {
    const std::string read = kernel.gbps > 0 ? absl::StrFormat("%.1f", kernel.gbps) : "";
    absl::StrAppendFormat(&text, "%-34s %10.1f %8s %8.1f%% %-4s\n", kernel.name, kernel.gops, read, 100 * kernel.share,
                          kernel.limit);
  }
  return text;
}

std::string Json(const Report& report) {
  nlohmann::json json;
  json["schema"] = 1;
  json["commit"] = report.commit;
  json["model"] = report.model;
  json["numerics"] = report.numerics;
  json["backend"] = report.backend;
  json["processor"] = report.processor;
  json["clock"] = report.clock;
  json["threads"] = report.threads;
  json["load_seconds"] = report.load_seconds;
  const Peaks& p = report.peaks;
  json["limits"] = {{"int8_gops", p.int8_gops},         {"bf16_gflops", p.bf16_gflops},
                    {"f32_gflops", p.f32_gflops},       {"tile_int8_gops", p.amx_int8_gops},
                    {"tile_bf16_gflops", p.amx_bf16_gflops}, {"read_gbps", p.read_gbps}};
  json["cells"] = nlohmann::json::array();
  for (const CellResult& result : report.cells) {
    const Cell& cell = result.cell;
    nlohmann::json entry = {{"name", cell.name()},
                            {"phase", cell.prefill ? "prefill" : "decode"},
                            {"tokens", cell.tokens},
                            {"batch", cell.batch},
                            {"context", cell.context},
                            {"tokens_per_second", Median(result.ours)},
                            {"samples", result.ours},
                            {"share", result.share},
                            {"limit", result.limit}};
    if (!cell.prefill) entry["itl_seconds"] = cell.batch / Median(result.ours);
    entry["peers"] = nlohmann::json::object();
    for (const auto& [name, samples] : result.peers) {
      entry["peers"][name] = {
          {"tokens_per_second", Median(samples)}, {"samples", samples}, {"ratio", result.Ratio(name)}};
    }
    json["cells"].push_back(std::move(entry));
  }
  json["kernels"] = nlohmann::json::array();
  for (const KernelResult& kernel : report.kernels) {
    json["kernels"].push_back({{"name", kernel.name},
                               {"gops", kernel.gops},
                               {"gbps", kernel.gbps},
                               {"share", kernel.share},
                               {"limit", kernel.limit}});
  }
  return json.dump(2);
}

}  // namespace baton::bench
