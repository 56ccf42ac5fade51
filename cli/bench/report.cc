#include "cli/bench/report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/output.h"
#include "cli/quantity.h"

namespace baton::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string Line(absl::string_view name, absl::string_view value) { return absl::StrFormat("%-36s %s\n", name, value); }
std::string Number(double value, int digits = 2) { return absl::StrFormat("%.*f", digits, value); }

// "p99", "p99.9"
std::string PercentileName(double p) { return absl::StrCat("p", p); }

struct Named {
  const char* key;
  const char* words;
  const Distribution* values;
};
std::vector<Named> Latencies(const Metrics& m) {
  return {{"ttft_ms", "TTFT", &m.ttft_ms},
          {"tpot_ms", "TPOT", &m.tpot_ms},
          {"itl_ms", "ITL", &m.itl_ms},
          {"e2el_ms", "E2EL", &m.e2el_ms}};
}

std::string LatencyTable(const Metrics& m) {
  std::string out = absl::StrFormat("%-8s %10s %10s", "ms", "mean", "median");
  for (const double p : m.percentiles) absl::StrAppendFormat(&out, " %10s", PercentileName(p));
  absl::StrAppendFormat(&out, " %10s\n", "max");
  for (const Named& row : Latencies(m)) {
    absl::StrAppendFormat(&out, "%-8s %10.2f %10.2f", row.words, row.values->mean, row.values->median);
    for (const double p : row.values->percentiles) absl::StrAppendFormat(&out, " %10.2f", p);
    absl::StrAppendFormat(&out, " %10.2f\n", row.values->max);
  }
  return out;
}

std::string ErrorWords(const Metrics& m) {
  return absl::StrJoin(m.errors, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
}

std::string LoadWords(const RunInfo& info) {
  std::string words = info.mode;
  if (std::isfinite(info.request_rate)) {
    absl::StrAppend(&words, ", ", Number(info.request_rate), " requests/s, burstiness ", info.burstiness);
  }
  if (info.max_concurrency) absl::StrAppend(&words, ", at most ", *info.max_concurrency, " at once");
  return words;
}

double CpuMicrosPerToken(const RunResult& r) {
  return r.metrics.total_output_tokens > 0 ? r.cpu_s * 1e6 / static_cast<double>(r.metrics.total_output_tokens) : 0;
}

void AddDetails(const std::vector<RequestRecord>& records, Json* json) {
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "errors"}) (*json)[key] = Json::array();
  for (const RequestRecord& r : records) {
    (*json)["input_lens"].push_back(r.prompt_tokens);
    (*json)["output_lens"].push_back(r.token_s.size());
    (*json)["ttfts"].push_back(r.ok() ? r.ttft_ms() / 1e3 : 0);
    Json gaps = Json::array();
    for (size_t i = 1; i < r.token_s.size(); ++i) gaps.push_back(r.token_s[i] - r.token_s[i - 1]);
    (*json)["itls"].push_back(std::move(gaps));
    (*json)["errors"].push_back(r.ok() ? ""
                                       : cli::ToUtf8(absl::StrCat(absl::StatusCodeToString(r.code), ": ", r.error)));
  }
}

std::string Quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) return cell;
  std::string out = "\"";
  for (const char c : cell) absl::StrAppend(&out, c == '"' ? "\"\"" : std::string(1, c));
  return out + "\"";
}

}  // namespace

