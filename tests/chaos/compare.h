// What tests of faults share: counts from the environment, and how a stream differs from the undisturbed one.
#ifndef BATON_TESTS_CHAOS_COMPARE_H_
#define BATON_TESTS_CHAOS_COMPARE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/cluster.h"

namespace baton::e2e {

inline int FromEnvironment(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value != nullptr ? atoi(value) : otherwise;
}

// What came of each choice is a beginning of `want`; empty: it is.
inline std::string TokenDifference(const Generation& got, const Generation& want) {
  if (!got.violation.empty()) return got.violation;
  for (size_t c = 0; c < want.choices.size(); ++c) {
    const auto& g = got.choices[c].token_ids;
    const auto& w = want.choices[c].token_ids;
    const auto at = std::mismatch(g.begin(), g.end(), w.begin(), w.end());
    if (at.first != g.end()) {
      return absl::StrCat("choice ", c, " differs at index ", at.first - g.begin(), " of ", g.size(), " (want ",
                          w.size(), ")");
    }
  }
  return "";
}

// All of it, text and ends too; a stream that ended with an error differs.
inline std::string Difference(const Generation& got, const Generation& want) {
  if (!got.status.ok()) return absl::StrCat("status ", got.status.error_code(), ": ", got.status.error_message());
  if (std::string tokens = TokenDifference(got, want); !tokens.empty()) return tokens;
  for (size_t c = 0; c < want.choices.size(); ++c) {
    const auto& g = got.choices[c];
    const auto& w = want.choices[c];
    if (g.token_ids.size() != w.token_ids.size()) {
      return absl::StrCat("choice ", c, " has ", g.token_ids.size(), " of ", w.token_ids.size(), " tokens");
    }
    if (g.text != w.text) return absl::StrCat("choice ", c, " has other text");
    if (g.finished.SerializeAsString() != w.finished.SerializeAsString()) {
      return absl::StrCat("choice ", c, " finished otherwise: ", g.finished.ShortDebugString());
    }
  }
  return "";
}

inline void ExpectZero(Cluster* cluster, const std::string& http, const char* gauge) {
  const absl::Time until = absl::Now() + absl::Seconds(20);
  double value = 0;
  while ((value = cluster->Metric(http, gauge)) != 0 && absl::Now() < until) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(value, 0) << gauge;
}

// Every process answers, holds nothing, and its gauges say so: soon, for links between workers are measured now and then,
// by tickets too, and the router may hear a little later of a client that went away.
inline void ExpectNothingHeld(Cluster* cluster) {
  const absl::Status quiet = cluster->WaitQuiet(absl::Seconds(40));
  EXPECT_TRUE(quiet.ok()) << quiet;
  for (auto& worker : cluster->workers()) {
    SCOPED_TRACE(worker->name);
    for (const char* gauge : {"baton_tickets", "baton_tickets_being_fetched", "baton_kv_fetches_in_flight",
                              "baton_decode_impossible_events_total"}) {
      ExpectZero(cluster, worker->http, gauge);
    }
  }
  for (const char* gauge : {"baton_requests_in_flight", "baton_router_queued_requests", "baton_router_queued_tokens"}) {
    ExpectZero(cluster, cluster->router_http(), gauge);
  }
}

}  // namespace baton::e2e

#endif  // BATON_TESTS_CHAOS_COMPARE_H_
