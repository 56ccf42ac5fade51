#include "cli/status_print.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output.h"
#include "cli/quantity.h"

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

// Columns as wide as their widest cell. Names come from outside: only printable, and ASCII widths are good enough.
std::string Table(const Rows& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, i == 0 ? "" : "  ", row[i], std::string(widths[i] - row[i].size(), ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

Json FingerprintToJson(const v1::ModelFingerprint& f) {
  return {{"weights", ToUtf8(f.weights())},
          {"config", ToUtf8(f.config())},
          {"tokenizer", ToUtf8(f.tokenizer())},
          {"numerics_class", ToUtf8(f.numerics_class())}};
}

std::string Short(const std::string& hex) { return Printable(absl::string_view(hex).substr(0, 16)); }

}  // namespace

bool LedgerAddsUp(const v1::KvLedger& l) {
  return l.free() + l.active() + l.leased() + l.cached() + l.quarantined() == l.total();
}

std::string FormatStatus(const v1::ClusterStatus& s, const std::string& address) {
  std::string out =
      absl::StrCat("cluster at ", address, ": ", s.model_name().empty() ? "no model" : Printable(s.model_name()),
                   ", up ", absl::StrFormat("%.0f", s.uptime_s()), " s\n");
  absl::StrAppend(&out, "requests: ", WithCommas(s.requests_total()), " in all, ", WithCommas(s.requests_failed()),
                  " failed, ", s.requests_in_flight(), " in flight\n");
  absl::StrAppend(&out, "fingerprint: weights ", Short(s.fingerprint().weights()), ", config ",
                  Short(s.fingerprint().config()), ", tokenizer ", Short(s.fingerprint().tokenizer()), ", numerics ",
                  Short(s.fingerprint().numerics_class()), "\n");
  if (s.workers().empty()) {
    absl::StrAppend(&out, "no workers; they register by themselves when they run (`baton up` starts some)\n");
  } else {
    Rows rows = {{"NAME", "ROLE", "STATE", "IN FLIGHT", "RUN", "WAIT", "TICKETS", "TOKENS/S", "KV BLOCKS", "FREE",
                  "ACTIVE", "LEASED", "CACHED", "QUARANTINED", "BACKEND", "ADDRESS"}};
    for (const v1::ClusterWorker& w : s.workers()) {
      const v1::KvLedger& l = w.load().ledger();
      rows.push_back({Printable(w.info().name()), Printable(w.info().role()), Printable(w.state()),
                      absl::StrCat(w.in_flight()), absl::StrCat(w.load().running()), absl::StrCat(w.load().waiting()),
                      absl::StrCat(w.load().tickets()), absl::StrCat(w.load().tokens_per_second()),
                      absl::StrCat(l.total()), absl::StrCat(l.free()), absl::StrCat(l.active()),
                      absl::StrCat(l.leased()), absl::StrCat(l.cached()), absl::StrCat(l.quarantined()),
                      Printable(w.info().backend()), Printable(w.info().address())});
    }
    absl::StrAppend(&out, Table(rows));
    for (const v1::ClusterWorker& w : s.workers()) {
      if (!LedgerAddsUp(w.load().ledger())) {
        absl::StrAppend(&out, "warning: the KV blocks of ", Printable(w.info().name()), " do not add up\n");
      }
    }
  }
  Rows links = {{"KV TO", "FROM", "STATE", "TRANSPORT", "VIA", "GB/S", ""}};
  for (const v1::ClusterWorker& w : s.workers()) {
    for (const v1::KvLink& link : w.load().links()) {
      links.push_back({Printable(w.info().name()), Printable(link.worker()), Printable(link.state()),
                       Printable(link.transport()), Printable(link.detail()),
                       absl::StrFormat("%.2f", link.gigabytes_per_second()), Printable(link.error())});
    }
  }
  if (links.size() > 1) absl::StrAppend(&out, Table(links));
  for (const std::string& refusal : s.refused()) absl::StrAppend(&out, "refused: ", Printable(refusal), "\n");
  return out;
}

Json StatusToJson(const v1::ClusterStatus& s, const std::string& address) {
  Json json;
  json["router"] = address;
  json["model"] = ToUtf8(s.model_name());
  json["uptime_s"] = s.uptime_s();
  json["requests"] = {
      {"total", s.requests_total()}, {"failed", s.requests_failed()}, {"in_flight", s.requests_in_flight()}};
  json["fingerprint"] = FingerprintToJson(s.fingerprint());
  json["workers"] = Json::array();
  for (const v1::ClusterWorker& w : s.workers()) {
    const v1::WorkerLoad& load = w.load();
    const v1::KvLedger& l = load.ledger();
    Json worker = {{"name", ToUtf8(w.info().name())},
                   {"role", ToUtf8(w.info().role())},
                   {"state", ToUtf8(w.state())},
                   {"incarnation", ToUtf8(w.info().incarnation())},
                   {"address", ToUtf8(w.info().address())},
                   {"metrics", ToUtf8(w.info().metrics_address())},
                   {"backend", ToUtf8(w.info().backend())},
                   {"pid", w.info().pid()},
                   {"max_context", w.info().max_context()},
                   {"heartbeat_age_ms", w.heartbeat_age_ms()},
                   {"in_flight", w.in_flight()},
                   {"fingerprint", FingerprintToJson(w.info().fingerprint())}};
    worker["load"] = {
        {"running", load.running()}, {"waiting", load.waiting()}, {"waiting_tokens", load.waiting_tokens()},
        {"steps", load.steps()},     {"tickets", load.tickets()}, {"tokens_per_second", load.tokens_per_second()}};
    worker["kv"] = {{"total", l.total()},
                    {"free", l.free()},
                    {"active", l.active()},
                    {"leased", l.leased()},
                    {"cached", l.cached()},
                    {"quarantined", l.quarantined()},
                    {"block_bytes", l.block_bytes()},
                    {"adds_up", LedgerAddsUp(l)}};
    worker["links"] = Json::array();
    for (const v1::KvLink& link : load.links()) {
      worker["links"].push_back({{"worker", ToUtf8(link.worker())},
                                 {"incarnation", ToUtf8(link.incarnation())},
                                 {"state", ToUtf8(link.state())},
                                 {"transport", ToUtf8(link.transport())},
                                 {"detail", ToUtf8(link.detail())},
                                 {"gigabytes_per_second", link.gigabytes_per_second()},
                                 {"error", ToUtf8(link.error())}});
    }
    json["workers"].push_back(std::move(worker));
  }
  json["refused"] = Json::array();
  for (const std::string& refusal : s.refused()) json["refused"].push_back(ToUtf8(refusal));
  return json;
}

std::string FormatWhy(const v1::PlacementExplanation& explanation) {
  std::string out = absl::StrCat("request ", Printable(explanation.request_id()), "\n");
  for (const v1::PlacementDecision& d : explanation.decisions()) {
    absl::StrAppendFormat(&out, "attempt %d, %.1f s ago: policy %s, %s prompt tokens, waited %.1f ms in the router\n",
                          d.epoch(), d.age_s(), Printable(d.policy()), WithCommas(d.prompt_tokens()), d.waited_ms());
    Rows rows = {{"  ", "PROMPT AT", "BY", "TO TOKEN 0", "BETWEEN TOKENS", "OTHERS LOSE", ""}};
    const bool taken = d.error().empty();
    for (const v1::ModeForecast& m : d.modes()) {
      rows.push_back({rows.size() == 1 && taken ? "->" : "  ", Printable(m.mode()), Printable(m.worker()),
                      absl::StrFormat("%.1f ms", m.ttft_ms()), absl::StrFormat("%.1f ms", m.itl_ms()),
                      absl::StrFormat("%.1f ms", m.others_ms()), Printable(m.note())});
    }
    if (rows.size() > 1) absl::StrAppend(&out, Table(rows));
    rows = {{"  ", "PREFILL", "TO TOKEN 0", "AHEAD", "CACHED", "", ""}};
    for (const v1::PlacementCandidate& c : d.prefill()) {
      rows.push_back({rows.size() == 1 ? "->" : "  ", Printable(c.worker()),
                      absl::StrFormat("%.1f ms", c.predicted_ms()), absl::StrCat(c.queue_tokens()),
                      absl::StrCat(c.cached_tokens()), Printable(c.note()), ""});
    }
    if (rows.size() > 1) absl::StrAppend(&out, Table(rows), "  of ", d.prefill_considered(), " compared\n");
    rows = {{"  ", "DECODE", "COST", "SEQUENCES", "FREE BLOCKS", "", ""}};
    for (const v1::PlacementCandidate& c : d.decode()) {
      rows.push_back({rows.size() == 1 ? "->" : "  ", Printable(c.worker()),
                      absl::StrFormat("%.1f ms", c.predicted_ms()), absl::StrCat(c.sequences()),
                      absl::StrCat(c.free_blocks()), Printable(c.note()), ""});
    }
    if (rows.size() > 1) absl::StrAppend(&out, Table(rows), "  of ", d.decode_considered(), " compared\n");
    if (!d.error().empty()) absl::StrAppend(&out, "  nowhere: ", Printable(d.error()), "\n");
  }
  return out;
}

Json WhyToJson(const v1::PlacementExplanation& explanation) {
  const auto candidates = [](const auto& from) {
    Json list = Json::array();
    for (const v1::PlacementCandidate& c : from) {
      list.push_back({{"worker", ToUtf8(c.worker())},
                      {"predicted_ms", c.predicted_ms()},
                      {"queue_tokens", c.queue_tokens()},
                      {"cached_tokens", c.cached_tokens()},
                      {"sequences", c.sequences()},
                      {"free_blocks", c.free_blocks()},
                      {"note", ToUtf8(c.note())}});
    }
    return list;
  };
  Json json = {{"request_id", ToUtf8(explanation.request_id())}, {"decisions", Json::array()}};
  for (const v1::PlacementDecision& d : explanation.decisions()) {
    Json modes = Json::array();
    for (const v1::ModeForecast& m : d.modes()) {
      modes.push_back({{"mode", ToUtf8(m.mode())},
                       {"worker", ToUtf8(m.worker())},
                       {"ttft_ms", m.ttft_ms()},
                       {"itl_ms", m.itl_ms()},
                       {"others_ms", m.others_ms()},
                       {"note", ToUtf8(m.note())}});
    }
    json["decisions"].push_back({{"attempt", d.epoch()},
                                 {"age_s", d.age_s()},
                                 {"policy", ToUtf8(d.policy())},
                                 {"prompt_tokens", d.prompt_tokens()},
                                 {"waited_ms", d.waited_ms()},
                                 {"mode", d.error().empty() && d.modes_size() > 0 ? ToUtf8(d.modes(0).mode()) : "none"},
                                 {"modes", std::move(modes)},
                                 {"prefill", candidates(d.prefill())},
                                 {"prefill_considered", d.prefill_considered()},
                                 {"decode", candidates(d.decode())},
                                 {"decode_considered", d.decode_considered()},
                                 {"error", ToUtf8(d.error())}});
  }
  return json;
}

}  // namespace baton::cli
