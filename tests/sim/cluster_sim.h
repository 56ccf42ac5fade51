// A whole cluster from one seed: the router's requests, placement, admission and membership, the workers' services,
// engines, exporters and receptions, all of them the real code, on a simulated network and clock with faults.
//
// What each schedule is held to:
//  - every request ends exactly once, by its deadline, with the tokens of an undisturbed run, or with a typed error that
//    something in the schedule explains; what the client got is a beginning of those tokens in any case;
//  - no token comes from an attempt that was given up, or from an incarnation that the router has declared gone;
//  - when all is over every worker that lives holds nothing: no active, leased or quarantined block, no ticket, no claim, no
//    call; the router has no request, no promise and no queue; gauges are zero; no state table met an impossible event;
//  - and the cluster still serves: a last request, after the last fault, ends OK.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_CLUSTER_SIM_H_
#define BATON_TESTS_SIM_CLUSTER_SIM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace baton::sim {

struct Outcome {
  std::vector<std::string> violations;
  uint64_t trace = 0;  // equal for equal seeds
  uint64_t events = 0;
  std::map<std::string, int> faults;  // put in, by kind
  std::map<std::string, int> ends;    // of requests, by status code
  int moves = 0;                      // attempts beyond each request's first
};

struct Options {
  uint64_t seed = 0;
  bool verbose = false;             // prints what happens
  bool frees_while_landing = false;  // a fault of the simulated transport, to show that it would be found
};

// Runs one schedule. What broke is in Outcome.violations; a broken schedule may leave memory behind.
Outcome RunSchedule(const Options& options);

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_CLUSTER_SIM_H_
