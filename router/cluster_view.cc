#include "router/cluster_view.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace baton::router {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxAddressBytes = 256;
constexpr int kMaxEndpoints = 16;
constexpr size_t kMaxEndpointBytes = 64 << 10;
constexpr size_t kMaxFenced = 4096;
constexpr absl::Duration kMinSuspicion = absl::Seconds(1);
constexpr absl::Duration kMaxSuspicion = absl::Seconds(30);

bool Printable(const std::string& text, size_t max_bytes) {
  if (text.empty() || text.size() > max_bytes) return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

absl::Status Missing(absl::string_view field, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("worker.", field, " ", rule, "; fix the worker that registers"));
}

absl::Status CheckComplete(const v1::WorkerInfo& info) {
  if (!Printable(info.name(), kMaxNameBytes)) return Missing("name", "must be 1 to 128 printable ASCII characters");
  if (!Printable(info.incarnation(), kMaxNameBytes)) {
    return Missing("incarnation", "must be 1 to 128 printable ASCII characters");
  }
  if (info.role() != "prefill" && info.role() != "decode") {
    return Missing("role", "must be \"prefill\" or \"decode\" (role is mandatory)");
  }
  if (!Printable(info.address(), kMaxAddressBytes))
    return Missing("address", "must be a host:port of at most 256 bytes");
  if (info.model_name().empty() || info.model_name().size() > kMaxAddressBytes) {
    return Missing("model_name", "must have 1 to 256 bytes");
  }
  const v1::ModelFingerprint& f = info.fingerprint();
  for (const std::string* part : {&f.weights(), &f.config(), &f.tokenizer(), &f.numerics_class()}) {
    if (!Printable(*part, kMaxNameBytes)) {
      return Missing("fingerprint", "must have weights, config, tokenizer and numerics_class");
    }
  }
  const v1::KvLayout& l = info.layout();
  if (l.dtype().empty() || l.block_size() == 0 || l.num_layers() == 0 || l.num_kv_heads() == 0 || l.head_dim() == 0) {
    return Missing("layout", "must have dtype, block_size, num_layers, num_kv_heads and head_dim");
  }
  if (info.max_context() == 0) return Missing("max_context", "must be above 0");
  if (info.endpoints_size() > kMaxEndpoints) return Missing("endpoints", "must be at most 16");
  for (const v1::Endpoint& e : info.endpoints()) {
    if (e.address().size() > kMaxEndpointBytes) return Missing("endpoints.address", "must have at most 65536 bytes");
  }
  return absl::OkStatus();
}

template <typename T>
void Compare(absl::string_view field, const T& ours, const T& theirs, std::vector<std::string>* out) {
  if (ours == theirs) return;
  out->push_back(absl::StrCat(field, " (ours ", ours, ", theirs ", theirs, ")"));
}

StepCost FromProto(const v1::StepCost& cost) {
  return {cost.fixed_us(), cost.per_row_us(), cost.per_position_us(), cost.samples()};
}

}  // namespace

