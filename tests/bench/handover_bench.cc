// What the hand-over costs the second token, with a link slowed so that the transfer takes a given share of prefill.
//
// Per link speed, in turns: the KV moves while prefill computes it (what the product does), and after prefill (for
// comparison). The time added to the second token is the gap from token 0 to token 1 minus the gap without a slowed link.
// Spec: with transfer = prefill, the overlapped one adds less than 15 % of the transfer time.
//
//   bazel run //tests/bench:handover_bench -- --model MODEL.gguf [--tokens 2048 --chunk 128 --rounds 3 --svg FILE]
#include <atomic>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "tests/bench/bench_clock.h"
#include "tests/prefill_worker/worker_pair.h"

namespace baton::bench {
namespace {

struct Options {
  std::string model;
  int tokens = 2048;
  int chunk = 128;
  int rounds = 3;
  std::string svg;
};

struct Sample {
  double prefill = 0;  // seconds
  double gap = 0;      // from token 0 to token 1
  double bytes = 0;
};

struct Row {
  double share = 0;  // transfer time / prefill time
  double transfer = 0;
  double overlapped = 0, sequential = 0;  // seconds added to the second token
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        pair_({.kv_mib = 512,
               .max_batch_tokens = options.chunk,
               .model = options.model,
               .link_bytes_per_second = &link_}) {}

  int Run() {
    std::vector<double> gaps, prefills;
    double bytes = 0;
    Once(/*overlap=*/true, 0);  // warms up
    for (int i = 0; i < options_.rounds; ++i) {
      const Sample s = Once(true, 0);
      gaps.push_back(s.gap);
      prefills.push_back(s.prefill);
      bytes = s.bytes;
    }
    const double gap = Median(gaps), prefill = Median(prefills);
    std::printf("prompt %d tokens, chunk %d: prefill %.3f s, %.1f MB of KV, token 0 to token 1 %.1f ms on a fast link\n",
                options_.tokens, options_.chunk, prefill, bytes / 1e6, gap * 1e3);
    std::printf("%10s %12s %14s %22s %22s\n", "transfer", "link MB/s", "transfer s", "added, overlapped", "added, after");
    std::vector<Row> rows;
    for (const double share : {0.25, 0.5, 1.0, 2.0}) {
      std::vector<double> overlapped, sequential, transfers;
      for (int i = 0; i < options_.rounds; ++i) {
        for (const bool overlap : {true, false}) {
          // The machine's speed drifts, so each link is set by the prefill before it.
          const Sample base = Once(true, 0);
          const double transfer = share * base.prefill;
          const Sample s = Once(overlap, bytes / transfer);
          (overlap ? overlapped : sequential).push_back(s.gap - base.gap);
          transfers.push_back(transfer);
        }
      }
      const Row row{share, Median(transfers), Median(overlapped), Median(sequential)};
      std::printf("%8.2f x %12.1f %14.3f %13.3f s (%4.1f%%) %13.3f s (%4.1f%%)\n", share, bytes / row.transfer / 1e6,
                  row.transfer, row.overlapped, 100 * row.overlapped / row.transfer, row.sequential,
                  100 * row.sequential / row.transfer);
      std::fflush(stdout);
      rows.push_back(row);
    }
    if (!options_.svg.empty()) std::ofstream(options_.svg) << Svg(rows);
    return 0;
  }

 private:
  Sample Once(bool overlap, double bytes_per_second) {
    link_ = bytes_per_second;
    v1::PrefillRequest request = testing::MakePrefill(absl::StrCat("r", ++count_), 1, 1);
    std::mt19937_64 random(count_);
    request.clear_prompt_token_ids();
    for (int i = 0; i < options_.tokens; ++i) request.add_prompt_token_ids(static_cast<int32_t>(random() % 250) + 1);
    request.mutable_sampling()->set_max_tokens(3);
    request.mutable_sampling()->set_ignore_eos(true);
    testing::WorkerPair::DecodeCall decode(&pair_, testing::WorkerPair::Matching(request), absl::Minutes(10));
    decode.AwaitReserved();
    testing::WorkerPair::PrefillCall prefill(&pair_, request, absl::Minutes(10));
    if (!prefill.AwaitTicket() || (!overlap && !prefill.AwaitPrefilled()) ||
        !pair_.Present(request, prefill.ticket).ok() || !decode.Wait().ok()) {
      std::fprintf(stderr, "a request failed: %s\n", decode.Wait().error_message().c_str());
      std::exit(1);
    }
    (void)prefill.Wait();
    return {prefill.prefilled.prefill_ms() / 1e3, absl::ToDoubleSeconds(decode.first_token_at - prefill.first_token_at),
            static_cast<double>(decode.fetched.bytes())};
  }

  // Time added to the second token, in transfer times, over the link's speed.
  static std::string Svg(const std::vector<Row>& rows) {
    std::string svg =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"560\" height=\"360\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<text x=\"60\" y=\"22\" font-size=\"14\">Time added to the second token, % of the transfer time</text>\n";
    const auto y = [](double percent) { return 310 - percent * 2.2; };
    const auto x = [&](size_t i) { return 90 + 120.0 * static_cast<double>(i); };
    for (int p = 0; p <= 120; p += 20) {
      absl::StrAppendFormat(&svg, "<line x1=\"60\" y1=\"%.1f\" x2=\"500\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                                  "<text x=\"52\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n",
                            y(p), y(p), y(p) + 4, p);
    }
    for (const bool overlapped : {true, false}) {
      std::string points;
      for (size_t i = 0; i < rows.size(); ++i) {
        const double added = overlapped ? rows[i].overlapped : rows[i].sequential;
        absl::StrAppendFormat(&points, "%.1f,%.1f ", x(i), y(100 * added / rows[i].transfer));
      }
      absl::StrAppendFormat(&svg, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", points,
                            overlapped ? "#1f77b4" : "#ff7f0e");
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"330\" text-anchor=\"middle\">%g x</text>\n", x(i), rows[i].share);
    }
    absl::StrAppend(&svg,
                    "<text x=\"280\" y=\"350\" text-anchor=\"middle\">transfer time / prefill time</text>\n"
                    "<text x=\"380\" y=\"50\" fill=\"#1f77b4\">overlapped</text>\n"
                    "<text x=\"380\" y=\"66\" fill=\"#ff7f0e\">after prefill</text>\n</svg>\n");
    return svg;
  }

  const Options options_;
  std::atomic<double> link_{0};
  uint64_t count_ = 0;
  testing::WorkerPair pair_;
};

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) {
  baton::bench::Options options;
  CLI::App app("What the KV hand-over adds to the second token");
  app.add_option("--model", options.model, "GGUF file")->required();
  app.add_option("--tokens", options.tokens, "of the prompt");
  app.add_option("--chunk", options.chunk, "prefill tokens of one step");
  app.add_option("--rounds", options.rounds, "of each measurement; medians are shown");
  app.add_option("--svg", options.svg, "write a plot here");
  CLI11_PARSE(app, argc, argv);
  return baton::bench::Bench(options).Run();
}
