// `baton doctor`: what figures mean, and the command against a real cluster and without one. Runs the real binary.
#include "cli/doctor.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <map>

#include "tests/cli/run_baton.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::cli {
namespace {

using Json = nlohmann::json;

constexpr double kPatience = 60;
constexpr uint64_t kMiB = 1 << 20;

TEST(FindingTest, FiguresBecomeAdviceWithANextStep) {
  EXPECT_EQ(FileLimit(65536, 65536).health, Health::kGood);
  EXPECT_EQ(FileLimit(1024, 65536).health, Health::kAdvice);
  EXPECT_EQ(FileLimit(256, 65536).health, Health::kBad);
  EXPECT_EQ(LockedMemoryLimit(8 * kMiB, false).health, Health::kGood);
  EXPECT_EQ(LockedMemoryLimit(8 * kMiB, true).health, Health::kBad);
  EXPECT_EQ(LockedMemoryLimit(UINT64_MAX, true).health, Health::kGood);
  EXPECT_EQ(SharedMemory(1024 * kMiB, 1000 * kMiB).health, Health::kGood);
  EXPECT_EQ(SharedMemory(64 * kMiB, 64 * kMiB).health, Health::kAdvice);
  EXPECT_EQ(SharedMemory(64 * kMiB, 0).health, Health::kBad);
  EXPECT_EQ(HugePages("always [madvise] never").health, Health::kGood);
  EXPECT_EQ(HugePages("always madvise [never]").health, Health::kAdvice);
  EXPECT_EQ(HugePages("").health, Health::kSkipped);
  for (const Finding& f : {FileLimit(1, 1), LockedMemoryLimit(1, true), SharedMemory(1, 1), HugePages("[never]")}) {
    EXPECT_FALSE(f.next.empty()) << f.name;
  }
}

v1::ClusterStatus TwoWorkers() {
  v1::ClusterStatus status;
  for (const char* role : {"prefill", "decode"}) {
    v1::ClusterWorker* w = status.add_workers();
    w->set_state("ready");
    w->mutable_info()->set_name(std::string(role) + "-0");
    w->mutable_info()->set_role(role);
    w->mutable_info()->mutable_fingerprint()->set_weights("aaaa");
    w->mutable_info()->mutable_layout()->set_dtype("f16");
  }
  return status;
}

bool AnyBad(const v1::ClusterStatus& status) { return !AllWell(ClusterFindings(status)); }

TEST(ClusterFindingsTest, EachFaultIsSeen) {
  EXPECT_FALSE(AnyBad(TwoWorkers()));
  EXPECT_TRUE(AnyBad(v1::ClusterStatus()));
  v1::ClusterStatus status = TwoWorkers();
  status.mutable_workers(1)->mutable_info()->mutable_fingerprint()->set_weights("bbbb");
  EXPECT_TRUE(AnyBad(status)) << "fingerprints differ";
  status = TwoWorkers();
  status.mutable_workers(1)->mutable_info()->mutable_layout()->set_version(2);
  EXPECT_TRUE(AnyBad(status)) << "layouts differ";
  status = TwoWorkers();
  status.mutable_workers(0)->set_state("lost");
  EXPECT_TRUE(AnyBad(status)) << "lost";
  status = TwoWorkers();
  status.mutable_workers(0)->mutable_load()->mutable_ledger()->set_free(1);
  EXPECT_TRUE(AnyBad(status)) << "blocks do not add up";
  status = TwoWorkers();
  status.add_refused("decode-9: fingerprint");
  EXPECT_TRUE(AnyBad(status)) << "refused";
  for (const Finding& f : ClusterFindings(status)) EXPECT_EQ(f.health == Health::kGood, f.next.empty()) << f.name;
}

TEST(TransferFindingTest, TransportAndSpeed) {
  v1::Summary summary;
  EXPECT_EQ(TransferFinding(summary).health, Health::kSkipped);
  summary.mutable_kv()->set_bytes(2'000'000);
  summary.mutable_kv()->set_transport("ucx");
  summary.mutable_kv()->set_detail("sysv/cma");
  summary.mutable_timings()->set_transfer_ms(2);
  EXPECT_NE(TransferFinding(summary).detail.find("1.00 GB/s"), std::string::npos) << TransferFinding(summary).detail;
  EXPECT_EQ(TransferFinding(summary).health, Health::kGood);
  summary.mutable_kv()->set_detail("tcp");
  EXPECT_EQ(TransferFinding(summary).health, Health::kAdvice);
}

TEST(UcxFindingTest, SaysWhatUcxHas) {
  EXPECT_EQ(UcxFinding(kvtransfer::UcxMemory{.version = "1.13.1"}).detail.rfind("1.13.1, has no GPU memory", 0), 0u);
  EXPECT_EQ(UcxFinding(kvtransfer::UcxMemory{.version = "1.18.0", .cuda = true}).detail.rfind("1.18.0, has GPU memory", 0), 0u);
  const Finding none = UcxFinding(absl::UnavailableError("no context"));
  EXPECT_EQ(none.health, Health::kBad);
  EXPECT_FALSE(none.next.empty());
}

TEST(GpuFindingTest, IsBadWhereSettingsAskForWhatIsNotThere) {
  v1::Config plain, cuda;
  cuda.set_isa("cuda");
  const kernels::cuda::DeviceReport without;
  EXPECT_EQ(GpuFinding(without, "", plain).health, Health::kSkipped);
  EXPECT_EQ(GpuFinding(without, "580.65", plain).detail, "this build has no CUDA; NVIDIA driver 580.65");
  EXPECT_EQ(GpuFinding(without, "", cuda).health, Health::kBad);
  kernels::cuda::DeviceReport report{.built_with_cuda = true, .runtime = "13.0", .nccl = "2.28.9", .no_devices = "no driver"};
  EXPECT_EQ(GpuFinding(report, "", plain).health, Health::kSkipped);
  EXPECT_EQ(GpuFinding(report, "", cuda).health, Health::kBad);
  EXPECT_NE(GpuFinding(report, "", cuda).detail.find("no GPU: no driver"), std::string::npos);
  report.driver = "13.1";
  report.devices = {{"A", 90, 80000000000}, {"A", 90, 80000000000}, {"B", 80, 40000000000}};
  EXPECT_EQ(GpuFinding(report, "580.65", cuda).detail,
            "built with CUDA 13.0, NCCL 2.28.9; NVIDIA driver 580.65, for CUDA 13.1; 2 x A (compute capability 9.0, 80 GB), "
            "1 x B (compute capability 8.0, 40 GB)");
  EXPECT_EQ(GpuFinding(report, "580.65", cuda).health, Health::kGood);
  cuda.set_tensor_parallel(4);
  EXPECT_EQ(GpuFinding(report, "580.65", cuda).health, Health::kBad);
  for (const Finding& f : {GpuFinding(without, "", plain), GpuFinding(without, "", cuda), GpuFinding(report, "", cuda)}) {
    EXPECT_EQ(f.health == Health::kBad, !f.next.empty()) << f.detail;
  }
}

TEST(FormatTest, WordsOfPeersCannotDriveTheTerminal) {
  EXPECT_EQ(FormatFinding({"x", Health::kBad, "evil\x1b[2J", "y"}, false).find('\x1b'), std::string::npos);
}

TEST(DoctorCommandTest, WithoutAClusterItSaysHowToGetOne) {
  const Result r = RunBaton({"doctor", "--router", "127.0.0.1:1", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                             "--model", "/no/such.gguf", "--http-tls-cert", "/no/such.crt"});
  EXPECT_EQ(r.exit_code, 1);
  for (const char* words : {"No router answers at 127.0.0.1:1", "baton up", "is free", "open files", "processor",
                            "/no/such.gguf", "/no/such.crt", "memory between processes", "UCX", "KV on a GPU",
                            "GPUs", "Something is wrong"}) {
    EXPECT_NE(r.out.find(words), std::string::npos) << words << "\n" << r.out;
  }
}

TEST(DoctorCommandTest, ARealClusterIsWell) {
  const std::string model = TempDir() + "/doctor.gguf";
  ASSERT_TRUE(fakes::WriteTinyGguf({}, model).ok());
  BatonProcess up({"up", "--model", model, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--kv-memory-mib", "8",
                   "--threads", "1", "--mode", "disaggregated", "--json"});
  ASSERT_TRUE(up.WaitForOutput("\"ready\"", kPatience)) << up.Stderr();
  const std::string router = Json::parse(up.Stdout(), nullptr, false)["listen"];
  // This waits until the workers have warmed up, which doctor would remark on.
  ASSERT_EQ(RunBaton({"complete", "--router", router, "--max-tokens", "2", "x"}).exit_code, 0);
  const Result r = RunBaton({"doctor", "--router", router, "--model", model, "--json"});
  EXPECT_EQ(r.exit_code, 0) << r.out;
  const Json json = Json::parse(r.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << r.out;
  EXPECT_EQ(json["ok"], true);
  std::map<std::string, Json> by_name;
  for (const Json& f : json["findings"]) by_name[f["name"]] = f;
  for (const char* name : {"router", "pools", "worker prefill-0", "worker decode-0", "model of all workers",
                           "trial request", "KV hand-over", "model file"}) {
    ASSERT_TRUE(by_name.count(name)) << name;
    EXPECT_EQ(by_name[name]["health"], "good") << by_name[name];
  }
  EXPECT_NE(by_name["KV hand-over"]["detail"].get<std::string>().find("GB/s"), std::string::npos);
  // The cluster's other commands, with a real tokenizer behind them.
  const Result ids = RunBaton({"tokenize", "--router", router, "Hello"});
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(ids.out, RunBaton({"tokenize", "--local", "--model", model, "Hello"}).out);
  EXPECT_EQ(RunBaton({"detokenize", "--router", router},
                     RunBaton({"tokenize", "--router", router, "--no-special", "Hello"}).out)
                .out,
            "Hello\n");
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(kPatience).exit_code, 130);
}

}  // namespace
}  // namespace baton::cli
