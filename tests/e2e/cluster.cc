#include "tests/e2e/cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/status.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::e2e {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(120);  // sanitizer builds on two busy cores

std::vector<std::string> Concat(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> TlsFlags(const ClusterOptions& options) {
  if (options.tls_dir.empty()) return {};
  return {absl::StrCat("--tls-dir=", options.tls_dir)};
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address, const std::string& tls_dir,
                                           const std::string& peer, const std::string& own) {
  if (tls_dir.empty()) return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = ReadFile(tls_dir + "/ca.crt");
  if (!own.empty()) {
    ssl.pem_cert_chain = ReadFile(absl::StrCat(tls_dir, "/", own, ".crt"));
    ssl.pem_private_key = ReadFile(absl::StrCat(tls_dir, "/", own, ".key"));
  }
  grpc::ChannelArguments args;
  args.SetSslTargetNameOverride(peer + ".baton.internal");
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(ssl), args);
}

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options) {
  auto cluster = std::unique_ptr<Cluster>(new Cluster());
  cluster->options_ = options;
  char dir[] = "/tmp/baton-e2e-XXXXXX";
  if (mkdtemp(dir) == nullptr) return absl::InternalError("mkdtemp failed");
  cluster->dir_ = dir;
  std::ofstream(cluster->dir_ + "/key") << "a key of the end-to-end tests, which is 32 bytes or more";

  // With one pool only there is nothing that a worker could warm up with.
  const bool alone = options.decode == 0 || (options.prefill == 0 && options.mode == "disaggregated");
  const auto place = cluster->PlaceOf("router");
  if (!place.ok()) return place.status();
  auto router = Process::Start(
      Concat(Concat({"router/router", absl::StrCat("--model=", options.model), absl::StrCat("--listen=", place->host, ":0"),
                     absl::StrCat("--http=", place->host, ":0"), absl::StrCat("--mode=", options.mode),
                     absl::StrCat("--warm-up=", !alone ? "true" : "false")},
                    Concat(TlsFlags(options), options.flags)),
             options.router_flags),
      place->netns);
  if (!router.ok()) return router.status();
  cluster->router_ = *std::move(router);
  auto ready = cluster->router_->WaitEvent("ready", kStartTimeout);
  if (!ready.ok()) return ready.status();
  cluster->router_address_ = ready->value("listen", "");
  cluster->router_http_ = ready->value("http", "");
  auto channel = OpenChannel(cluster->router_address_, options.tls_dir, "router", "admin");
  cluster->inference_ = v1::Inference::NewStub(channel);
  cluster->cluster_ = v1::Cluster::NewStub(channel);

  for (int i = 0; i < options.prefill; ++i) {
    if (auto worker = cluster->AddWorker("prefill", options.prefill_flags); !worker.ok()) return worker.status();
  }
  for (int i = 0; i < options.decode; ++i) {
    if (auto worker = cluster->AddWorker("decode", options.decode_flags); !worker.ok()) return worker.status();
  }
  const absl::Time until = absl::Now() + kStartTimeout;
  while (true) {
    auto status = cluster->Status();
    int num_ready = 0;
    if (status.ok()) {
      for (const auto& worker : status->workers()) num_ready += worker.state() == "ready";
    }
    if (num_ready == options.prefill + options.decode) return cluster;
    if (absl::Now() > until) {
      return absl::DeadlineExceededError(absl::StrCat(num_ready, " workers ready; router says:\n",
                                                      cluster->router_->stderr_text()));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
}

Cluster::~Cluster() {
  for (auto& worker : workers_) worker->process->Signal(SIGKILL);
  workers_.clear();
  router_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

absl::StatusOr<WorkerProcess*> Cluster::AddWorker(const std::string& role, std::vector<std::string> flags) {
  auto worker = std::make_unique<WorkerProcess>();
  worker->name = absl::StrCat(role, "-", next_worker_++);
  worker->role = role;
  worker->flags = std::move(flags);
  if (absl::Status s = StartProcess(worker.get()); !s.ok()) return s;
  workers_.push_back(std::move(worker));
  return workers_.back().get();
}

absl::Status Cluster::Restart(WorkerProcess& worker) {
  worker.process.reset();
  return StartProcess(&worker);
}

absl::Status Cluster::StartProcess(WorkerProcess* worker) {
  const std::string program = absl::StrCat(worker->role, "_worker");
  const auto place = PlaceOf(worker->name);
  if (!place.ok()) return place.status();
  auto process = Process::Start(
      Concat(Concat({absl::StrCat(program, "/", program, options_.worker_suffix), absl::StrCat("--model=", options_.model),
                     absl::StrCat("--router=", router_address_), absl::StrCat("--name=", worker->name), "--threads=1",
                     absl::StrCat("--listen=", place->host, ":0"), absl::StrCat("--http=", place->host, ":0"),
                     absl::StrCat("--cluster-key-file=", dir_, "/key")},
                    Concat(TlsFlags(options_), options_.flags)),
             worker->flags),
      place->netns);
  if (!process.ok()) return process.status();
  worker->process = *std::move(process);
  auto ready = worker->process->WaitEvent("ready", kStartTimeout);
  if (!ready.ok()) return ready.status();
  worker->address = ready->value("listen", "");
  worker->http = ready->value("http", "");
  worker->stub = v1::Worker::NewStub(OpenChannel(worker->address, options_.tls_dir, worker->role, "admin"));
  return absl::OkStatus();
}

absl::Status Cluster::ChangeRole(WorkerProcess& worker, const std::string& role, absl::Duration timeout) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  v1::ChangeRoleRequest request;
  request.set_role(role);
  v1::ChangeRoleResponse response;
  if (absl::Status s = FromGrpcStatus(worker.stub->ChangeRole(&context, request, &response)); !s.ok()) return s;
  for (const absl::Time until = absl::Now() + timeout; absl::Now() < until; absl::SleepFor(absl::Milliseconds(5))) {
    if (absl::Status s = FollowRoles(); !s.ok()) return s;
    if (worker.role == role) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(worker.name, " did not become a ", role, " worker: ",
                                                  worker.process->stderr_text()));
}

absl::Status Cluster::FollowRoles() {
  const auto status = Status();
  if (!status.ok()) return status.status();
  for (const auto& w : status->workers()) {
    for (auto& worker : workers_) {
      if (w.info().name() != worker->name || w.info().role() == worker->role || w.state() != "ready") continue;
      worker->role = w.info().role();
      worker->address = w.info().address();
      worker->stub = v1::Worker::NewStub(OpenChannel(worker->address, options_.tls_dir, worker->role, "admin"));
    }
  }
  return absl::OkStatus();
}

absl::Status Cluster::WaitReady(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  std::string missing;
  do {
    auto status = Status();
    if (!status.ok()) return status.status();
    missing.clear();
    for (auto& worker : workers_) {
      bool ready = false;
      for (const auto& w : status->workers()) {
        ready |= w.info().name() == worker->name && w.info().address() == worker->address && w.state() == "ready";
      }
      if (!ready) absl::StrAppend(&missing, worker->name, " ");
    }
    if (missing.empty()) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(10));
  } while (absl::Now() < until);
  return absl::DeadlineExceededError(absl::StrCat("not ready: ", missing));
}

double Cluster::Metric(const std::string& http, const std::string& name) {
  const size_t colon = http.rfind(':');
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(http.substr(colon + 1))));
  inet_pton(AF_INET, http.substr(0, colon).c_str(), &address.sin_addr);
  std::string text;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    (void)!::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    char buffer[4096];
    for (ssize_t got; (got = ::recv(fd, buffer, sizeof(buffer), 0)) > 0;) text.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  double sum = 0;
  for (size_t at = 0; (at = text.find(absl::StrCat("\n", name), at)) != std::string::npos;) {
    at += 1 + name.size();
    if (text[at] != '{' && text[at] != ' ') continue;  // `name` may have its labels with it
    const size_t end = text.find('\n', at);
    sum += atof(text.substr(text.rfind(' ', end) + 1).c_str());
  }
  return sum;
}