absl::string_view Name(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

absl::string_view Name(WorkerState state) {
  switch (state) {
    case WorkerState::kReady:
      return "ready";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kLost:
      return "lost";
    case WorkerState::kWarming:
      return "warming";
  }
  return "lost";
}

std::vector<std::string> Differences(const v1::WorkerInfo& ours, const v1::WorkerInfo& theirs) {
  std::vector<std::string> out;
  const v1::ModelFingerprint& a = ours.fingerprint();
  const v1::ModelFingerprint& b = theirs.fingerprint();
  Compare("model_name", ours.model_name(), theirs.model_name(), &out);
  Compare("fingerprint.weights", a.weights(), b.weights(), &out);
  Compare("fingerprint.config", a.config(), b.config(), &out);
  Compare("fingerprint.tokenizer", a.tokenizer(), b.tokenizer(), &out);
  Compare("fingerprint.numerics_class", a.numerics_class(), b.numerics_class(), &out);
  const v1::KvLayout& k = ours.layout();
  const v1::KvLayout& l = theirs.layout();
  Compare("layout.dtype", k.dtype(), l.dtype(), &out);
  Compare("layout.block_size", k.block_size(), l.block_size(), &out);
  Compare("layout.num_layers", k.num_layers(), l.num_layers(), &out);
  Compare("layout.num_kv_heads", k.num_kv_heads(), l.num_kv_heads(), &out);
  Compare("layout.head_dim", k.head_dim(), l.head_dim(), &out);
  Compare("layout.version", k.version(), l.version(), &out);
  return out;
}

ClusterView::ClusterView(ClusterViewOptions options, Clock* clock, GoneCallback on_gone)
    : options_(std::move(options)), clock_(clock), on_gone_(std::move(on_gone)) {}

const ClusterView::Worker* ClusterView::Reference(absl::string_view except_name) const {
  for (const auto& [name, worker] : workers_) {
    if (StateOf(worker) != WorkerState::kLost && absl::string_view(name) != except_name) return &worker;
  }
  return nullptr;
}

absl::Status ClusterView::CheckCompatible(const v1::WorkerInfo& info) const {
  std::vector<std::string> differences;
  if (!options_.model_name.empty()) Compare("model_name", options_.model_name, info.model_name(), &differences);
  if (!options_.tokenizer_fingerprint.empty()) {
    Compare("fingerprint.tokenizer", options_.tokenizer_fingerprint, info.fingerprint().tokenizer(), &differences);
  }
  if (!differences.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", info.name(), " differs from the router in ",
                                                      absl::StrJoin(differences, ", "),
                                                      "; start it with the router's model file and name"));
  }
  const Worker* reference = Reference(info.name());
  if (reference == nullptr) return absl::OkStatus();
  differences = Differences(reference->info, info);
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("worker ", info.name(), " differs from the cluster (worker ",
                                                    reference->info.name(), ") in ", absl::StrJoin(differences, ", "),
                                                    "; start it with the same model file and the same settings"));
}

absl::Status ClusterView::Register(const v1::WorkerInfo& info) {
  std::vector<std::pair<WorkerId, std::string>> gone;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = RegisterLocked(info, &gone);
    if (!status.ok()) {
      refused_.push_back(absl::StrCat(absl::FormatTime(absl::RFC3339_sec, clock_->Now(), absl::UTCTimeZone()), " ",
                                      status.message().substr(0, 2048)));
      while (refused_.size() > static_cast<size_t>(options_.max_refusals)) refused_.pop_front();
    }
  }
  for (const auto& [id, why] : gone) on_gone_(id, why);
  return status;
}

absl::Status ClusterView::RegisterLocked(const v1::WorkerInfo& info,
                                         std::vector<std::pair<WorkerId, std::string>>* gone) {
  if (absl::Status status = CheckComplete(info); !status.ok()) return status;
  const WorkerId id{info.name(), info.incarnation()};
  if (std::find(fenced_.begin(), fenced_.end(), id) != fenced_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", id.name, " incarnation ", id.incarnation,
                                                      " was replaced by a newer one of the same name; stop it, or "
                                                      "start it again under another --name"));
  }
  if (absl::Status status = CheckCompatible(info); !status.ok()) return status;
  auto it = workers_.find(id.name);
  if (it == workers_.end()) {
    if (workers_.size() >= static_cast<size_t>(options_.max_workers)) {
      return absl::ResourceExhaustedError(absl::StrCat("worker ", id.name, " not registered: ", workers_.size(),
                                                       " workers are, which is the limit; stop some first"));
    }
    it = workers_.emplace(id.name, Worker{}).first;
    it->second.row = rows_.size();
    WorkerSnapshot& row = rows_.emplace_back();
    row.slot = free_slots_.empty() ? next_slot_++ : free_slots_.back();
    if (!free_slots_.empty()) free_slots_.pop_back();
    Restart(&it->second, info);
  } else if (it->second.info.incarnation() != id.incarnation) {
    gone->emplace_back(WorkerId{id.name, it->second.info.incarnation()},
                       absl::StrCat("worker ", id.name, " was started again and its former incarnation is fenced"));
    fenced_.push_back(gone->back().first);
    if (fenced_.size() > kMaxFenced) fenced_.pop_front();
    Restart(&it->second, info);
  }
  Worker& worker = it->second;
  worker.info = info;
  worker.last_heard = clock_->Now();
  WorkerSnapshot& row = rows_[worker.row];
  row.role = info.role() == "prefill" ? Role::kPrefill : Role::kDecode;
  (row.role == Role::kPrefill ? ever_prefill_ : ever_decode_) = true;
  row.state = worker.warm ? WorkerState::kReady : WorkerState::kWarming;
  row.suspect = false;
  row.changes_role = info.changes_role();
  row.address = info.address();
  row.max_context = info.max_context();
  row.block_size = info.layout().block_size();
  row.max_sequences = info.max_sequences();
  row.max_batch_tokens = info.max_batch_tokens();
  row.total_blocks = info.total_blocks();
  if (!worker.load.has_ledger()) row.free_blocks = row.total_blocks;
  return absl::OkStatus();
}

