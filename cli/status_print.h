// A cluster's state as text for people and as JSON.
#ifndef BATON_CLI_STATUS_PRINT_H_
#define BATON_CLI_STATUS_PRINT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "proto/cluster.pb.h"

namespace baton::cli {

// True when free + active + leased + cached + quarantined is the total.
bool LedgerAddsUp(const v1::KvLedger& ledger);

std::string FormatStatus(const v1::ClusterStatus& status, const std::string& address);
// One paragraph for each attempt to place the request.
std::string FormatWhy(const v1::PlacementExplanation& explanation);
nlohmann::ordered_json WhyToJson(const v1::PlacementExplanation& explanation);
nlohmann::ordered_json StatusToJson(const v1::ClusterStatus& status, const std::string& address);

}  // namespace baton::cli

#endif  // BATON_CLI_STATUS_PRINT_H_
