#include "cli/bench/workload.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/philox.h"
#include "common/validate_request.h"

namespace baton::bench {
namespace {

constexpr size_t kMaxPrompts = 1'000'000;

// What a stream of token ids belongs to; equal numbers of different kinds are different streams.
enum class Text : uint32_t { kRequest = 1, kPrefix = 2, kTraceBlock = 3, kLengths = 4 };

void AppendTokens(uint64_t seed, uint32_t vocab_size, Text kind, uint64_t stream, uint64_t count, v1::TokenIds* ids) {
  const uint32_t first = vocab_size / 4, range = std::max(1u, vocab_size / 2);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (uint64_t i = 0; i < count;) {
    const auto draws = Philox4x32({static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32),
                                   static_cast<uint32_t>(i / 4), static_cast<uint32_t>(kind)},
                                  key);
    for (const uint32_t draw : draws) {
      if (i == count) break;
      ids->add_ids(static_cast<int32_t>(first + (uint64_t{draw} * range >> 32)));
      ++i;
    }
  }
}

class Synthetic : public Workload {
 public:
  explicit Synthetic(const SyntheticOptions& options) : o_(options) {}
  uint64_t size() const override { return 0; }
  void Fill(uint64_t index, v1::GenerateRequest* request) const override {
    v1::TokenIds* ids = request->mutable_token_ids();
    const uint32_t input = Length(o_.input_tokens, index, 0);
    if (o_.prefix_tokens > 0) {
      AppendTokens(o_.seed, o_.vocab_size, Text::kPrefix, index % o_.num_prefixes, o_.prefix_tokens, ids);
    }
    AppendTokens(o_.seed, o_.vocab_size, Text::kRequest, index, input - std::min(input, o_.prefix_tokens), ids);
    request->mutable_sampling()->set_max_tokens(static_cast<int32_t>(Length(o_.output_tokens, index, 1)));
  }
  static uint32_t Least(uint32_t n, double ratio) {
    return std::max(1u, static_cast<uint32_t>(std::floor(n * (1 - ratio))));
  }
  static uint32_t Most(uint32_t n, double ratio) { return static_cast<uint32_t>(std::floor(n * (1 + ratio))); }

 private:
  uint32_t Length(uint32_t n, uint64_t index, uint32_t which) const {
    if (o_.range_ratio == 0) return n;
    const uint32_t least = Least(n, o_.range_ratio), most = std::max(least, Most(n, o_.range_ratio));
    const double u = PhiloxUniform(o_.seed, static_cast<uint32_t>(index), which, static_cast<uint32_t>(Text::kLengths));
    return least + static_cast<uint32_t>(u * (most - least + 1));
  }
  const SyntheticOptions o_;
};

struct FilePrompt {
  std::string text;
  uint32_t output_tokens;
};

class FromFile : public Workload {
 public:
  explicit FromFile(std::vector<FilePrompt> prompts) : prompts_(std::move(prompts)) {}
  uint64_t size() const override { return prompts_.size(); }
  void Fill(uint64_t index, v1::GenerateRequest* request) const override {
    const FilePrompt& prompt = prompts_[index % prompts_.size()];
    request->set_prompt(prompt.text);
    request->mutable_sampling()->set_max_tokens(static_cast<int32_t>(prompt.output_tokens));
  }

 private:
  const std::vector<FilePrompt> prompts_;
};

class FromTrace : public Workload {
 public:
  FromTrace(ScaledTrace trace, uint64_t seed, uint32_t vocab_size)
      : trace_(std::move(trace)), seed_(seed), vocab_size_(vocab_size) {}
  uint64_t size() const override { return trace_.rows.size(); }
  void Fill(uint64_t index, v1::GenerateRequest* request) const override {
    const TraceRow& row = trace_.rows[index % trace_.rows.size()];
    v1::TokenIds* ids = request->mutable_token_ids();
    uint64_t left = row.input_tokens;
    for (const uint64_t id : row.hash_ids) {
      const uint64_t count = std::min(left, trace_.block_tokens);
      AppendTokens(seed_, vocab_size_, Text::kTraceBlock, id, count, ids);
      left -= count;
    }
    AppendTokens(seed_, vocab_size_, Text::kRequest, index, left, ids);
    request->mutable_sampling()->set_max_tokens(static_cast<int32_t>(std::min<uint64_t>(row.output_tokens, INT32_MAX)));
  }

 private:
  const ScaledTrace trace_;
  const uint64_t seed_;
  const uint32_t vocab_size_;
};

absl::StatusOr<FilePrompt> ParsePrompt(absl::string_view line, uint32_t output_tokens) {
  FilePrompt prompt{.text = std::string(line), .output_tokens = output_tokens};
  if (line[0] == '{') {
    const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string()) {
      return absl::InvalidArgumentError("expected {\"prompt\": \"text\"}");
    }
    prompt.text = json["prompt"].get<std::string>();
    if (json.contains("output_tokens")) {
      const auto& tokens = json["output_tokens"];
      if (!tokens.is_number_unsigned() || tokens.get<uint64_t>() < 1 || tokens.get<uint64_t>() > INT32_MAX) {
        return absl::InvalidArgumentError("output_tokens is no whole number of 1 or more");
      }
      prompt.output_tokens = static_cast<uint32_t>(tokens.get<uint64_t>());
    }
  }
  if (FirstInvalidUtf8(prompt.text) >= 0) return absl::InvalidArgumentError("the prompt is not UTF-8");
  if (prompt.text.empty()) return absl::InvalidArgumentError("the prompt is empty");
  return prompt;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Workload>> MakeSynthetic(const SyntheticOptions& o, uint32_t max_context) {
  if (o.vocab_size < 4) return absl::FailedPreconditionError("The router does not tell the size of its vocabulary.");
  const uint32_t shortest = Synthetic::Least(o.input_tokens, o.range_ratio);
  if (o.prefix_tokens >= shortest) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prefix-tokens is ", o.prefix_tokens, ", but the shortest prompt has ", shortest,
                     " tokens, and each needs one of its own; raise --input-tokens or lower --prefix-tokens"));
  }
  const uint64_t longest =
      uint64_t{Synthetic::Most(o.input_tokens, o.range_ratio)} + Synthetic::Most(o.output_tokens, o.range_ratio);
  if (max_context > 0 && longest > max_context) {
    return absl::InvalidArgumentError(absl::StrCat("A request may have ", longest,
                                                   " tokens (--input-tokens and --output-tokens), but the cluster's "
                                                   "context holds ",
                                                   max_context));
  }
  return std::make_unique<Synthetic>(o);
}

absl::StatusOr<std::unique_ptr<Workload>> MakeFromFile(absl::string_view text, absl::string_view name,
                                                       uint32_t output_tokens) {
  std::vector<FilePrompt> prompts;
  size_t number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) continue;
    absl::StatusOr<FilePrompt> prompt = ParsePrompt(line, output_tokens);
    if (prompt.ok() && prompts.size() == kMaxPrompts) {
      prompt = absl::InvalidArgumentError("more than 1,000,000 prompts; cut the file");
    }
    if (!prompt.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("The prompts in ", name, ", line ", number, ": ", prompt.status().message(), "."));
    }
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat("There is no prompt in ", name, "."));
  return std::make_unique<FromFile>(std::move(prompts));
}

std::unique_ptr<Workload> MakeFromTrace(ScaledTrace trace, uint64_t seed, uint32_t vocab_size) {
  return std::make_unique<FromTrace>(std::move(trace), seed, vocab_size);
}

}  // namespace baton::bench