void ClusterView::Restart(Worker* worker, const v1::WorkerInfo& info) {
  const size_t row = worker->row;
  const uint32_t slot = rows_[row].slot;
  prefixes_.Clear(slot);
  *worker = Worker{};
  worker->row = row;
  worker->warm = !options_.warm_up;
  WorkerSnapshot fresh;
  fresh.id = {info.name(), info.incarnation()};
  fresh.key = absl::HashOf(fresh.id.name, fresh.id.incarnation);
  fresh.slot = slot;
  rows_[row] = std::move(fresh);
}

std::map<std::string, ClusterView::Worker>::iterator ClusterView::Erase(std::map<std::string, Worker>::iterator it) {
  const size_t row = it->second.row;
  prefixes_.Clear(rows_[row].slot);
  free_slots_.push_back(rows_[row].slot);
  if (row + 1 != rows_.size()) {
    rows_[row] = std::move(rows_.back());
    workers_.at(rows_[row].id.name).row = row;
  }
  rows_.pop_back();
  return workers_.erase(it);
}

void ClusterView::UpdatePending(const Worker& worker) {
  rows_[worker.row].pending_tokens = std::min(worker.own_tokens + worker.other_tokens,
                                              worker.reported_tokens + worker.since_tokens);
}

ClusterView::Worker* ClusterView::Find(const WorkerId& id) {
  auto it = workers_.find(id.name);
  return it == workers_.end() || it->second.info.incarnation() != id.incarnation ? nullptr : &it->second;
}

absl::Status ClusterView::NotRegistered(absl::string_view name, absl::string_view incarnation) const {
  return absl::NotFoundError(absl::StrCat("worker ", name.substr(0, kMaxNameBytes), " incarnation ",
                                          incarnation.substr(0, kMaxNameBytes), " is not registered; register again"));
}

absl::Status ClusterView::Heartbeat(const v1::HeartbeatRequest& request, uint64_t* prefix_version) {
  MutexLock lock(&mu_);
  Worker* worker = Find({request.name(), request.incarnation()});
  // A lost worker's requests have gone elsewhere; it starts over as a new member.
  if (worker == nullptr || StateOf(*worker) == WorkerState::kLost) {
    return NotRegistered(request.name(), request.incarnation());
  }
  const v1::WorkerLoad& load = request.load();
  worker->load = load;
  worker->last_heard = clock_->Now();
  worker->suspect_for = absl::ZeroDuration();
  WorkerSnapshot& row = rows_[worker->row];
  row.state = request.draining() ? WorkerState::kDraining : worker->warm ? WorkerState::kReady : WorkerState::kWarming;
  row.suspect = false;
  row.sequences = load.running() + load.waiting();
  worker->reported_tokens = std::max(load.pending_tokens(), load.waiting_tokens());
  worker->since_tokens = 0;
  worker->other_tokens = worker->reported_tokens - std::min(worker->reported_tokens, worker->own_tokens);
  UpdatePending(*worker);
  row.context_tokens = load.context_tokens();
  row.block_bytes = load.ledger().block_bytes();
  row.free_blocks = load.has_ledger() ? load.ledger().free() + load.ledger().cached() : row.total_blocks;
  if (load.cost().samples() != row.cost.samples || load.prefill_cost().samples() != row.prefill_cost.samples) {
    worker->last_step = worker->last_heard;
  }
  row.cost_aged = worker->last_heard - worker->last_step >= options_.cost_ages_after;
  row.cost = FromProto(load.cost());
  row.prefill_cost = FromProto(load.prefill_cost());
  row.mixed_batch_tokens = load.mixed_batch_tokens();
  if (request.has_prefixes()) {
    const uint64_t version = prefixes_.Apply(row.slot, request.prefixes());
    if (prefix_version != nullptr) *prefix_version = version;
  }
  return absl::OkStatus();
}