std::string FormatRun(const RunResult& r) {
  const Metrics& m = r.metrics;
  std::string out = Line("load", LoadWords(r.info));
  absl::StrAppend(&out, Line("requests", r.info.workload));
  for (const std::string& note : r.info.notes) absl::StrAppend(&out, Line("note", note));
  absl::StrAppend(&out, Line("completed", absl::StrCat(m.completed, " in ", Number(m.duration_s), " s",
                                                       r.interrupted ? " (interrupted)" : "")));
  absl::StrAppend(&out, Line("failed", m.failed == 0 ? "0" : absl::StrCat(m.failed, " (", ErrorWords(m), ")")));
  if (m.failed > 0) absl::StrAppend(&out, Line("first error", cli::Printable(m.first_error)));
  if (m.abandoned > 0) absl::StrAppend(&out, Line("cancelled by Ctrl-C", absl::StrCat(m.abandoned)));
  absl::StrAppend(&out, Line("prompt tokens", absl::StrCat(cli::WithCommas(m.total_input_tokens), " (",
                                                           cli::WithCommas(m.total_cached_tokens), " cached)")));
  absl::StrAppend(&out, Line("output tokens", cli::WithCommas(m.total_output_tokens)));
  absl::StrAppend(&out, Line("request throughput (req/s)", Number(m.request_throughput)));
  if (m.request_goodput) absl::StrAppend(&out, Line("request goodput (req/s)", Number(*m.request_goodput)));
  absl::StrAppend(&out, Line("output throughput (tok/s)", Number(m.output_throughput)));
  absl::StrAppend(&out, Line("total throughput (tok/s)", Number(m.total_token_throughput)));
  absl::StrAppend(&out, Line("most tokens in one second", Number(m.max_output_tokens_per_s, 0)));
  absl::StrAppend(&out, Line("most requests at once", absl::StrCat(m.max_concurrent_requests)));
  absl::StrAppend(&out, LatencyTable(m));
  if (m.kv_bytes > 0) {
    absl::StrAppend(&out, Line("KV handed over", absl::StrCat(cli::FormatBytes(m.kv_bytes, 1), ", median ",
                                                              Number(m.transfer_ms.median), " ms a request")));
  }
  absl::StrAppend(
      &out, Line("this program's CPU",
                 absl::StrCat(Number(r.cpu_s), " s, ", Number(m.duration_s > 0 ? 100 * r.cpu_s / m.duration_s : 0, 1),
                              " % of a core, ", Number(CpuMicrosPerToken(r), 0), " us a token")));
  absl::StrAppend(&out, Line("sent later than intended (ms)", absl::StrCat("median ", Number(m.send_delay_ms.median),
                                                                           ", max ", Number(m.send_delay_ms.max))));
  absl::StrAppend(&out, Line("hash of all tokens", absl::StrFormat("%016x", m.output_hash)));
  return out;
}

std::string FormatSweep(const std::vector<RunResult>& results) {
  std::string out =
      absl::StrFormat("%9s %9s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "req/s in", "at once", "done", "failed", "req/s",
                      "tok/s", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "goodput");
  for (const RunResult& r : results) {
    const Metrics& m = r.metrics;
    absl::StrAppendFormat(&out, "%9s %9s %9d %9d %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9s\n",
                          std::isfinite(r.info.request_rate) ? Number(r.info.request_rate) : "-",
                          r.info.max_concurrency ? absl::StrCat(*r.info.max_concurrency) : "-", m.completed, m.failed,
                          m.request_throughput, m.output_throughput, m.ttft_ms.median, P99(m, m.ttft_ms),
                          m.itl_ms.median, P99(m, m.itl_ms), m.request_goodput ? Number(*m.request_goodput) : "-");
  }
  return out;
}

