#include "tests/sim/cluster_sim.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/logging.h"
#include "common/status.h"
#include "tests/sim/sim_requests.h"
#include "tests/sim/sim_router.h"
#include "tests/sim/sim_worker.h"

namespace baton::sim {
namespace {

constexpr absl::Duration kFaultTime = absl::Milliseconds(1200);  // faults begin within it
constexpr absl::Duration kLongestFault = absl::Seconds(4);
constexpr absl::Duration kWholeWithin = absl::Seconds(30);  // all workers are members again; a drain may take its requests' time
constexpr absl::Duration kPatience = absl::Seconds(20);  // a request's usual deadline
constexpr absl::Duration kQuietWithin = absl::Seconds(25);

class Schedule {
 public:
  explicit Schedule(const Options& options) : options_(options), world_(options.seed), network_(&world_) {
    world_.verbose = options.verbose;
  }

  Outcome Run();

 private:
  // A name in the cluster; its lives follow one another.
  struct Place {
    std::string name;
    router::Role role;
    SimWorker* now = nullptr;  // null: between two lives
    int lives = 0;
  };

  void Build();
  void StartRouter();
  void StartWorker(Place* place);
  void Ask(bool must_succeed);
  void PlanFaults();
  void Inject();
  void Kill(Place* place);
  void Freeze(const ProcessPtr& process);
  void DrainWorker(Place* place);
  void RestartRouter();
  void CutLink(bool break_it);
  void Forge();
  bool AllEnded() const;
  bool Whole() const;
  std::string Held();
  void Judge(Outcome* outcome);

  std::vector<ProcessPtr> Processes() const;
  Place* Someone() { return &places_[world_.Below(places_.size())]; }
  SimWorker* FindById(const router::WorkerId& id);

