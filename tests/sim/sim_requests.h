// What clients of the simulation ask for, what the right answer is, and the client that compares.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_SIM_REQUESTS_H_
#define BATON_TESTS_SIM_SIM_REQUESTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/inference.pb.h"
#include "router/client_stream.h"
#include "router/request_driver.h"
#include "tests/sim/sim_router.h"
#include "tests/sim/world.h"

namespace baton::sim {

// One of a fixed set of requests and its only right answer: the engine's with nothing beside it, cut at stop strings.
struct Question {
  std::vector<int32_t> prompt;
  std::string tenant;
  v1::SamplingParams sampling;
  std::vector<std::vector<int32_t>> answer;  // [choice]
  std::vector<v1::FinishReason> finish;
};
// Computed when first asked for; some continue the conversation of the one before.
const Question& QuestionAt(size_t i);
inline constexpr size_t kNumQuestions = 240;

// One request as its client sees it; outlives its stream.
struct Asked {
  const Question* question = nullptr;
  std::string id;
  absl::Time submitted, deadline;
  bool cancelled = false;   // by its client
  bool must_succeed = false;
  bool with_router = true;  // false: its router died, and it with that
  bool ended = false;
  absl::Status status;
  std::vector<size_t> tokens;  // [choice] how many came
  std::vector<bool> finished;  // [choice]
  bool summary = false;
  std::shared_ptr<router::RequestDriver> driver;  // a client keeps its request alive until it ends
};

// Compares every message with the right answer as it comes.
class SimClient final : public router::ClientStream {
 public:
  SimClient(World* world, SimRouter* router, std::shared_ptr<Asked> asked);
  void Push(v1::GenerateResponse response) override;
  void Finish(absl::Status status) override;

 private:
  void Complain(const std::string& what);
  void OnToken(const v1::TokenEvent& token);

  World* const world_;
  SimRouter* const router_;
  const std::shared_ptr<Asked> asked_;
};

// Why the end of `asked` is not one that the schedule explains; empty: it is. `faults`: something was broken on purpose.
std::string Unexplained(const Asked& asked, bool faults);

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_SIM_REQUESTS_H_