namespace {

// Puts a call's events together.
class GenerationReader {
 public:
  explicit GenerationReader(const v1::GenerateRequest& request) {
    const int n = request.sampling().has_n() ? request.sampling().n() : 1;
    result_.choices.resize(n > 0 && n <= 1024 ? n : 1);
    finished_.resize(result_.choices.size());
  }

  void Take(const v1::GenerateResponse& event) {
    if (event.has_started()) result_.started = event.started();
    if (event.has_token()) TakeToken(event.token());
    if (event.has_finished()) {
      const v1::ChoiceFinished& done = event.finished();
      if (done.choice_index() >= result_.choices.size() || finished_[done.choice_index()]) {
        result_.violation = absl::StrCat("choice ", done.choice_index(), " finished twice or is unknown");
        return;
      }
      finished_[done.choice_index()] = true;
      result_.choices[done.choice_index()].finished = done;
      result_.choices[done.choice_index()].text += done.text();
    }
    if (event.has_summary()) result_.summary = event.summary();
  }

  Generation End(grpc::Status status) {
    result_.status = std::move(status);
    if (result_.status.ok() && result_.violation.empty()) {
      for (size_t i = 0; i < finished_.size(); ++i) {
        if (!finished_[i]) result_.violation = absl::StrCat("choice ", i, " never finished");
      }
    }
    return std::move(result_);
  }

