// A prefill engine, a decode engine and a careless world between them, all in one thread from a seed: fetches that take
// time, fail, or leave a writer behind; cancels and deadlines at every stage. Whatever happens, every request ends, what
// the client got is a beginning of the one right answer (all of it when the end was OK), and no block is lost.
#include <gtest/gtest.h>

#include <cstring>
#include <list>

#include "tests/engine/engine_test_util.h"

namespace baton::engine {
namespace {

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : rng_(seed), prefill_(RandomOptions()), decode_(RandomOptions()) {}

  void Run() {
    int to_submit = 15;
    for (int step = 0; to_submit > 0 || !jobs_.empty() || !quarantines_.empty(); ++step) {
      ASSERT_LT(step, 50000) << "does not end";
      if (to_submit > 0 && Chance(3)) Start(to_submit--);
      for (auto it = jobs_.begin(); it != jobs_.end();) {
        ASSERT_NO_FATAL_FAILURE(Advance(*it));
        it = it->ended ? jobs_.erase(it) : std::next(it);
      }
      for (size_t i = 0; i < quarantines_.size();) {
        if (Chance(5)) {
          ASSERT_TRUE(decode_.core->pool()->EndQuarantine(quarantines_[i]).ok());
          quarantines_.erase(quarantines_.begin() + static_cast<int64_t>(i));
        } else {
          ++i;
        }
      }
      prefill_.clock.Advance(absl::Milliseconds(10));
      decode_.clock.Advance(absl::Milliseconds(10));
      prefill_.Step();
      decode_.Step();
    }
    EXPECT_TRUE(prefill_.core->Quiet());
    EXPECT_TRUE(decode_.core->Quiet());
    prefill_.ExpectAllFree();
    decode_.ExpectAllFree();
  }

  int completed = 0, refetched = 0, broken_off = 0;

 private:
  enum class Stage { kPrefill, kReserve, kFetch, kDecode };
  struct Job {
    Request request;
    int attempt = 0;
    Stage stage = Stage::kPrefill;
    std::shared_ptr<RecordingSink> prefill, decode;
    std::shared_ptr<std::optional<absl::StatusOr<kvcache::BlockLease>>> room;
    kvcache::BlockLease destination;
    int fetch_steps = 0;
    bool cancelled = false;
    bool ended = false;
  };

  bool Chance(int one_in) { return rng_() % one_in == 0; }

  EngineOptions RandomOptions() {
    EngineOptions options = Roomy();
    const int budgets[] = {1, 4, 16, 64};
    options.max_batch_tokens = budgets[rng_() % 4];
    options.max_sequences = 1 + static_cast<int>(rng_() % 8);
    options.prefix_cache = Chance(2);
    options.num_blocks = 16 + static_cast<int64_t>(rng_() % 24);
    return options;
  }

  void Start(int number) {
    Job job;
    job.request = RandomRequest(rng_, "r" + std::to_string(number), 101, 40, 24, 3);
    if (Chance(6)) job.request.deadline = prefill_.clock.Now() + absl::Milliseconds(10 * (1 + rng_() % 80));
    SubmitPrefill(job);
    jobs_.push_back(std::move(job));
  }

  void SubmitPrefill(Job& job) {
    job.stage = Stage::kPrefill;
    job.prefill = prefill_.Submit(job.request, Mode::kPrefill);
  }

  void Advance(Job& job) {
    if (!job.cancelled && Chance(120)) {
      job.cancelled = true;
      prefill_.core->Cancel(job.request.request_id);
      decode_.core->Cancel(job.request.request_id);
      if (job.stage == Stage::kFetch) return BreakOff(job);
    }
    switch (job.stage) {
      case Stage::kPrefill: return AfterPrefill(job);
      case Stage::kReserve: return AfterReserve(job);
      case Stage::kFetch: return Fetch(job);
      case Stage::kDecode:
        if (job.decode->done()) Check(job, job.decode->status);
        return;
    }
  }

