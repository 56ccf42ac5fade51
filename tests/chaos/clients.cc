#include "tests/chaos/clients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tests/chaos/compare.h"
#include "tests/e2e/random_requests.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {

v1::GenerateRequest LongRequest(uint64_t seed, int vocab_size) {
  v1::GenerateRequest request = RandomRequest(seed, {.vocab_size = vocab_size, .max_prompt_tokens = 200, .max_n = 3});
  v1::SamplingParams* params = request.mutable_sampling();
  params->set_max_tokens(100 + static_cast<int>(seed % 150));
  params->clear_stop_token_ids();
  params->set_ignore_eos(seed % 4 != 0);
  if (seed % 3 == 0) params->add_stop({static_cast<char>('a' + seed % 26), static_cast<char>('a' + seed % 7)});
  return request;
}

std::string TinyModel() {
  const char* tmp = getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/tiny.gguf");
  const absl::Status written = fakes::WriteTinyGguf({}, path);
  EXPECT_TRUE(written.ok()) << written;
  return path;
}

Workload MakeWorkload(Cluster* cluster, uint64_t seed, int number) {
  Workload load;
  for (int i = 0; i < number; ++i) {
    load.requests.push_back(LongRequest(seed * 1000 + static_cast<uint64_t>(i), 280));
    load.want.push_back(cluster->Generate(load.requests.back()));
    const Generation& want = load.want.back();
    EXPECT_TRUE(want.status.ok()) << want.status.error_message();
    EXPECT_EQ(want.violation, "");
  }
  return load;
}

Clients::Clients(Cluster* cluster, const Workload* load, int number) : cluster_(cluster), load_(load) {
  for (int i = 0; i < number; ++i) waiting_.push_back(std::make_unique<Waiting>());
  for (int i = 0; i < number; ++i) threads_.emplace_back([this, i] { Run(i); });
}

void Clients::Stop() {
  stop_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Clients::WaitForTokens(int64_t more) const {
  const int64_t until = tokens_ + more;
  const absl::Time late = absl::Now() + absl::Seconds(20);
  while (tokens_ < until && absl::Now() < late) absl::SleepFor(absl::Milliseconds(1));
}

int Clients::ServedBy(const std::string& worker) {
  MutexLock lock(&mu_);
  return served_[worker];
}

absl::Duration Clients::TakeWorstStall() {
  const absl::Time now = absl::Now();
  for (const auto& waiting : waiting_) {
    MutexLock lock(&waiting->mu);
    if (waiting->since < now) NoteStall(now - waiting->since);
  }
  return absl::Microseconds(worst_stall_us_.exchange(0));
}

void Clients::NoteStall(absl::Duration stall) {
  const int64_t us = absl::ToInt64Microseconds(stall);
  int64_t worst = worst_stall_us_;
  while (us > worst && !worst_stall_us_.compare_exchange_weak(worst, us)) {
  }
}

void Clients::Run(int number) {
  Waiting& waiting = *waiting_[static_cast<size_t>(number)];
  const auto wait_from = [&](absl::Time since) {
    MutexLock lock(&waiting.mu);
    if (waiting.since < absl::Now()) NoteStall(absl::Now() - waiting.since);
    waiting.since = since;
  };
  for (size_t turn = static_cast<size_t>(number); !stop_; ++turn) {
    const size_t i = turn * 7 % load_->requests.size();
    v1::GenerateRequest request = load_->requests[i];
    request.set_request_id(absl::StrCat("chaos-", number, "-", turn));
    wait_from(absl::Now());
    const Generation got = cluster_->Generate(request, absl::Seconds(60),
                                              [&](grpc::ClientContext*, const v1::GenerateResponse& event) {
                                                if (!event.has_token()) return;
                                                ++tokens_;
                                                wait_from(absl::Now());
                                              });
    wait_from(absl::InfiniteFuture());
    EXPECT_EQ(Difference(got, load_->want[i]), "") << request.request_id() << ", request " << i;
    ++completed_;
    MutexLock lock(&mu_);
    ++served_[got.summary.prefill_worker()];
    ++served_[got.summary.decode_worker()];
  }
}

std::string Percentiles(std::vector<absl::Duration> stalls) {
  if (stalls.empty()) return "none";
  std::sort(stalls.begin(), stalls.end());
  const auto at = [&](double share) {
    return absl::ToDoubleMilliseconds(stalls[static_cast<size_t>(share * static_cast<double>(stalls.size() - 1))]);
  };
  return absl::StrFormat("%d, p50 %.0f ms, p99 %.0f ms, worst %.0f ms", static_cast<int>(stalls.size()), at(0.5), at(0.99),
                         at(1));
}

}  // namespace baton::e2e
