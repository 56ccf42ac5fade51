#include "tests/bench/transfer_lane.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "common/rpc/security.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/grpc_transport.h"
#include "kvtransfer/ucx_transport.h"
#include "tests/bench/ucx_stream.h"

namespace baton::bench {
namespace {

using namespace kvtransfer;  // this file is about little else

// 4 MiB a layer would be fewer than one block of 256 KiB, so a layer is 64 KiB: 16 tokens, 8 heads of 128, f16, K and V.
kernels::KvLayout LayoutOf(size_t block_bytes) {
  return {.dtype = kernels::DType::kF16,
          .block_size = 16,
          .num_layers = static_cast<int>(block_bytes / 65536),
          .num_kv_heads = 8,
          .head_dim = 128};
}

v1::ModelFingerprint Fingerprint() {
  v1::ModelFingerprint f;
  f.set_weights(std::string(64, 'a'));
  f.set_config(std::string(64, 'b'));
  f.set_tokenizer(std::string(64, 'c'));
  f.set_numerics_class("f32");
  return f;
}

const std::string kKey(32, 'k');

rpc::Security SecurityOf(const std::string& certs, rpc::PeerRole role) {
  v1::Config config;
  config.set_tls_dir(certs);
  config.set_tls_reload_s(60);
  absl::StatusOr<rpc::Security> security = rpc::Security::FromConfig(config, {role});
  if (!security.ok()) {
    std::cerr << security.status() << "\n";
    exit(1);
  }
  return *security;
}

UcxOptions UcxFor(const Way& way) {
  UcxOptions options;
  options.only_transports = way.carrier == "tcp" ? "tcp" : "";
  return options;
}

GrpcKvOptions GrpcFor(const Way& way, const std::string& certs, rpc::PeerRole role) {
  GrpcKvOptions options;
  if (way.carrier == "tls") options.security = SecurityOf(certs, role);
  return options;
}

bool IsUcx(const Way& way) { return way.carrier == "shm" || way.carrier == "tcp"; }

// `num_blocks` times the same block.
kvcache::BlockTable Repeated(kvcache::BlockPool* pool, int64_t num_blocks) {
  kvcache::BlockTable table = *pool->Allocate(1);
  for (int64_t i = 1; i < num_blocks; ++i) table.Append(table.Share(1));
  return table;
}

kvcache::BlockLease LeaseOf(kvcache::BlockPool* pool, Memory memory, const kvcache::BlockTable& one) {
  return memory == Memory::kOne ? pool->Lease(one, one.size()) : *pool->AllocateLease(one.size());
}

}  // namespace

int TransferLane::Peer(const Way& way, size_t block_bytes, int64_t num_blocks, const std::string& certs) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  PinTo(1);
  const kernels::KvLayout layout = LayoutOf(block_bytes);
  auto pool = *kvcache::BlockPool::Create(layout, num_blocks + 1);
  const kvcache::BlockTable one = Repeated(pool.get(), num_blocks);
  Exporter exporter({.worker_name = "p0",
                     .incarnation = RandomIncarnation(),
                     .key = *ClusterKey::FromBytes(kKey),
                     .layout = layout,
                     .fingerprint = Fingerprint(),
                     .reap_interval = absl::Seconds(1),
                     .block_tags = way.checks == "tag",
                     .unchecked_for_bench = way.checks == "off"});
  std::unique_ptr<TransportServer> server;
  if (IsUcx(way)) {
    server = *UcxServer::Start(&exporter, UcxFor(way));
  } else {
    server = *GrpcKvServer::Start(&exporter, GrpcFor(way, certs, rpc::PeerRole::kPrefill));
  }
  {
    kvcache::BlockLease all = *pool->AllocateLease(num_blocks);
    for (int64_t i = 0; i < num_blocks; ++i) std::memset(all.bytes(i).data(), static_cast<int>(i + 1), block_bytes);
  }
  std::string line;
  for (int n = 0; std::getline(std::cin, line); ++n) {
    while (exporter.counters().outstanding > 0) absl::SleepFor(absl::Milliseconds(1));
    auto ticket = exporter.ExportSealed({.request_id = absl::StrCat("r", n),
                                         .epoch = 1,
                                         .num_tokens = static_cast<uint32_t>(num_blocks * 16),
                                         .lease = absl::Seconds(60)},
                                        LeaseOf(pool.get(), line == "one" ? Memory::kOne : Memory::kMany, one));
    std::cout << absl::BytesToHexString(ticket->SerializeAsString()) << std::endl;
  }
  server->Shutdown();
  return 0;
}

TransferLane::TransferLane(const Way& way, size_t block_bytes, int64_t num_blocks, const std::string& certs)
    : num_blocks_(num_blocks), pool_(*kvcache::BlockPool::Create(LayoutOf(block_bytes), num_blocks + 1)),
      one_(Repeated(pool_.get(), num_blocks)) {
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) abort();
  pid_ = fork();
  if (pid_ == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    execl("/proc/self/exe", "transfer_bench", "--lane-peer", way.carrier.c_str(), way.checks.c_str(),
          absl::StrCat(block_bytes).c_str(), absl::StrCat(num_blocks).c_str(), certs.c_str(), nullptr);
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  in_ = fdopen(to[1], "w");
  out_ = fdopen(from[0], "r");
  ReceiverOptions receiver{.key = *ClusterKey::FromBytes(kKey),
                           .layout = LayoutOf(block_bytes),
                           .fingerprint = Fingerprint(),
                           .consumer = RandomIncarnation(),
                           .unchecked_for_bench = way.checks == "off"};
  if (IsUcx(way)) {
    client_ = *UcxClient::Start(receiver, UcxFor(way));
  } else {
    client_ = MakeGrpcKvClient(receiver, GrpcFor(way, certs, rpc::PeerRole::kDecode));
  }
}

TransferLane::~TransferLane() {
  fclose(in_);
  fclose(out_);
  waitpid(pid_, nullptr, 0);
}

double TransferLane::Fetch(Memory memory) {
  fputs(memory == Memory::kOne ? "one\n" : "many\n", in_);
  fflush(in_);
  std::string hex;
  for (int c = fgetc(out_); c != EOF && c != '\n'; c = fgetc(out_)) hex.push_back(static_cast<char>(c));
  FetchRequest request;
  if (!request.ticket.ParseFromString(absl::HexStringToBytes(hex))) abort();
  request.destination = LeaseOf(pool_.get(), memory, one_);
  request.deadline = absl::Now() + absl::Minutes(2);
  Mutex mu;
  CondVar cv;
  bool done = false;
  double speed = 0;
  const absl::Time begin = absl::Now();
  client_->Fetch(std::move(request), [&](absl::StatusOr<FetchResult> result, kvcache::BlockLease) {
    const absl::Duration took = absl::Now() - begin;
    if (!result.ok()) {
      std::cerr << result.status() << "\n";
      exit(1);
    }
    MutexLock lock(&mu);
    detail_ = result->stats.detail;
    speed = static_cast<double>(result->stats.bytes) / absl::ToDoubleSeconds(took) / 1e9;
    done = true;
    cv.Signal();
  });
  MutexLock lock(&mu);
  while (!done) cv.Wait(&mu);
  return speed;
}

}  // namespace baton::bench
