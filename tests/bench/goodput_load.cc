#include "tests/bench/goodput_load.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace baton::bench {
namespace {

std::vector<int32_t> PromptIds(const Job& job, int vocab_size) {
  std::mt19937_64 rng(job.seed);
  std::vector<int32_t> ids;
  for (int i = 0; i < job.prompt_tokens; ++i) ids.push_back(static_cast<int32_t>(3 + rng() % (vocab_size - 3)));
  return ids;
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class Baton : public Target {
 public:
  Baton(const std::string& address, int vocab_size)
      : stub_(v1::Inference::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        vocab_size_(vocab_size) {}

  Trace Run(const Job& job, absl::Time due, absl::Time until, const std::function<bool()>& on_token) override {
    v1::GenerateRequest request;
    const std::vector<int32_t> ids = PromptIds(job, vocab_size_);
    request.mutable_token_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
    request.mutable_sampling()->set_max_tokens(job.output_tokens);
    request.mutable_sampling()->set_ignore_eos(true);
    request.mutable_sampling()->set_temperature(0);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(until));
    auto stream = stub_->Generate(&context, request);
    Trace trace;
    v1::GenerateResponse event;
    while (stream->Read(&event)) {
      if (!event.has_token()) continue;
      trace.token_at.push_back(absl::ToDoubleSeconds(absl::Now() - due));
      if (on_token && !on_token()) context.TryCancel();
    }
    trace.complete = stream->Finish().ok();
    return trace;
  }

 private:
  const std::unique_ptr<v1::Inference::Stub> stub_;
  const int vocab_size_;
};

class Llama : public Target {
 public:
  Llama(int port, int vocab_size) : port_(port), vocab_size_(vocab_size) {}

  Trace Run(const Job& job, absl::Time due, absl::Time until, const std::function<bool()>& on_token) override {
    Trace trace;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
      Exchange(fd, job, due, until, on_token, &trace);
    }
    ::close(fd);
    trace.complete = trace.complete || static_cast<int>(trace.token_at.size()) >= job.output_tokens;
    return trace;
  }

 private:
  void Exchange(int fd, const Job& job, absl::Time due, absl::Time until, const std::function<bool()>& on_token,
                Trace* trace) const {
    const std::string body = absl::StrCat(
        "{\"prompt\":[", absl::StrJoin(PromptIds(job, vocab_size_), ","), "],\"n_predict\":", job.output_tokens,
        ",\"ignore_eos\":true,\"cache_prompt\":false,\"temperature\":0,\"stream\":true,\"return_tokens\":true}");
    const std::string request =
        absl::StrCat("POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ",
                     body.size(), "\r\nConnection: close\r\n\r\n", body);
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) return;
    std::string text;
    size_t seen = 0;
    while (absl::Now() < until) {
      const timeval patience = absl::ToTimeval(std::max(until - absl::Now(), absl::Milliseconds(1)));
      ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      char buffer[16384];
      const ssize_t n = ::recv(fd, buffer, sizeof(buffer), 0);
      if (n <= 0) return;
      const double now = absl::ToDoubleSeconds(absl::Now() - due);
      text.append(buffer, static_cast<size_t>(n));
      for (size_t end; (end = text.find("\n\n", seen)) != std::string::npos; seen = end + 2) {
        const absl::string_view event(text.data() + seen, end - seen);
        if (!absl::StrContains(event, "data: ")) continue;
        if (absl::StrContains(event, "\"stop\":true")) {
          trace->complete = true;
          return;
        }
        trace->token_at.push_back(now);
        if (on_token && !on_token()) return;
      }
    }
  }

  const int port_;
  const int vocab_size_;
};

Job Draw(std::mt19937_64* rng) {
  Job job;
  job.prompt_tokens = 128 + static_cast<int>((*rng)() % 897);
  job.output_tokens = 32 + static_cast<int>((*rng)() % 97);
  job.seed = (*rng)();
  return job;
}

}  // namespace

std::unique_ptr<Target> BatonTarget(const std::string& address, int vocab_size) {
  return std::make_unique<Baton>(address, vocab_size);
}
std::unique_ptr<Target> LlamaTarget(int port, int vocab_size) { return std::make_unique<Llama>(port, vocab_size); }

std::vector<Job> PoissonJobs(double rate, double seconds, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<Job> jobs;
  double at = 0;
  while (true) {
    const double uniform = (static_cast<double>(rng() >> 11) + 0.5) / 9007199254740992.0;
    at += -std::log(uniform) / rate;
    Job job = Draw(&rng);
    if (at > seconds && !jobs.empty()) return jobs;
    job.at = absl::Seconds(at);
    jobs.push_back(job);
  }
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

double Trial::ttft_met(double limit) const {
  const auto met = std::count_if(traces.begin(), traces.end(), [&](const Trace& t) { return t.ttft() <= limit; });
  return traces.empty() ? 0 : static_cast<double>(met) / static_cast<double>(traces.size());
}

double Trial::itl_met(double limit) const {
  size_t met = 0, all = 0;
  for (const Trace& t : traces) {
    for (size_t i = 1; i < t.token_at.size(); ++i, ++all) met += t.token_at[i] - t.token_at[i - 1] <= limit;
  }
  return all == 0 ? 0 : static_cast<double>(met) / static_cast<double>(all);
}

double Trial::gap_quantile(double q) const {
  std::vector<double> gaps;
  for (const Trace& t : traces) {
    for (size_t i = 1; i < t.token_at.size(); ++i) gaps.push_back(t.token_at[i] - t.token_at[i - 1]);
  }
  return Quantile(std::move(gaps), q);
}

double Trial::ttft_quantile(double q) const {
  std::vector<double> values;
  for (const Trace& t : traces) values.push_back(t.ttft());
  return Quantile(std::move(values), q);
}

Trial RunTrial(Target* target, const std::vector<Job>& jobs, absl::Duration grace) {
  Trial trial;
  trial.traces.resize(jobs.size());
  const double cpu = CpuSeconds();
  const absl::Time begin = absl::Now() + absl::Milliseconds(20);
  const absl::Time until = begin + jobs.back().at + grace;
  std::vector<std::thread> clients;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const absl::Time due = begin + jobs[i].at;
    absl::SleepFor(due - absl::Now());
    clients.emplace_back([&trial, &jobs, target, until, due, i] { trial.traces[i] = target->Run(jobs[i], due, until); });
  }
  for (std::thread& client : clients) client.join();
  trial.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  trial.generator_cpu = CpuSeconds() - cpu;
  size_t tokens = 0;
  for (const Trace& trace : trial.traces) tokens += trace.token_at.size();
  trial.tokens_per_second = static_cast<double>(tokens) / trial.seconds;
  return trial;
}

double MeasureCapacity(Target* target, int clients, absl::Duration duration, uint64_t seed) {
  const absl::Time begin = absl::Now(), end = begin + duration;
  std::atomic<int64_t> tokens{0};
  std::vector<std::thread> threads;
  for (int c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      std::mt19937_64 rng(seed * 1000 + static_cast<uint64_t>(c));
      while (absl::Now() < end) {
        const Job job = Draw(&rng);
        // In shares of a request, so that those cut off at the end count for what they got: half for the prompt.
        const Trace trace = target->Run(job, absl::Now(), end);
        if (trace.token_at.empty()) continue;
        tokens += 500000 + static_cast<int64_t>(500000.0 * static_cast<double>(trace.token_at.size()) / job.output_tokens);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(tokens) * 1e-6 / absl::ToDoubleSeconds(absl::Now() - begin);
}

}  // namespace baton::bench
