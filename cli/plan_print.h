// A plan as text for people and as JSON.
#ifndef BATON_CLI_PLAN_PRINT_H_
#define BATON_CLI_PLAN_PRINT_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/plan.h"

namespace baton::cli {

// Aligned lines, ending in a newline. Units are decimal, as the literature's.
std::string FormatPlan(const Plan& plan, const std::vector<std::string>& remarks);

// Bytes, counts and rates as exact integers where they are; times in milliseconds.
nlohmann::ordered_json PlanToJson(const Plan& plan, const std::vector<std::string>& remarks);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_PRINT_H_
