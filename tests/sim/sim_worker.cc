#include "tests/sim/sim_worker.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace baton::sim {
namespace {

constexpr absl::Duration kHeartbeat = absl::Milliseconds(200);
constexpr absl::Duration kReap = absl::Milliseconds(50);
constexpr absl::Duration kRetry = absl::Milliseconds(100);

v1::ModelFingerprint Fingerprint() {
  v1::ModelFingerprint f;
  f.set_weights("weights");
  f.set_config("config");
  f.set_tokenizer("tokenizer");
  f.set_numerics_class("hash");
  return f;
}

}  // namespace

SimWorker::SimWorker(Network* network, ProcessPtr process, router::Role role, int64_t num_blocks, int max_batch_tokens,
                     bool block_tags, SimTransport::Find find, std::function<Router()> find_router)
    : network_(network),
      process_(std::move(process)),
      role_(role),
      num_blocks_(num_blocks),
      find_router_(std::move(find_router)) {
  World* world = process_->world();
  engine::EngineOptions options;
  options.block_size = 4;
  options.num_blocks = num_blocks;
  options.eos_token_ids = {5, 17};
  options.max_batch_tokens = max_batch_tokens;
  options.max_sequences = 8;
  auto engine = std::make_unique<SimEngine>(process_, options);
  engine_ = engine.get();
  model_ = engine::LoadedModel::Around(std::move(engine), Fingerprint(), {kVocabulary, kMaxContext, {"hash"}});
  const kvtransfer::ClusterKey key = *kvtransfer::ClusterKey::FromBytes(std::string(32, 'k'));
  kvtransfer::Exporter::Options exporter{.worker_name = process_->name(),
                                         .incarnation = process_->incarnation(),
                                         .key = key,
                                         .layout = model_->kv_layout(),
                                         .fingerprint = Fingerprint(),
                                         .clock = world->clock()};
  exporter.block_tags = block_tags;
  exporter.new_id = [world] { return kvtransfer::TransferId{world->Random(), world->Random()}; };
  exporter_ = std::make_unique<kvtransfer::Exporter>(exporter);
  kvtransfer::ReceiverOptions receiver{
      .key = key, .layout = model_->kv_layout(), .fingerprint = Fingerprint(), .consumer = process_->incarnation()};
  transport_ = std::make_unique<SimTransport>(network, process_, exporter_.get(), receiver, std::move(find));
  if (role == router::Role::kPrefill) {
    prefill_ = std::make_unique<prefill_worker::PrefillService>(
        prefill_worker::PrefillService::Options{.model = model_.get(),
                                                .exporter = exporter_.get(),
                                                .engine_metrics = &engine_metrics_,
                                                .metrics = &metrics_,
                                                .lease = kLease,
                                                .transports = {{SimTransport::kName, transport_.get()}},
                                                .key = key,
                                                .clock = world->clock()});
  } else {
    decode_ = std::make_unique<decode_worker::DecodeService>(
        decode_worker::DecodeService::Options{.model = model_.get(),
                                              .transports = {{SimTransport::kName, transport_.get()}},
                                              .key = key,
                                              .engine_metrics = &engine_metrics_,
                                              .metrics = &metrics_,
                                              .exporter = exporter_.get(),
                                              .history_lease = kLease,
                                              .clock = world->clock()});
  }
}

SimWorker::~SimWorker() { TearDown(); }

void SimWorker::TearDown() {
  process_->Die();
  for (const auto& drop : drop_calls) drop();
  drop_calls.clear();
  transport_->Shutdown();
  exporter_->ReleaseAll();
  engine_->Stop();
}

v1::WorkerInfo SimWorker::Info() const {
  v1::WorkerInfo info;
  info.set_name(process_->name());
  info.set_incarnation(process_->incarnation());
  info.set_role(std::string(Name(role_)));
  info.set_address("host:1");
  info.set_model_name("hash");
  info.set_max_context(kMaxContext);
  info.set_total_blocks(static_cast<uint64_t>(num_blocks_));
  *info.mutable_fingerprint() = Fingerprint();
  *info.mutable_layout() = kvtransfer::LayoutToProto(model_->kv_layout());
  return info;
}

