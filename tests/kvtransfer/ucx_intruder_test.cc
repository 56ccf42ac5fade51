// What a process that reaches the UCX port without a valid ticket can do: nothing but get its connection closed.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <ucp/api/ucp.h>

#include <deque>
#include <functional>
#include <optional>

#include "kvtransfer/transport.h"
#include "kvtransfer/ucx_wire.h"
#include "tests/kvtransfer/peer_process.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer {
namespace {

using testing::PeerProcess;

// A bare UCX client, independent of ours. One thread.
class Intruder {
 public:
  Intruder() {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM;
    ucp_config_t* config = nullptr;
    EXPECT_EQ(ucp_config_read(nullptr, nullptr, &config), UCS_OK);
    ucp_config_modify(config, "TLS", "tcp");
    EXPECT_EQ(ucp_init(&params, config, &context_), UCS_OK);
    ucp_config_release(config);
    ucp_worker_params_t worker_params{};
    EXPECT_EQ(ucp_worker_create(context_, &worker_params, &worker_), UCS_OK);
    ucp_am_handler_param_t am{};
    am.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    am.arg = this;
    am.id = static_cast<unsigned>(UcxMessage::kEnd);
    am.cb = [](void* arg, const void* header, size_t header_size, void* data, size_t size, const ucp_am_recv_param_t*) {
      EXPECT_TRUE(DecodeEnd(header, header_size).has_value());
      auto& end = static_cast<Intruder*>(arg)->end_.emplace();
      EXPECT_TRUE(end.ParseFromArray(data, static_cast<int>(size)));
      return UCS_OK;
    };
    ucp_worker_set_am_recv_handler(worker_, &am);
    am.id = static_cast<unsigned>(UcxMessage::kBlock);
    am.cb = [](void* arg, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
      ++static_cast<Intruder*>(arg)->blocks_;
      return UCS_OK;
    };
    ucp_worker_set_am_recv_handler(worker_, &am);
  }
  ~Intruder() {
    Close();
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  void Connect(const std::string& address) {
    Close();
    closed_ = false;
    end_.reset();
    const size_t colon = address.find(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to);
    params.sockaddr.addrlen = sizeof(to);
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.arg = this;
    params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t) { static_cast<Intruder*>(arg)->closed_ = true; };
    ASSERT_EQ(ucp_ep_create(worker_, &params, &ep_), UCS_OK);
  }
  void Send(unsigned id, const std::string& header, const std::string& payload, uint32_t flags = 0) {
    const std::string& h = sent_.emplace_back(header);
    const std::string& p = sent_.emplace_back(payload);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_REPLY | flags;
    ucs_status_ptr_t r = ucp_am_send_nbx(ep_, id, h.data(), h.size(), p.data(), p.size(), &param);
    if (UCS_PTR_IS_PTR(r)) requests_.push_back(r);
  }
  // Until the peer closes the connection; false when it does not within 20 s.
  bool WaitClosed() {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (!closed_ && absl::Now() < until) {
      if (ucp_worker_progress(worker_) == 0) absl::SleepFor(absl::Milliseconds(1));
    }
    return closed_;
  }
  const std::optional<v1::TransferEnd>& end() const { return end_; }
  int blocks() const { return blocks_; }

 private:
  void Close() {
    if (ep_ == nullptr) return;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t r = ucp_ep_close_nbx(ep_, &param);
    if (UCS_PTR_IS_PTR(r)) {
      while (ucp_request_check_status(r) == UCS_INPROGRESS) ucp_worker_progress(worker_);
      ucp_request_free(r);
    }
    for (void* request : requests_) ucp_request_free(request);
    requests_.clear();
    sent_.clear();
    ep_ = nullptr;
  }
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h ep_ = nullptr;
  std::deque<std::string> sent_;
  std::vector<void*> requests_;
  bool closed_ = false;
  std::optional<v1::TransferEnd> end_;
  int blocks_ = 0;
};

class UcxIntruderTest : public ::testing::Test {
 protected:
  void SetUp() override { signal(SIGPIPE, SIG_IGN); }
  unsigned Id(UcxMessage m) { return static_cast<unsigned>(m); }
  static std::string Open(const v1::Ticket& ticket) {
    v1::FetchOpen open;
    *open.mutable_ticket() = ticket;
    return open.SerializeAsString();
  }