Json RunToJson(const RunResult& r, bool detailed) {
  const Metrics& m = r.metrics;
  Json json;
  json["date"] = r.info.date;
  json["endpoint_type"] = "baton-grpc";
  json["backend"] = "baton-grpc";
  json["label"] = r.info.label.empty() ? Json(nullptr) : Json(cli::ToUtf8(r.info.label));
  json["model_id"] = cli::ToUtf8(r.info.model);
  json["tokenizer_id"] = cli::ToUtf8(r.info.model);
  json["num_prompts"] = r.info.num_prompts;
  json["request_rate"] = std::isfinite(r.info.request_rate) ? Json(r.info.request_rate) : Json("inf");
  json["burstiness"] = r.info.burstiness;
  json["max_concurrency"] = r.info.max_concurrency ? Json(*r.info.max_concurrency) : Json(nullptr);
  json["duration"] = m.duration_s;
  json["completed"] = m.completed;
  json["failed"] = m.failed;
  json["total_input_tokens"] = m.total_input_tokens;
  json["total_output_tokens"] = m.total_output_tokens;
  json["request_throughput"] = m.request_throughput;
  json["request_goodput"] = m.request_goodput ? Json(*m.request_goodput) : Json(nullptr);
  json["output_throughput"] = m.output_throughput;
  json["total_token_throughput"] = m.total_token_throughput;
  json["max_output_tokens_per_s"] = m.max_output_tokens_per_s;
  json["max_concurrent_requests"] = m.max_concurrent_requests;
  for (const Named& latency : Latencies(m)) {
    json[absl::StrCat("mean_", latency.key)] = latency.values->mean;
    json[absl::StrCat("median_", latency.key)] = latency.values->median;
    json[absl::StrCat("std_", latency.key)] = latency.values->std_dev;
    for (size_t i = 0; i < m.percentiles.size(); ++i) {
      json[absl::StrCat(PercentileName(m.percentiles[i]), "_", latency.key)] = latency.values->percentiles[i];
    }
  }
  json["mode"] = r.info.mode;
  json["seed"] = r.info.seed;
  json["workload"] = cli::ToUtf8(r.info.workload);
  json["router"] = cli::ToUtf8(r.info.router);
  json["interrupted"] = r.interrupted;
  json["cancelled"] = m.abandoned;
  json["errors_by_code"] = Json(m.errors);
  json["first_error"] = cli::ToUtf8(m.first_error);
  json["total_cached_tokens"] = m.total_cached_tokens;
  json["kv_bytes"] = m.kv_bytes;
  json["median_kv_transfer_ms"] = m.transfer_ms.median;
  json["median_send_delay_ms"] = m.send_delay_ms.median;
  json["max_send_delay_ms"] = m.send_delay_ms.max;
  json["client_cpu_s"] = r.cpu_s;
  json["client_cpu_us_per_token"] = CpuMicrosPerToken(r);
  json["output_hash"] = absl::StrFormat("%016x", m.output_hash);
  json["notes"] = r.info.notes;
  if (detailed) AddDetails(r.records, &json);
  return json;
}

std::string RunsToCsv(const std::vector<RunResult>& results) {
  std::string out;
  for (size_t i = 0; i < results.size(); ++i) {
    const Json json = RunToJson(results[i], false);
    std::vector<std::string> names, cells;
    for (const auto& [name, value] : json.items()) {
      names.push_back(name);
      cells.push_back(Quoted(value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump()));
    }
    if (i == 0) absl::StrAppend(&out, absl::StrJoin(names, ","), "\n");
    absl::StrAppend(&out, absl::StrJoin(cells, ","), "\n");
  }
  return out;
}

std::string RequestsToCsv(const std::vector<RunResult>& results) {
  std::string out =
      "run,index,intended_s,sent_s,end_s,prompt_tokens,cached_tokens,output_tokens,ttft_ms,tpot_ms,e2el_ms,kv_bytes,"
      "transfer_ms,code,error\n";
  for (size_t run = 0; run < results.size(); ++run) {
    for (const RequestRecord& r : results[run].records) {
      absl::StrAppendFormat(&out, "%d,%d,%.6f,%.6f,%.6f,%d,%d,%d,%.3f,%.3f,%.3f,%d,%.3f,%s,%s\n", run + 1, r.index,
                            r.intended_s, r.sent_s, r.end_s, r.prompt_tokens, r.cached_tokens, r.token_s.size(),
                            r.ok() ? r.ttft_ms() : 0, r.ok() ? r.tpot_ms() : 0, r.e2el_ms(), r.kv_bytes, r.transfer_ms,
                            r.abandoned ? "abandoned" : absl::StatusCodeToString(r.code), Quoted(cli::ToUtf8(r.error)));
    }
  }
  return out;
}

}  // namespace baton::bench