void SimWorker::Join() {
  Register();
  const auto reap = std::make_shared<std::function<void()>>();
  *reap = [this, weak = std::weak_ptr(reap), keep = process_] {
    exporter_->ReapExpired(process_->world()->now());
    if (draining_ && left_ && Idle()) return std::exchange(left_, nullptr)();
    if (const auto again = weak.lock()) process_->After(kReap, [again] { (*again)(); });
  };
  process_->After(kReap, [reap] { (*reap)(); });
}

// Membership is two unary calls that repeat; a lost one is repeated after a timeout.
void SimWorker::Register() {
  const Router router = find_router_();
  SimUnary::Start(
      network_, process_, router.process, process_->world()->now() + absl::Milliseconds(500),
      [router, info = Info()](SimUnary::Reply reply) {
        const absl::Status status = router.view->Register(info);
        router.on_change();
        reply(status);
      },
      [this](const absl::Status& status) {
        prefix_version_ = 0;
        if (status.ok()) return Beat();
        process_->After(kRetry, [this] { Register(); });
      });
}

void SimWorker::Beat() {
  v1::HeartbeatRequest beat;
  beat.set_name(process_->name());
  beat.set_incarnation(process_->incarnation());
  beat.set_draining(draining_);
  if (prefill_ != nullptr) {
    *beat.mutable_load() = prefill_->load();
    *beat.mutable_prefixes() = prefill_->prefixes(prefix_version_);
  } else {
    *beat.mutable_load() = decode_->load();
  }
  const Router router = find_router_();
  const auto version = std::make_shared<uint64_t>(0);
  SimUnary::Start(
      network_, process_, router.process, process_->world()->now() + absl::Milliseconds(500),
      [router, beat, version](SimUnary::Reply reply) {
        const absl::Status status = router.view->Heartbeat(beat, version.get());
        if (status.ok()) router.on_change();
        reply(status);
      },
      [this, version](const absl::Status& status) { OnAnswer(status, *version); });
}

void SimWorker::OnAnswer(const absl::Status& status, uint64_t prefix_version) {
  if (status.ok()) prefix_version_ = prefix_version;
  if (absl::IsNotFound(status)) return Register();
  process_->After(status.ok() ? kHeartbeat : kRetry, [this] { Beat(); });
}

void SimWorker::Drain(std::function<void()> left) {
  draining_ = true;
  left_ = std::move(left);
  prefill_ != nullptr ? prefill_->Drain() : decode_->Drain();
}

bool SimWorker::Idle() const { return prefill_ != nullptr ? prefill_->idle() : decode_->idle(); }

std::string SimWorker::Held() {
  std::string held;
  const kvcache::Ledger l = engine_->core()->pool()->ledger();
  const auto add = [&held](absl::string_view what, int64_t n) {
    if (n != 0) absl::StrAppend(&held, n, " ", what, "; ");
  };
  add("active blocks", l.active);
  add("leased blocks", l.leased);
  add("quarantined blocks", l.quarantined);
  add("blocks unaccounted for", l.total - l.free - l.cached - l.active - l.leased - l.quarantined);
  const kvcache::Ledger recount = engine_->core()->pool()->RecountForTest();
  add("blocks in another state than the ledger's", std::abs(l.free - recount.free) + std::abs(l.cached - recount.cached));
  const kvtransfer::Exporter::Counters c = exporter_->counters();
  add("tickets", static_cast<int64_t>(c.outstanding));
  add("claims", static_cast<int64_t>(c.in_flight));
  add("impossible events of exports", static_cast<int64_t>(c.impossible));
  add("fetches", static_cast<int64_t>(transport_->fetching()));
  if (held.empty() && !Idle()) absl::StrAppend(&held, "not idle; ");
  if (!held.empty()) return held;
  const std::string exposed = metrics_.Expose();
  for (const absl::string_view line : absl::StrSplit(exposed, '\n')) {
    for (const absl::string_view zero : {"baton_tickets ", "baton_tickets_being_fetched ", "baton_tickets_by_age{",
                                         "baton_kv_fetches_in_flight ", "baton_decode_impossible_events_total "}) {
      double value = 0;
      if (!absl::StartsWith(line, zero)) continue;
      if (!absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value) || value != 0) {
        absl::StrAppend(&held, line, "; ");
      }
    }
  }
  return held;
}

}  // namespace baton::sim
