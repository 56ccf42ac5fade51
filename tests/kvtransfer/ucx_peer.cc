// A prefill worker's hand-over side alone: a pool, an exporter and a UCX server, driven by lines on stdin. Each command is
// answered by one line on stdout.
//
//   ucx_peer NAME KEY NUM_BLOCKS [small]     small: blocks of 4 KiB, which travel through the receiver's queue
//   export REQUEST EPOCH BLOCKS SEED LEASE_MS   -> hex of the serialized ticket, or "error ..."
//   corrupt BLOCK       flips a byte of that block of the latest export when it is sent, after its checksum was made
//   kill_at BLOCK       SIGKILL to itself before that block of the next transfer is sent (stop_at: SIGSTOP)
//   release / reap      the latest export / all that are due
//   fetch TICKET        begins to fetch it (hex) into memory of its own; how that ends is not said
//   state               -> free leased quarantined total hash outstanding
//   counters            -> malformed forged refused completed open handshake_timeouts expired
//   quit
#include <signal.h>
#include <sys/prctl.h>

#include <atomic>
#include <iostream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "kvtransfer/ucx_transport.h"
#include "tests/kvtransfer/testing.h"

namespace baton::kvtransfer::testing {
namespace {

std::atomic<int> signal_at{-1};
std::atomic<int> signal_number{0};
std::atomic<int> corrupt_at{-1};

int Main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  const kernels::KvLayout layout = argc == 5 ? SmallLayout() : SmolLayout();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto pool = MakePool(layout, std::stoi(argv[3]));
  Exporter exporter({.worker_name = argv[1],
                     .incarnation = RandomIncarnation(),
                     .key = *ClusterKey::FromBytes(argv[2]),
                     .layout = layout,
                     .fingerprint = Fingerprint(),
                     .reap_interval = absl::Milliseconds(20)});
  UcxOptions options;
  options.handshake_timeout = absl::Milliseconds(300);
  TransferId last;
  std::vector<std::span<std::byte>> last_bytes;
  options.before_block_for_test = [&](TransferId, size_t block_idx) {
    if (static_cast<int>(block_idx) == corrupt_at.load()) {
      corrupt_at = -1;
      last_bytes.at(block_idx).back() ^= std::byte{1};  // of the last piece, which has its checksum and is still here
    }
    if (static_cast<int>(block_idx) != signal_at.load()) return;
    signal_at = -1;
    raise(signal_number.load());
  };
  auto server = UcxServer::Start(&exporter, options);
  if (!server.ok()) {
    std::cout << "error " << server.status() << std::endl;
    return 1;
  }
  std::unique_ptr<UcxClient> client;
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    if (command == "export") {
      std::string request;
      uint32_t epoch = 0;
      int64_t blocks = 0;
      uint64_t seed = 0;
      int64_t lease_ms = 0;
      in >> request >> epoch >> blocks >> seed >> lease_ms;
      kvcache::BlockLease lease = FilledLease(pool.get(), blocks, seed);
      last_bytes.clear();
      for (int64_t i = 0; i < blocks; ++i) last_bytes.push_back(lease.bytes(i));
      auto ticket = exporter.ExportSealed({.request_id = request,
                                           .epoch = epoch,
                                           .num_tokens = static_cast<uint32_t>(blocks * 16),
                                           .lease = absl::Milliseconds(lease_ms)},
                                          std::move(lease));
      if (ticket.ok()) last = TransferId::Of(*ticket);
      std::cout << (ticket.ok() ? absl::BytesToHexString(ticket->SerializeAsString())
                                : "error " + ticket.status().ToString())
                << std::endl;
    } else if (command == "corrupt") {
      int block = 0;
      in >> block;
      corrupt_at = block;
      std::cout << "ok" << std::endl;
    } else if (command == "kill_at" || command == "stop_at") {
      int block = 0;
      in >> block;
      signal_number = command == "kill_at" ? SIGKILL : SIGSTOP;
      signal_at = block;
      std::cout << "ok" << std::endl;
    } else if (command == "fetch") {
      std::string hex;
      in >> hex;
      v1::Ticket ticket;
      if (client == nullptr) {
        client = *UcxClient::Start({.key = *ClusterKey::FromBytes(argv[2]), .layout = layout, .fingerprint = Fingerprint()});
      }
      std::optional<kvcache::BlockLease> lease;
      if (ticket.ParseFromString(absl::HexStringToBytes(hex))) lease = pool->AllocateLease(ticket.blocks_size());
      if (lease.has_value()) {
        client->Fetch({.ticket = ticket, .destination = *std::move(lease), .deadline = Soon()},
                      [](absl::StatusOr<FetchResult>, kvcache::BlockLease) {});
      }
      std::cout << (lease.has_value() ? "ok" : "error no ticket, or no room") << std::endl;
    } else if (command == "release") {
      std::cout << exporter.Release(last) << std::endl;
    } else if (command == "reap") {
      std::cout << exporter.ReapExpired(Clock::Real()->Now()) << std::endl;
    } else if (command == "state") {
      const kvcache::Ledger l = pool->ledger();
      std::cout << l.free << " " << l.leased << " " << l.quarantined << " " << l.total << " " << PoolHash(*pool) << " "
                << exporter.counters().outstanding << std::endl;
    } else if (command == "counters") {
      const UcxServerCounters c = (*server)->counters();
      std::cout << c.malformed << " " << c.forged << " " << c.refused << " " << c.completed << " "
                << c.connections_open << " " << c.handshake_timeouts << " " << exporter.counters().expired << std::endl;
    } else if (command == "quit") {
      break;
    } else {
      std::cout << "error unknown command" << std::endl;
    }
  }
  if (client != nullptr) client->Shutdown();
  (*server)->Shutdown();
  const kvcache::Ledger l = pool->ledger();
  return exporter.ReleaseAll(), pool->ledger().free == l.total ? 0 : 3;
}

}  // namespace
}  // namespace baton::kvtransfer::testing

int main(int argc, char** argv) { return baton::kvtransfer::testing::Main(argc, argv); }