 private:
  void TakeToken(const v1::TokenEvent& token) {
    if (token.choice_index() >= result_.choices.size()) {
      result_.violation = absl::StrCat("choice index ", token.choice_index());
      return;
    }
    Generation::Choice& choice = result_.choices[token.choice_index()];
    if (token.token_index() != choice.token_ids.size() || finished_[token.choice_index()]) {
      result_.violation = absl::StrCat("choice ", token.choice_index(), ": token index ", token.token_index(), " after ",
                                       choice.token_ids.size(), " tokens");
    }
    choice.token_ids.push_back(token.token_id());
    choice.logprobs.push_back(token.logprob());
    choice.text += token.text();
  }

  Generation result_;
  std::vector<bool> finished_;
};

class AsyncGenerate final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  AsyncGenerate(v1::Inference::Stub* stub, const v1::GenerateRequest& request, absl::Duration timeout,
                Cluster::OnEvent on_event, Cluster::OnDone done)
      : request_(request), reader_(request), on_event_(std::move(on_event)), done_(std::move(done)) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    stub->async()->Generate(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (on_event_) on_event_(&context_, event_);
    reader_.Take(event_);
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    done_(reader_.End(status));
    delete this;
  }

  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse event_;
  GenerationReader reader_;
  const Cluster::OnEvent on_event_;
  const Cluster::OnDone done_;
};

}  // namespace

Generation Cluster::Generate(const v1::GenerateRequest& request, absl::Duration timeout, const OnEvent& on_event,
                             const std::function<void()>& at_end) {
  GenerationReader reader(request);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  auto stream = inference_->Generate(&context, request);
  v1::GenerateResponse event;
  while (stream->Read(&event)) {
    if (on_event) on_event(&context, event);
    reader.Take(event);
  }
  grpc::Status status = stream->Finish();
  if (at_end) at_end();
  return reader.End(std::move(status));
}

void Cluster::StartGenerate(const v1::GenerateRequest& request, absl::Duration timeout, OnEvent on_event, OnDone done) {
  new AsyncGenerate(inference_.get(), request, timeout, std::move(on_event), std::move(done));  // deletes itself
}

absl::StatusOr<v1::ClusterStatus> Cluster::Status() {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::ClusterStatus response;
  const grpc::Status status = cluster_->GetClusterStatus(&context, {}, &response);
  if (!status.ok()) return absl::UnavailableError(status.error_message());
  return response;
}

absl::StatusOr<v1::WorkerStatus> Cluster::WorkerStatusOf(WorkerProcess& worker) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::WorkerStatus response;
  const grpc::Status status = worker.stub->GetWorkerStatus(&context, {}, &response);
  if (!status.ok()) return absl::UnavailableError(absl::StrCat(worker.name, ": ", status.error_message()));
  return response;
}

absl::Status Cluster::WaitQuiet(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  std::string held;
  do {
    held.clear();
    for (auto& worker : workers_) {
      auto status = WorkerStatusOf(*worker);
      if (!status.ok()) return status.status();
      const v1::WorkerLoad& load = status->load();
      const v1::KvLedger& ledger = load.ledger();
      if (ledger.free() + ledger.active() + ledger.leased() + ledger.cached() + ledger.quarantined() != ledger.total() ||
          ledger.total() == 0) {
        return absl::InternalError(absl::StrCat(worker->name, ": the ledger does not add up: ", ledger.ShortDebugString()));
      }
      if (load.running() + load.waiting() + load.tickets() + ledger.active() + ledger.leased() + ledger.quarantined() > 0) {
        absl::StrAppend(&held, worker->name, ": ", load.ShortDebugString(), "\n");
      }
    }
    if (held.empty()) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(10));
  } while (absl::Now() < until);
  return absl::DeadlineExceededError(absl::StrCat("still held:\n", held));
}

std::string ModelPath(const std::string& file) {
  const char* cache = getenv("BATON_CACHE");
  std::string path = absl::StrCat(cache != nullptr ? std::string(cache) : absl::StrCat(getenv("HOME"), "/.cache/baton"),
                                  "/models/", file);
  if (access(path.c_str(), R_OK) != 0) {
    fprintf(stderr, "%s is missing; run scripts/setup --tests\n", path.c_str());
    abort();
  }
  return path;
}

ModelUnderTest ChooseModel() {
  if (getenv("BATON_E2E_TINY") == nullptr) return {SmolLm2(), 49152, false};
  const char* tmp = getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/tiny.gguf");
  if (absl::Status s = fakes::WriteTinyGguf({}, path); !s.ok()) {
    fprintf(stderr, "%s\n", s.ToString().c_str());
    abort();
  }
  return {path, 280, true};
}

}  // namespace baton::e2e