absl::Status ClusterView::Deregister(const WorkerId& id) {
  MutexLock lock(&mu_);
  if (Find(id) == nullptr) return NotRegistered(id.name, id.incarnation);
  Erase(workers_.find(id.name));
  return absl::OkStatus();
}

void ClusterView::ExpireSilent() {
  std::vector<std::pair<WorkerId, std::string>> gone;
  {
    MutexLock lock(&mu_);
    const absl::Time now = clock_->Now();
    for (auto it = workers_.begin(); it != workers_.end();) {
      Worker& worker = it->second;
      WorkerSnapshot& row = rows_[worker.row];
      const absl::Duration age = now - worker.last_heard;
      if (row.state == WorkerState::kLost) {
        it = age >= options_.forget_lost_after ? Erase(it) : std::next(it);
        continue;
      }
      if (now >= worker.suspect_until) row.suspect = false;
      if (age >= options_.worker_timeout) {
        row.state = WorkerState::kLost;
        worker.warm = !options_.warm_up;  // should it come back
        prefixes_.Clear(row.slot);
        gone.emplace_back(row.id, absl::StrCat("worker ", it->first, " sent no heartbeat for ",
                                               absl::ToInt64Milliseconds(age), " ms and counts as lost"));
      }
      ++it;
    }
  }
  for (const auto& [id, why] : gone) on_gone_(id, why);
}

void ClusterView::ForgiveSilence(absl::Duration while_deaf) {
  MutexLock lock(&mu_);
  const absl::Time now = clock_->Now();
  for (auto& [name, worker] : workers_) worker.last_heard = std::min(worker.last_heard + while_deaf, now);
}

std::vector<WorkerSnapshot> ClusterView::Snapshot() const {
  MutexLock lock(&mu_);
  std::vector<WorkerSnapshot> out;
  out.reserve(workers_.size());
  for (const auto& [name, worker] : workers_) out.push_back(rows_[worker.row]);
  return out;
}

void ClusterView::Read(
    absl::FunctionRef<void(std::span<const WorkerSnapshot>, const PrefixDirectory&)> look) const {
  MutexLock lock(&mu_);
  look(rows_, prefixes_);
}

bool ClusterView::Ever(Role role) const {
  MutexLock lock(&mu_);
  return role == Role::kPrefill ? ever_prefill_ : ever_decode_;
}

bool ClusterView::Ready() const {
  MutexLock lock(&mu_);
  bool prefill = false, decode = false;
  for (const WorkerSnapshot& w : rows_) {
    if (w.state == WorkerState::kReady) (w.role == Role::kPrefill ? prefill : decode) = true;
  }
  return decode && (prefill || !options_.prefill_needed);
}

std::optional<uint32_t> ClusterView::MaxContext() const {
  MutexLock lock(&mu_);
  std::optional<uint32_t> least;
  for (const WorkerSnapshot& w : rows_) {
    if (w.state == WorkerState::kLost) continue;
    least = std::min(least.value_or(w.max_context), w.max_context);
  }
  return least;
}

