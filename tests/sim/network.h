// A network between processes: messages take time, connections break, links clog, peers die with or without a word.
//
// Thread contract: one thread.
#ifndef BATON_TESTS_SIM_NETWORK_H_
#define BATON_TESTS_SIM_NETWORK_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/event_stream.h"
#include "common/status.h"
#include "router/worker_link.h"
#include "tests/sim/world.h"

namespace baton::sim {

// What runs over a connection and hears of its end.
class Connected {
 public:
  virtual ~Connected() = default;
  // The connection broke: both sides that live will hear so, each in its time.
  virtual void Broken() = 0;
};

// One direction of one stream: in order.
struct Pipe {
  absl::Time last;
};

class Network {
 public:
  explicit Network(World* world) : world_(world) {}
  World* world() { return world_; }
  uint64_t messages() const { return messages_; }
  std::function<void()> on_message;  // before each: where faults are put in

  void Attach(const ProcessPtr& a, const ProcessPtr& b, const std::shared_ptr<Connected>& what) {
    Link& link = links_[Key(*a, *b)];
    std::erase_if(link.users, [](const auto& user) { return user.expired(); });
    link.users.push_back(what);
  }
  // Arrives later, behind what went through `pipe` before (null: on its own), unless the receiver is dead.
  void Send(const ProcessPtr& from, const ProcessPtr& to, Pipe* pipe, std::function<void()> arrive) {
    if (!from->alive()) return;
    ++messages_;
    if (on_message) on_message();
    absl::Time when = world_->now() + Delay();
    when = std::max(when, links_[Key(*from, *to)].clogged_until);
    if (pipe != nullptr) {
      when = std::max(when, pipe->last);
      pipe->last = when;
    }
    world_->At(when, [to, arrive = std::move(arrive)] { to->Run(arrive); });
  }
  void Break(const ProcessPtr& a, const ProcessPtr& b) {
    const std::vector<std::weak_ptr<Connected>> users = std::move(links_[Key(*a, *b)].users);
    links_[Key(*a, *b)].users.clear();
    for (const auto& user : users) {
      if (const std::shared_ptr<Connected> live = user.lock()) live->Broken();
    }
  }
  // Nothing gets through for so long; then all of it does.
  void Clog(const ProcessPtr& a, const ProcessPtr& b, absl::Duration time) {
    links_[Key(*a, *b)].clogged_until = world_->now() + time;
  }
  // A process is gone: its kernel says so to all peers, or (its host died) they find out by keepalive.
  void Died(const ProcessPtr& dead, const std::vector<ProcessPtr>& peers) {
    const bool silent = world_->Chance(5);
    const absl::Duration after =
        silent ? world_->Between(absl::Seconds(1), absl::Seconds(15)) : absl::Milliseconds(world_->Below(20));
    for (const ProcessPtr& peer : peers) {
      if (peer != dead) world_->After(after, [this, dead, peer] { Break(dead, peer); });
    }
  }

 private:
  struct Link {
    absl::Time clogged_until = absl::InfinitePast();
    std::vector<std::weak_ptr<Connected>> users;
  };
  using LinkKey = std::pair<std::string, std::string>;
  static LinkKey Key(const Process& a, const Process& b) {
    return std::minmax(a.name() + "/" + a.incarnation(), b.name() + "/" + b.incarnation());
  }
  absl::Duration Delay() {
    if (world_->Chance(40)) return world_->Between(absl::Milliseconds(5), absl::Milliseconds(60));
    return world_->Between(absl::Microseconds(50), absl::Milliseconds(3));
  }