  const std::string key_ = std::string(32, 'k');
  PeerProcess peer_{"p0", key_, 16};
  v1::Ticket ticket_ = peer_.Export("r1", 1, 4, 7);
  const std::string address_ = ticket_.endpoint().address();
  const uint64_t hash_ = peer_.GetState().hash;
  Intruder intruder_;
};

TEST_F(UcxIntruderTest, ForgedTicketsCloseTheConnectionAndChangeNoByte) {
  const std::vector<std::pair<const char*, std::function<void(v1::Ticket*)>>> forgeries = {
      {"mac", [](v1::Ticket* t) { t->mutable_mac()->back() ^= 1; }},
      {"no mac", [](v1::Ticket* t) { t->clear_mac(); }},
      {"other key", [](v1::Ticket* t) { SignTicket(testing::TestKey('x'), t); }},
      {"request", [](v1::Ticket* t) { t->set_request_id("r2"); }},
      {"epoch", [](v1::Ticket* t) { t->set_epoch(9); }},
      {"transfer", [](v1::Ticket* t) { t->set_transfer_id_low(1); }},
      {"incarnation", [](v1::Ticket* t) { t->mutable_endpoint()->set_incarnation(std::string(32, '0')); }},
      {"layout", [](v1::Ticket* t) { t->mutable_layout()->set_head_dim(65); }},
      {"fingerprint", [](v1::Ticket* t) { t->mutable_fingerprint()->set_weights(""); }},
      {"block id", [](v1::Ticket* t) { t->mutable_blocks(0)->set_block_id(9); }},
      {"generation", [](v1::Ticket* t) { t->mutable_blocks(1)->set_generation(9); }},
      {"tags", [](v1::Ticket* t) { t->set_block_tags(true); }},
      {"consumers", [](v1::Ticket* t) { t->set_num_consumers(2); }},
      {"lease", [](v1::Ticket* t) { t->set_lease_ms(600000); }},
  };
  for (const auto& [name, forge] : forgeries) {
    v1::Ticket t = ticket_;
    forge(&t);
    intruder_.Connect(address_);
    intruder_.Send(Id(UcxMessage::kFetch), EncodeFetch(), Open(t));
    EXPECT_TRUE(intruder_.WaitClosed()) << name;
    ASSERT_TRUE(intruder_.end().has_value()) << name << ": the reason must arrive before the end";
    EXPECT_NE(intruder_.end()->code(), 0u) << name;
  }
  EXPECT_EQ(intruder_.blocks(), 0);
  EXPECT_EQ(peer_.GetState().hash, hash_);
  EXPECT_EQ(peer_.GetState().leased, 4) << "the export must still be there for its owner";
  const PeerProcess::Counters c = peer_.GetCounters();
  EXPECT_EQ(c.forged + c.malformed, static_cast<int64_t>(forgeries.size()));
  EXPECT_TRUE(testing::Eventually([&] { return peer_.GetCounters().open == 0; }));
}

TEST_F(UcxIntruderTest, GarbageClosesTheConnectionAndIsCounted) {
  const std::string ticket = Open(ticket_);
  const struct {
    const char* name;
    UcxMessage kind;
    std::string header;
    std::string payload;
    uint32_t flags;
  } messages[] = {
      {"no payload", UcxMessage::kFetch, EncodeFetch(), "", 0},
      {"bad header", UcxMessage::kFetch, "xxxxxxxx", ticket, 0},
      {"no header", UcxMessage::kFetch, "", ticket, 0},
      {"not a ticket", UcxMessage::kFetch, EncodeFetch(), std::string(1000, '\xff'), 0},
      {"truncated ticket", UcxMessage::kFetch, EncodeFetch(), ticket.substr(0, ticket.size() - 5), 0},
      {"oversized", UcxMessage::kFetch, EncodeFetch(), std::string(kMaxOpenBytes + 1, 'x'), UCP_AM_SEND_FLAG_EAGER},
      {"rendezvous", UcxMessage::kFetch, EncodeFetch(), std::string(1 << 20, 'x'), UCP_AM_SEND_FLAG_RNDV},
      {"stop before a ticket", UcxMessage::kStop, EncodeStop(TransferId::Of(ticket_)), "", 0},
      {"bad stop", UcxMessage::kStop, "", "", 0},
      {"heartbeat before a ticket", UcxMessage::kBeat, EncodeBeat(TransferId::Of(ticket_)), "", 0},
  };
  for (const auto& m : messages) {
    intruder_.Connect(address_);
    intruder_.Send(Id(m.kind), m.header, m.payload, m.flags);
    EXPECT_TRUE(intruder_.WaitClosed()) << m.name;
  }
  EXPECT_EQ(peer_.GetState().hash, hash_);
  EXPECT_EQ(peer_.GetState().leased, 4);
  EXPECT_EQ(peer_.GetCounters().malformed, static_cast<int64_t>(std::size(messages)));
}

TEST_F(UcxIntruderTest, SilentConnectionIsClosedAfterTheHandshakeTime) {
  intruder_.Connect(address_);
  EXPECT_TRUE(intruder_.WaitClosed());
  EXPECT_EQ(peer_.GetCounters().handshake_timeouts, 1);
}

// UCX 1.13.1 calls through uninitialised memory for a message whose id has no handler, unless every id has one.
TEST_F(UcxIntruderTest, MessagesOfUnknownKindsCloseTheConnection) {
  int64_t sent = 0;
  for (unsigned id : {0u, 3u, 4u, 5u, 77u, 4095u, 65535u}) {
    for (size_t size : {size_t{7}, size_t{100'000}, size_t{400'000}}) {
      intruder_.Connect(address_);
      intruder_.Send(id, EncodeBlock({TransferId::Of(ticket_), 0, {}}), std::string(size, 'x'));
      EXPECT_TRUE(intruder_.WaitClosed()) << id << " " << size;
      ++sent;
    }
  }
  EXPECT_EQ(peer_.GetState().hash, hash_);
  EXPECT_EQ(peer_.GetCounters().malformed, sent);
}

TEST_F(UcxIntruderTest, RawBytesOnThePortDoNoHarm) {
  for (int round = 0; round < 3; ++round) {
    const size_t colon = address_.find(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    inet_pton(AF_INET, address_.substr(0, colon).c_str(), &to.sin_addr);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address_.substr(colon + 1))));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    if (round > 0) {
      const std::string http = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
      EXPECT_GT(send(fd, http.data(), http.size(), MSG_NOSIGNAL), 0);
    }
    absl::SleepFor(absl::Milliseconds(50));
    close(fd);
  }
  EXPECT_EQ(peer_.GetState().hash, hash_) << "and it still answers";
}

}  // namespace
}  // namespace baton::kvtransfer