void ClusterView::AddInFlight(const WorkerId& id, const InFlightWork& work) {
  MutexLock lock(&mu_);
  Worker* worker = Find(id);
  if (worker == nullptr) return;
  worker->own_tokens += work.tokens;
  worker->since_tokens += work.tokens;
  UpdatePending(*worker);
  WorkerSnapshot* row = &rows_[worker->row];
  row->in_flight += work.requests;
  row->sequences += work.sequences;
  row->promised_sequences += work.sequences;
  row->promised_blocks += work.blocks;
  row->free_blocks -= std::min(row->free_blocks, work.blocks);
}

void ClusterView::RemoveInFlight(const WorkerId& id, const InFlightWork& work) {
  MutexLock lock(&mu_);
  Worker* worker = Find(id);
  if (worker == nullptr) return;
  WorkerSnapshot* row = &rows_[worker->row];
  if (row->in_flight < work.requests) return;
  worker->own_tokens -= std::min(worker->own_tokens, work.tokens);
  UpdatePending(*worker);
  row->in_flight -= work.requests;
  row->sequences -= std::min(row->sequences, work.sequences);
  row->promised_sequences -= std::min(row->promised_sequences, work.sequences);
  row->promised_blocks -= std::min(row->promised_blocks, work.blocks);
  row->free_blocks = std::min(row->free_blocks + work.blocks, row->total_blocks);
}

void ClusterView::ExpectPrefixes(const WorkerId& id, std::span<const uint64_t> names) {
  MutexLock lock(&mu_);
  if (const Worker* worker = Find(id)) prefixes_.Expect(rows_[worker->row].slot, names, clock_->Now());
}

void ClusterView::MarkWarm(const WorkerId& id) {
  MutexLock lock(&mu_);
  Worker* worker = Find(id);
  if (worker == nullptr) return;
  worker->warm = true;
  WorkerSnapshot& row = rows_[worker->row];
  if (row.state == WorkerState::kWarming) row.state = WorkerState::kReady;
}

void ClusterView::ReportUnreachable(const WorkerId& id) {
  MutexLock lock(&mu_);
  Worker* worker = Find(id);
  if (worker == nullptr) return;
  WorkerSnapshot& row = rows_[worker->row];
  if (row.suspect) return;  // calls that failed together count once
  row.suspect = true;
  worker->suspect_for = std::clamp(worker->suspect_for * 2, kMinSuspicion, kMaxSuspicion);
  worker->suspect_until = clock_->Now() + worker->suspect_for;
}

std::vector<v1::KvPeer> ClusterView::KvPeers(const WorkerId& id) const {
  MutexLock lock(&mu_);
  std::vector<v1::KvPeer> peers;
  const auto self = workers_.find(id.name);
  if (self == workers_.end()) return peers;
  for (const auto& [name, w] : workers_) {
    if (w.info.role() == self->second.info.role() || rows_[w.row].state == WorkerState::kLost) continue;
    v1::KvPeer peer;
    peer.set_name(name);
    peer.set_incarnation(w.info.incarnation());
    for (const v1::Endpoint& endpoint : w.info.endpoints()) {
      if (!endpoint.address().empty()) *peer.add_endpoints() = endpoint;
    }
    if (peer.endpoints_size() > 0) peers.push_back(std::move(peer));
  }
  return peers;
}

void ClusterView::FillStatus(v1::ClusterStatus* status) const {
  MutexLock lock(&mu_);
  const absl::Time now = clock_->Now();
  for (const auto& [name, w] : workers_) {
    v1::ClusterWorker* out = status->add_workers();
    *out->mutable_info() = w.info;
    *out->mutable_load() = w.load;
    out->set_state(std::string(Name(StateOf(w))));
    const int64_t age_ms = absl::ToInt64Milliseconds(now - w.last_heard);
    out->set_heartbeat_age_ms(static_cast<uint32_t>(std::clamp<int64_t>(age_ms, 0, UINT32_MAX)));
    out->set_in_flight(rows_[w.row].in_flight);
  }
  if (const Worker* reference = Reference("")) *status->mutable_fingerprint() = reference->info.fingerprint();
  for (const std::string& line : refused_) status->add_refused(line);
}

}  // namespace baton::router