  void AfterPrefill(Job& job) {
    if (!job.prefill->done()) return;
    if (!job.prefill->status.ok() || job.prefill->lease.empty()) return Check(job, job.prefill->status);
    job.stage = Stage::kReserve;
    job.room = std::make_shared<std::optional<absl::StatusOr<kvcache::BlockLease>>>();
    decode_.core->Reserve(job.request.request_id, static_cast<int>(job.request.prompt_token_ids.size()),
                          job.request.deadline,
                          [room = job.room](absl::StatusOr<kvcache::BlockLease> lease) { room->emplace(std::move(lease)); });
  }

  void AfterReserve(Job& job) {
    if (!job.room->has_value()) return;
    if (!(*job.room)->ok()) return Check(job, (*job.room)->status());
    job.destination = std::move((*job.room)->value());
    job.stage = Stage::kFetch;
    job.fetch_steps = static_cast<int>(rng_() % 6);
  }

  void Fetch(Job& job) {
    if (job.cancelled) return BreakOff(job);
    if (job.fetch_steps-- > 0) return;
    if (job.attempt < 3 && Chance(5)) {
      // The fetch failed, perhaps with the other side still writing; the prompt is computed again.
      ++refetched;
      Scribble(job.destination);
      if (Chance(2)) {
        quarantines_.push_back(job.destination.Quarantine());
      } else {
        job.destination.Reset();
      }
      job.prefill->lease.Reset();
      ++job.attempt;
      return SubmitPrefill(job);
    }
    ASSERT_EQ(job.destination.blocks().size(), job.prefill->lease.blocks().size());
    for (size_t b = 0; b < job.destination.blocks().size(); ++b) {
      std::memcpy(job.destination.bytes(b).data(), job.prefill->lease.bytes(b).data(), job.destination.bytes(b).size());
    }
    job.prefill->lease.Reset();
    job.decode = std::make_shared<RecordingSink>(1);
    job.stage = Stage::kDecode;
    decode_.core->SubmitDecode(job.request, std::move(job.destination), job.prefill->tokens, job.decode,
                               decode_.clock.Now());
  }

  void Scribble(const kvcache::BlockLease& lease) {
    for (size_t b = 0; b < lease.blocks().size(); ++b) {
      std::memset(lease.bytes(b).data(), static_cast<int>(rng_() % 256), lease.bytes(b).size());
    }
  }

  void BreakOff(Job& job) {
    Scribble(job.destination);
    quarantines_.push_back(job.destination.Quarantine());
    job.prefill->lease.Reset();
    Check(job, absl::CancelledError("cancelled during the fetch"));
  }

  void Check(Job& job, const absl::Status& status) {
    job.ended = true;
    job.prefill->lease.Reset();
    Answer got = job.prefill->answer;
    if (job.decode) {
      for (const auto& [choice, ids] : job.decode->answer.token_ids) {
        got.token_ids[choice].insert(got.token_ids[choice].end(), ids.begin(), ids.end());
      }
    }
    const Answer alone = RunAlone(job.request);
    if (status.ok()) {
      ++completed;
      ASSERT_EQ(got.token_ids, alone.token_ids) << job.request.request_id;
    } else {
      ++broken_off;
      ASSERT_TRUE((job.cancelled && absl::IsCancelled(status)) || absl::IsDeadlineExceeded(status)) << status;
      ASSERT_TRUE(IsPrefix(got, alone)) << job.request.request_id;
    }
  }

  std::mt19937_64 rng_;
  TestEngine prefill_, decode_;
  std::list<Job> jobs_;
  std::vector<uint64_t> quarantines_;
};

TEST(EngineSimTest, WhateverHappensAnswersAreRightAndBlocksComeBack) {
  int completed = 0, refetched = 0, broken_off = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Simulation simulation(seed);
    simulation.Run();
    if (HasFatalFailure()) return;
    completed += simulation.completed;
    refetched += simulation.refetched;
    broken_off += simulation.broken_off;
  }
  EXPECT_GT(completed, 500);
  EXPECT_GT(refetched, 100);
  EXPECT_GT(broken_off, 100);
}

}  // namespace
}  // namespace baton::engine