  World* const world_;
  uint64_t messages_ = 0;
  std::map<LinkKey, Link> links_;
};

// One server-streaming call, both of its ends; what gRPC is between a real router and a real worker.
template <class Event>
class SimCall final : public router::WorkerCall,
                      public Connected,
                      public std::enable_shared_from_this<SimCall<Event>> {
 public:
  using Serve = std::function<void(const rpc::MakeEventStream<Event>&)>;

  SimCall(Network* network, ProcessPtr client, ProcessPtr server, std::function<void(Event&)> on_event,
          std::function<void(absl::Status)> on_end)
      : network_(network),
        client_(std::move(client)),
        server_(std::move(server)),
        on_event_(std::move(on_event)),
        on_end_(std::move(on_end)) {}

  void Start(absl::Time deadline, Serve serve) {
    const auto self = this->shared_from_this();
    network_->Attach(client_, server_, self);
    ToServer([self, serve = std::move(serve)] {
      serve([self](std::function<void()> on_cancel) {
        self->on_cancel_ = std::move(on_cancel);
        self->server_open_ = true;
        return std::make_shared<ServerEnd>(self);
      });
    });
    const absl::Duration left = deadline - client_->world()->now();
    client_->After(left, [self] { self->EndClient(absl::DeadlineExceededError("the call's deadline passed")); });
    server_->After(left, [self] { self->CancelServer(); });
  }

  void Cancel() override {
    if (ended_ || cancelling_) return;
    cancelling_ = true;
    const auto self = this->shared_from_this();
    ToServer([self] { self->CancelServer(); });
    // Its own end comes soon; until then what is on its way may still arrive.
    client_->After(client_->world()->Between(absl::ZeroDuration(), absl::Milliseconds(1)),
                   [self] { self->EndClient(absl::CancelledError("cancelled by the caller")); });
  }

  void Broken() override {
    broken_ = true;
    World* world = client_->world();
    lost_ = world->Chance(2);  // what was on its way
    const auto self = this->shared_from_this();
    client_->After(absl::Milliseconds(world->Below(30)),
                   [self] { self->EndClient(absl::UnavailableError("Socket closed")); });
    server_->After(absl::Milliseconds(world->Below(30)), [self] { self->CancelServer(); });
  }

  void Refused() { EndClient(absl::UnavailableError("failed to connect to all addresses")); }

  // Lets go of what both ends hold, without a word: the schedule is over, or the server's process died.
  void DropServer() {
    server_open_ = false;
    CancelServer();
  }
  void DropClient() {
    ended_ = true;
    on_event_ = nullptr;
    on_end_ = nullptr;
  }
  const ProcessPtr& server() const { return server_; }
  const ProcessPtr& client() const { return client_; }
  bool over() const { return ended_ && on_cancel_ == nullptr; }

 private:
  class ServerEnd final : public rpc::EventStream<Event> {
   public:
    explicit ServerEnd(std::shared_ptr<SimCall> call) : call_(std::move(call)) {}
    bool Push(Event message) override {
      if (!call_->server_open_) return false;
      call_->ToClient([call = call_, message = std::move(message)]() mutable {
        if (!call->ended_) call->on_event_(message);
      });
      return true;
    }
    void Finish(absl::Status status) override {
      if (!call_->server_open_) return;
      call_->server_open_ = false;
      // As over gRPC: codes and messages cross, through the same conversions.
      call_->ToClient([call = call_, status = FromGrpcStatus(ToGrpcStatus(status))] { call->EndClient(status); });
      call_->server_->After(call_->server_->world()->Between(absl::ZeroDuration(), absl::Milliseconds(2)),
                            [call = call_] { std::exchange(call->on_cancel_, nullptr) = nullptr; });
    }
    bool cancelled() const override { return call_->cancelled_; }

   private:
    const std::shared_ptr<SimCall> call_;
  };

  void ToServer(std::function<void()> what) {
    if (broken_) return;
    network_->Send(client_, server_, &up_, [self = this->shared_from_this(), what = std::move(what)] {
      if (!self->lost_) what();
    });
  }
  void ToClient(std::function<void()> what) {
    if (broken_) return;
    auto shared = std::make_shared<std::function<void()>>(std::move(what));
    network_->Send(server_, client_, &down_, [self = this->shared_from_this(), shared] {
      if (!self->lost_) (*shared)();
    });
  }
  void EndClient(const absl::Status& status) {
    if (ended_) return;
    ended_ = true;
    if (!cancelling_ && absl::IsDeadlineExceeded(status)) ToServer([self = this->shared_from_this()] { self->CancelServer(); });
    const auto end = std::exchange(on_end_, nullptr);
    on_event_ = nullptr;
    end(status);
  }
  void CancelServer() {
    server_open_ = false;
    cancelled_ = true;
    if (const auto cancel = std::exchange(on_cancel_, nullptr)) cancel();
  }

  Network* const network_;
  const ProcessPtr client_, server_;
  Pipe up_, down_;
  bool broken_ = false, lost_ = false;
  // The client's end.
  std::function<void(Event&)> on_event_;
  std::function<void(absl::Status)> on_end_;
  bool ended_ = false, cancelling_ = false;
  // The server's.
  std::function<void()> on_cancel_;
  bool server_open_ = false, cancelled_ = false;
};

// One unary call. `done` hears OK or an error once; a call may be carried out twice when its first answer was lost.
class SimUnary final : public Connected, public std::enable_shared_from_this<SimUnary> {
 public:
  using Reply = std::function<void(absl::Status)>;

  static void Start(Network* network, const ProcessPtr& client, const ProcessPtr& server, absl::Time deadline,
                    std::function<void(Reply)> serve, Reply done) {
    auto call = std::make_shared<SimUnary>(network, client, server, std::move(done));
    network->Attach(client, server, call);
    World* world = network->world();
    const int times = world->Chance(30) ? 2 : 1;
    for (int i = 0; i < times; ++i) {
      network->Send(client, server, nullptr, [call, serve] {
        if (call->lost_) return;
        serve([call](absl::Status status) {
          call->network_->Send(call->server_, call->client_, nullptr,
                               [call, status = FromGrpcStatus(ToGrpcStatus(status))] {
            if (!call->lost_) call->End(status);
          });
        });
      });
    }
    client->After(deadline - world->now(), [call] { call->End(absl::DeadlineExceededError("no answer in time")); });
  }

  SimUnary(Network* network, ProcessPtr client, ProcessPtr server, Reply done)
      : network_(network), client_(std::move(client)), server_(std::move(server)), done_(std::move(done)) {}
  void Broken() override {
    lost_ = true;
    client_->After(absl::Milliseconds(client_->world()->Below(30)),
                   [self = shared_from_this()] { self->End(absl::UnavailableError("Socket closed")); });
  }

 private:
  void End(const absl::Status& status) {
    if (const Reply done = std::exchange(done_, nullptr)) done(status);
  }
  Network* const network_;
  const ProcessPtr client_, server_;
  Reply done_;
  bool lost_ = false;
};

}  // namespace baton::sim

#endif  // BATON_TESTS_SIM_NETWORK_H_
