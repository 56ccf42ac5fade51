// The simulation can fail: each fault of mutations.txt, put into the product's sources, must be found within some hundred
// schedules; without any the same schedules are clean.
#include "tests/sim/mutation.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/sim/cluster_sim.h"

namespace baton::sim {
namespace {

constexpr uint64_t kEnough = 500;

std::vector<std::string> Mutations() {
  std::vector<std::string> names;
  std::ifstream file("tests/sim/mutations.txt");
  static const std::regex name("MUTATED\\(\"([^\"]*)\"\\)");
  for (std::string line; std::getline(file, line);) {
    for (std::sregex_iterator it(line.begin(), line.end(), name), end; it != end; ++it) names.push_back((*it)[1]);
  }
  return names;
}

// A cluster with a planted fault may well leak; one without may not.
#ifdef __SANITIZE_ADDRESS__
using MayLeak = __lsan::ScopedDisabler;
#else
struct [[maybe_unused]] MayLeak {};
#endif

// The first seed that breaks an invariant; 0: none did.
uint64_t FirstBroken(uint64_t schedules, bool frees_while_landing, std::string* how) {
  for (uint64_t seed = 1; seed <= schedules; ++seed) {
    const Outcome outcome = RunSchedule({.seed = seed, .frees_while_landing = frees_while_landing});
    if (outcome.violations.empty()) continue;
    *how = outcome.violations[0];
    return seed;
  }
  return 0;
}

TEST(MutationTest, EveryFaultIsFoundAndNoneWithoutOne) {
  const std::vector<std::string> names = Mutations();
  ASSERT_GE(names.size(), 15u);
  std::string how;
  EXPECT_EQ(FirstBroken(100, false, &how), 0u) << how;
  const MayLeak may_leak;
  for (const std::string& name : names) {
    active_mutation = name;
    const uint64_t seed = FirstBroken(kEnough, false, &how);
    EXPECT_NE(seed, 0u) << "not found: " << name;
    printf("%-46s schedule %3d: %s\n", name.c_str(), static_cast<int>(seed), how.substr(0, 160).c_str());
    fflush(stdout);
  }
  active_mutation.clear();
  const uint64_t seed = FirstBroken(kEnough, true, &how);
  EXPECT_NE(seed, 0u) << "not found: a transport that frees blocks which still land";
  printf("%-46s schedule %3d: %s\n", "blocks are freed while they land", static_cast<int>(seed), how.c_str());
}

}  // namespace
}  // namespace baton::sim