  const Options options_;
  mutable World world_;
  Network network_;
  std::vector<std::unique_ptr<SimRouter>> routers_;  // the last one lives
  std::vector<std::unique_ptr<SimWorker>> workers_;  // all that ever were
  std::vector<Place> places_;
  std::vector<std::shared_ptr<Asked>> asked_;
  std::multimap<uint64_t, int> faults_by_message_;
  std::map<std::string, int> faults_;
  absl::Time faults_over_;
  int64_t num_blocks_ = 0;
  int max_batch_tokens_ = 0;
  bool block_tags_ = false;
  bool same_address_ = false;  // a worker that is started again listens where it did before
};

void Schedule::StartRouter() {
  const std::string life = absl::StrCat("i", routers_.size());
  routers_.push_back(std::make_unique<SimRouter>(&network_, std::make_shared<Process>(&world_, "router", life),
                                                 [this](const router::WorkerId& id) { return FindById(id); }));
  routers_.back()->Start();
}

void Schedule::StartWorker(Place* place) {
  if (place->now != nullptr) return;
  // 32 hex digits, one for each life.
  const size_t which = static_cast<size_t>(place - places_.data());
  auto process = std::make_shared<Process>(
      &world_, place->name, absl::StrCat(absl::Hex(which + 1, absl::kZeroPad16), absl::Hex(place->lives++, absl::kZeroPad16)));
  workers_.push_back(std::make_unique<SimWorker>(
      &network_, process, place->role, num_blocks_, max_batch_tokens_, block_tags_,
      [this](const v1::Endpoint& endpoint) -> SimTransport* {
        SimWorker* there = FindById({endpoint.worker_name(), endpoint.incarnation()});
        return there->process()->alive() ? there->transport() : nullptr;
      },
      [this] { return routers_.back()->membership(); }));
  workers_.back()->transport()->frees_while_landing = options_.frees_while_landing;
  place->now = workers_.back().get();
  place->now->Join();
}

// Who answers at that worker's address: it, or, where ports are fixed, whoever was started in its place.
SimWorker* Schedule::FindById(const router::WorkerId& id) {
  for (const Place& place : places_) {
    if (same_address_ && place.name == id.name && place.now != nullptr) return place.now;
  }
  for (const auto& worker : workers_) {
    if (worker->process()->name() == id.name && worker->process()->incarnation() == id.incarnation) return worker.get();
  }
  return nullptr;
}

void Schedule::Build() {
  num_blocks_ = 48 + static_cast<int64_t>(world_.Below(48));
  const int batches[] = {4, 16, 64};
  max_batch_tokens_ = batches[world_.Below(3)];
  block_tags_ = world_.Chance(4);
  same_address_ = world_.Chance(2);
  const size_t prefill = 1 + world_.Below(2), decode = 1 + world_.Below(3);
  for (size_t i = 0; i < prefill; ++i) places_.push_back({absl::StrCat("p", i), router::Role::kPrefill});
  for (size_t i = 0; i < decode; ++i) places_.push_back({absl::StrCat("d", i), router::Role::kDecode});
  StartRouter();
  for (Place& place : places_) StartWorker(&place);
}

void Schedule::Ask(bool must_succeed) {
  auto asked = std::make_shared<Asked>();
  // Of one conversation, so that turns find one another.
  const size_t base = world_.Below(kNumQuestions / 8) * 8;
  asked->question = &QuestionAt(base + world_.Below(8));
  asked->id = absl::StrCat("r", asked_.size());
  asked->submitted = world_.now();
  asked->deadline = world_.now() + kPatience;
  asked->must_succeed = must_succeed;
  if (!must_succeed && world_.Chance(5)) {
    asked->deadline = world_.now() + world_.Between(absl::Milliseconds(5), absl::Milliseconds(400));
  }
  asked_.push_back(asked);
  router::AdmittedRequest request;
  request.request_id = asked->id;
  request.model = "hash";
  request.tenant = asked->question->tenant;
  request.prompt_token_ids = asked->question->prompt;
  request.sampling = asked->question->sampling;
  SimRouter* router = routers_.back().get();
  router->process()->Run([this, router, asked, request] {
    auto driver = router->Submit(request, asked->deadline, std::make_unique<SimClient>(&world_, router, asked));
    if (!asked->ended) asked->driver = std::move(driver);
  });
  if (must_succeed || !world_.Chance(4)) return;
  // Half of them in the first moments, where a request passes most of its states.
  const absl::Duration within = absl::Milliseconds(world_.Chance(2) ? 12 : 200);
  world_.After(world_.Between(absl::ZeroDuration(), within), [this, asked, router] {
    if (asked->ended) return;
    asked->cancelled = true;
    ++faults_["cancel"];
    world_.Note(absl::StrCat("cancel ", asked->id));
    router->process()->Run([asked] {
      if (const auto driver = asked->driver) driver->ClientGone();
    });
  });
}

void Schedule::PlanFaults() {
  const uint64_t number = world_.Chance(6) ? 0 : 1 + world_.Below(4);
  for (uint64_t i = 0; i < number; ++i) {
    if (world_.Chance(2)) {
      const absl::Duration within = world_.Chance(2) ? absl::Milliseconds(200) : kFaultTime;
      world_.After(world_.Between(absl::ZeroDuration(), within), [this] { Inject(); });
    } else {
      faults_by_message_.emplace(world_.Below(600), 0);
    }
  }
  network_.on_message = [this] {
    if (faults_by_message_.empty() || network_.messages() < faults_by_message_.begin()->first) return;
    faults_by_message_.erase(faults_by_message_.begin());
    world_.After(absl::ZeroDuration(), [this] { Inject(); });
  };
}

void Schedule::Inject() {
  Place* place = Someone();
  SimWorker* worker = place->now;
  switch (world_.Below(13)) {
    case 0:
    case 1:
    case 2:
      return Kill(place);
    case 3:
    case 4:
      if (worker != nullptr) Freeze(worker->process());
      return;
    case 5:
    case 6:
      return CutLink(true);
    case 7:
      return CutLink(false);
    case 8:
      if (worker == nullptr) return;
      ++faults_["damage"];
      return worker->transport()->Damage(1 + static_cast<int>(world_.Below(3)));
    case 9:
      return DrainWorker(place);
    case 10:
      return Freeze(routers_.back()->process());
    case 11:
      return RestartRouter();
    case 12:
      return Forge();
  }
}

std::vector<ProcessPtr> Schedule::Processes() const {
  std::vector<ProcessPtr> all = {routers_.back()->process()};
  for (const Place& place : places_) {
    if (place.now != nullptr) all.push_back(place.now->process());
  }
  return all;
}

void Schedule::Kill(Place* place) {
  if (place->now == nullptr) return;
  ++faults_["kill"];
  world_.Note(absl::StrCat("kill ", place->name));
  SimWorker* victim = std::exchange(place->now, nullptr);
  victim->TearDown();
  network_.Died(victim->process(), Processes());
  const absl::Duration away = world_.Between(absl::Milliseconds(5), absl::Milliseconds(1500));
  faults_over_ = std::max(faults_over_, world_.now() + away);
  world_.After(away, [this, place] { StartWorker(place); });
}

void Schedule::Freeze(const ProcessPtr& process) {
  ++faults_["freeze"];
  world_.Note(absl::StrCat("freeze ", process->name()));
  process->Freeze();
  // Below and beyond the lease, the heartbeats' timeout and the transport's patience.
  const absl::Duration times[] = {absl::Milliseconds(20), absl::Milliseconds(400), absl::Milliseconds(1500),
                                  absl::Milliseconds(3500)};
  const absl::Duration time = world_.Between(absl::Milliseconds(1), times[world_.Below(4)]);
  faults_over_ = std::max(faults_over_, world_.now() + time);
  world_.After(time, [this, process] {
    world_.Note(absl::StrCat("thaw ", process->name()));
    process->Thaw();
  });
}

void Schedule::CutLink(bool break_it) {
  const std::vector<ProcessPtr> all = Processes();
  const ProcessPtr a = all[world_.Below(all.size())], b = all[world_.Below(all.size())];
  if (a == b) return;
  world_.Note(absl::StrCat(break_it ? "break " : "clog ", a->name(), " ", b->name()));
  if (break_it) {
    ++faults_["break"];
    return network_.Break(a, b);
  }
  ++faults_["clog"];
  const absl::Duration time = world_.Between(absl::Milliseconds(10), absl::Milliseconds(2500));
  faults_over_ = std::max(faults_over_, world_.now() + time);
  network_.Clog(a, b, time);
}

// Somebody presents tickets that were seen on the way: as they were, or altered.
void Schedule::Forge() {
  ++faults_["forge"];
  for (const auto& thief : workers_) {
    for (v1::Ticket ticket : thief->transport()->seen()) {
      SimWorker* victim = FindById({ticket.endpoint().worker_name(), ticket.endpoint().incarnation()});
      if (!victim->process()->alive() || victim->process()->frozen()) continue;
      const bool old_life = victim->process()->incarnation() != ticket.endpoint().incarnation();
      const uint64_t kind = world_.Below(5);
      if (kind == 0) ticket.set_request_id("another");
      if (kind == 1) ticket.set_epoch(ticket.epoch() + 1);
      if (kind == 2) ticket.mutable_blocks(0)->set_block_id(ticket.blocks(0).block_id() ^ 1);
      if (kind == 3) ticket.mutable_mac()->back() ^= 1;
      if (kind == 4 && !old_life) continue;  // as it was, and perhaps still good
      v1::FetchOpen open;
      *open.mutable_ticket() = ticket;
      open.set_consumer("thief");
      open.set_attempt(1);
      if (victim->exporter()->ClaimTicket(open).ok()) {
        world_.Violation(absl::StrCat("a forged ticket was taken (", kind, "), or one of a former life ", old_life));
      }
    }
  }
}

void Schedule::DrainWorker(Place* place) {
  SimWorker* leaving = place->now;
  if (leaving == nullptr || leaving->process()->frozen()) return;
  ++faults_["drain"];
  world_.Note(absl::StrCat("drain ", place->name));
  leaving->Drain([this, place, leaving] {
    if (place->now != leaving) return;
    world_.Note(absl::StrCat("left ", place->name));
    place->now = nullptr;
    world_.After(absl::ZeroDuration(), [this, place, leaving] {
      leaving->TearDown();
      network_.Died(leaving->process(), Processes());
      world_.After(absl::Milliseconds(world_.Below(300)), [this, place] { StartWorker(place); });
    });
  });
}

void Schedule::RestartRouter() {
  ++faults_["router"];
  world_.Note("router dies");
  SimRouter* old = routers_.back().get();
  old->TearDown();
  // Its clients hear of it from their connections.
  for (const auto& asked : asked_) {
    if (asked->ended) continue;
    asked->with_router = false;
    asked->driver.reset();
  }
  const ProcessPtr process = old->process();
  StartRouter();
  network_.Died(process, Processes());
}

bool Schedule::AllEnded() const {
  return std::all_of(asked_.begin(), asked_.end(), [](const auto& a) { return a->ended || !a->with_router; });
}

// Every worker lives and is a member that takes requests.
bool Schedule::Whole() const {
  return world_.now() >= faults_over_ && std::all_of(places_.begin(), places_.end(), [this](const Place& place) {
           return place.now != nullptr && routers_.back()->Has({place.name, place.now->process()->incarnation()});
         });
}

std::string Schedule::Held() {
  std::string held = routers_.back()->Held();
  for (const Place& place : places_) {
    if (!held.empty()) break;  // one reason to wait is enough
    if (place.now == nullptr) {
      absl::StrAppend(&held, place.name, " is away; ");
    } else if (const std::string there = place.now->Held(); !there.empty()) {
      absl::StrAppend(&held, place.name, " ", place.now->process()->incarnation(), " holds ", there);
    }
  }
  return held;
}

Outcome Schedule::Run() {
  Build();
  // Workers are there before requests come, mostly.
  if (world_.Chance(8)) {
    ++faults_["early"];
  } else {
    world_.RunUntil(world_.now() + absl::Milliseconds(100));
  }
  PlanFaults();
  const uint64_t requests = 3 + world_.Below(8);
  const absl::Duration arrivals = absl::Milliseconds(world_.Chance(2) ? 150 : 800);
  for (uint64_t i = 0; i < requests; ++i) {
    world_.After(world_.Between(absl::ZeroDuration(), arrivals), [this] { Ask(false); });
  }
  world_.RunUntil(world_.now() + kFaultTime);
  const absl::Time hung = world_.now() + kPatience + kLongestFault;
  while (!AllEnded() && world_.now() < hung) world_.RunUntil(world_.now() + absl::Milliseconds(100));

  // No fault begins any more; what was begun ends.
  network_.on_message = nullptr;
  faults_by_message_.clear();
  const absl::Time broken = world_.now() + kWholeWithin;
  while (!Whole() && world_.now() < broken) world_.RunUntil(world_.now() + absl::Milliseconds(50));
  if (!Whole()) world_.Violation("a worker is not a member again");
  for (int i = 0; i < 2; ++i) Ask(true);
  const absl::Time late = world_.now() + kPatience + absl::Seconds(1);
  while (!AllEnded() && world_.now() < late) world_.RunUntil(world_.now() + absl::Milliseconds(50));

  std::string held = Held();
  const absl::Time loud = world_.now() + kQuietWithin;
  while (!held.empty() && world_.now() < loud) {
    world_.RunUntil(world_.now() + absl::Milliseconds(250));
    held = Held();
  }
  if (!held.empty()) world_.Violation(absl::StrCat("when all was over: ", held));

  Outcome outcome;
  Judge(&outcome);
  for (const auto& router : routers_) router->TearDown();
  for (const auto& worker : workers_) worker->TearDown();
  world_.Clear();
  return outcome;
}

void Schedule::Judge(Outcome* outcome) {
  for (const auto& asked : asked_) {
    if (!asked->with_router) {
      ++outcome->ends["ROUTER_DIED"];
      continue;
    }
    if (!asked->ended) {
      world_.Violation(absl::StrCat(asked->id, " hangs"));
      continue;
    }
    const std::string why = Unexplained(*asked, faults_.size() > faults_.count("cancel"));
    if (!why.empty()) world_.Violation(absl::StrCat(asked->id, " ", why));
    ++outcome->ends[RuleFor(asked->status.code()).name];
    for (const auto& router : routers_) {
      const uint32_t attempts = router->attempts(asked->id);
      if (attempts > 1) outcome->moves += static_cast<int>(attempts) - 1;
    }
  }
  outcome->violations = world_.violations();
  outcome->trace = world_.trace();
  outcome->events = world_.steps();
  outcome->faults = faults_;
}

}  // namespace

Outcome RunSchedule(const Options& options) {
  static const absl::Status quiet = InitLogging("error", "text", "sim");
  if (!quiet.ok()) return {.violations = {quiet.ToString()}};
  auto schedule = std::make_unique<Schedule>(options);
  Outcome outcome = schedule->Run();
  // What a bug left open could not be taken down in order.
  if (!outcome.violations.empty()) (void)schedule.release();
  return outcome;
}

}  // namespace baton::sim
