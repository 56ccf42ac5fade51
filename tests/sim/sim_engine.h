// The engine's thread, simulated: the real EngineCore behind the Engine interface, stepped by the world's clock.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_SIM_ENGINE_H_
#define BATON_TESTS_SIM_SIM_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "engine/engine.h"
#include "engine/engine_core.h"
#include "tests/fakes/hash_model.h"
#include "tests/sim/world.h"

namespace baton::sim {

class SimEngine final : public engine::Engine {
 public:
  SimEngine(ProcessPtr process, const engine::EngineOptions& options) : process_(std::move(process)) {
    fakes::HashModel::Options model;
    model.num_blocks = options.num_blocks;
    model_ = std::make_unique<fakes::HashModel>(model);
    core_ = *engine::EngineCore::Create(options, model_.get(), process_->world()->clock());
    core_->pool()->SetReleaseCallback([alive = std::weak_ptr<bool>(alive_), this] {
      if (!alive.expired()) Wake(absl::Microseconds(50));
    });
  }
  ~SimEngine() override { Stop(); }

  // Everything open ends; nothing runs any more.
  void Stop() {
    do {
      std::vector<std::function<void()>> commands;
      commands.swap(inbox_);
      for (auto& command : commands) command();
      core_->EndAll(absl::CancelledError("the engine stopped"));
    } while (!inbox_.empty());
    alive_.reset();
  }

  void Submit(engine::Request request, std::shared_ptr<engine::RequestSink> sink) override {
    PostSubmit(std::move(request), engine::Mode::kComplete, std::move(sink));
  }
  void SubmitPrefill(engine::Request request, std::shared_ptr<engine::RequestSink> sink) override {
    PostSubmit(std::move(request), engine::Mode::kPrefill, std::move(sink));
  }
  void ReserveKv(std::string request_id, int num_tokens, absl::Time deadline,
                 std::function<void(absl::StatusOr<kvcache::BlockLease>)> done, engine::PrefixQuery prefix) override {
    Post([this, request_id, num_tokens, deadline, done = std::move(done), prefix = std::move(prefix)]() mutable {
      core_->Reserve(std::move(request_id), num_tokens, deadline, std::move(done), std::move(prefix));
    });
  }
  void SubmitDecode(engine::Request request, kvcache::BlockLease prompt_kv,
                    std::vector<engine::SampledToken> first_tokens,
                    std::shared_ptr<engine::RequestSink> sink) override {
    auto lease = std::make_shared<kvcache::BlockLease>(std::move(prompt_kv));
    Post([this, request = std::move(request), lease, first_tokens = std::move(first_tokens), sink = std::move(sink),
          now = process_->world()->now()]() mutable {
      core_->SubmitDecode(std::move(request), std::move(*lease), std::move(first_tokens), std::move(sink), now);
    });
  }
  void AdoptPrefix(std::string tenant, std::vector<int32_t> token_ids, kvcache::BlockLease kv) override {
    auto lease = std::make_shared<kvcache::BlockLease>(std::move(kv));
    Post([this, tenant = std::move(tenant), token_ids = std::move(token_ids), lease] {
      core_->AdoptPrefix(tenant, token_ids, std::move(*lease));
    });
  }
  void CopyToHost(kvcache::BlockLease blocks, std::function<void()> done) override {
    auto lease = std::make_shared<kvcache::BlockLease>(std::move(blocks));
    Post([this, lease, done = std::move(done)]() mutable { core_->CopyToHost(std::move(*lease), std::move(done)); });
  }
  void Cancel(const std::string& request_id) override {
    Post([this, request_id] { core_->Cancel(request_id); });
  }
  void Drain() override {
    Post([this] { core_->Drain(); });
  }
  void Resume() override {
    Post([this] { core_->Resume(); });
  }
  Activity activity() const override { return {}; }
  bool Idle() const override {
    const kvcache::Ledger ledger = core_->pool()->ledger();
    return inbox_.empty() && core_->Quiet() && ledger.leased == 0 && ledger.quarantined == 0;
  }
  engine::EngineLoad load() const override { return core_->load(); }
  kvcache::PrefixJournal::Report prefixes_since(uint64_t version) const override {
    return core_->journal()->Since(version);
  }
  kernels::KvLayout kv_layout() const override { return core_->pool()->layout(); }
  std::shared_ptr<kvcache::BlockPool> pool() const override { return core_->pool()->shared_from_this(); }

  engine::EngineCore* core() { return core_.get(); }

 private:
  void PostSubmit(engine::Request request, engine::Mode mode, std::shared_ptr<engine::RequestSink> sink) {
    Post([this, request = std::move(request), mode, sink = std::move(sink), now = process_->world()->now()]() mutable {
      core_->Submit(std::move(request), mode, std::move(sink), now);
    });
  }
  void Post(std::function<void()> command) {
    if (alive_ == nullptr) return;
    inbox_.push_back(std::move(command));
    Wake(process_->world()->Between(absl::Microseconds(5), absl::Microseconds(100)));
  }
  // A step begins no later than that from now.
  void Wake(absl::Duration delay) {
    const absl::Time when = process_->world()->now() + delay;
    if (stepping_ || when >= next_) return;
    next_ = when;
    process_->After(delay, [this, alive = std::weak_ptr<bool>(alive_), when] {
      if (!alive.expired() && when == next_) Step();
    });
  }
  void Step() {
    World* world = process_->world();
    next_ = absl::InfiniteFuture();
    stepping_ = true;
    std::vector<std::function<void()>> commands;
    commands.swap(inbox_);
    for (auto& command : commands) command();
    const bool had_commands = !commands.empty();
    commands.clear();
    const bool progress = core_->Step() || had_commands;
    stepping_ = false;
    if (progress) {
      // What a step takes passes after it, and whatever came meanwhile waits for the next one.
      Wake(world->Between(absl::Microseconds(300), absl::Milliseconds(3)));
    } else if (!core_->Quiet()) {
      Wake(std::clamp(core_->NextDeadline() - world->now(), absl::Milliseconds(1), absl::Milliseconds(50)));
    }
    if (!inbox_.empty()) Wake(absl::Microseconds(20));
  }

  const ProcessPtr process_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<fakes::HashModel> model_;
  std::unique_ptr<engine::EngineCore> core_;
  std::vector<std::function<void()>> inbox_;
  absl::Time next_ = absl::InfiniteFuture();
  bool stepping_ = false;
};

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_SIM_ENGINE_H_
