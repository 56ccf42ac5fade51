#include "model/tokenizer/text_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/utf8.h"

namespace baton::model {
namespace {

uint64_t EdgeKey(uint32_t node, uint8_t byte) { return uint64_t{node} * 256 + byte; }

absl::Status CheckStrings(const std::vector<std::string>& strings) {
  if (strings.size() > StopStrings::kMaxStrings) {
    return absl::InvalidArgumentError(
        absl::StrCat(strings.size(), " stop strings were given; at most ", StopStrings::kMaxStrings, " are allowed"));
  }
  size_t total = 0;
  for (size_t i = 0; i < strings.size(); ++i) {
    if (strings[i].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("stop string ", i, " is empty; leave it out"));
    }
    if (const std::optional<size_t> bad = FirstInvalidUtf8(strings[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop string ", i, " is not valid UTF-8: the first bad byte is at offset ", *bad));
    }
    total += strings[i].size();
  }
  if (total > StopStrings::kMaxTotalBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the stop strings have ", total, " bytes; at most ",
                                                   StopStrings::kMaxTotalBytes, " are allowed together"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StopStrings>> StopStrings::Create(std::vector<std::string> strings) {
  absl::Status status = CheckStrings(strings);
  if (!status.ok()) return status;
  auto stops = std::make_shared<StopStrings>();
  std::vector<std::pair<uint32_t, uint8_t>> incoming = {{0, 0}};  // of each node: its parent and byte
  for (size_t i = 0; i < strings.size(); ++i) {
    uint32_t node = 0;
    for (const char c : strings[i]) {
      const uint8_t byte = static_cast<uint8_t>(c);
      const uint32_t fresh = static_cast<uint32_t>(stops->nodes_.size());
      const auto [it, inserted] = stops->edges_.try_emplace(EdgeKey(node, byte), fresh);
      if (inserted) {
        stops->nodes_.push_back({stops->nodes_[node].depth + 1, 0, -1});
        incoming.push_back({node, byte});
      }
      node = it->second;
    }
    if (stops->nodes_[node].match < 0) stops->nodes_[node].match = static_cast<int32_t>(i);
  }
  stops->strings_ = std::move(strings);

  // Fallbacks need those of all shorter prefixes.
  std::vector<std::vector<uint32_t>> by_depth;
  for (uint32_t node = 0; node < stops->nodes_.size(); ++node) {
    const size_t depth = stops->nodes_[node].depth;
    if (by_depth.size() <= depth) by_depth.resize(depth + 1);
    by_depth[depth].push_back(node);
  }
  for (size_t depth = 2; depth < by_depth.size(); ++depth) {
    for (const uint32_t id : by_depth[depth]) {
      Node& node = stops->nodes_[id];
      const auto [parent, byte] = incoming[id];
      node.fallback = stops->Next(stops->nodes_[parent].fallback, byte);
      // The own string, if one ends here, is longer than any that the fallback ends.
      if (node.match < 0) node.match = stops->nodes_[node.fallback].match;
    }
  }
  return std::shared_ptr<const StopStrings>(std::move(stops));
}

uint32_t StopStrings::Next(uint32_t state, uint8_t byte) const {
  while (true) {
    const auto it = edges_.find(EdgeKey(state, byte));
    if (it != edges_.end()) return it->second;
    if (state == 0) return 0;
    state = nodes_[state].fallback;
  }
}

TextStream::TextStream(const Tokenizer* tokenizer, std::shared_ptr<const StopStrings> stops,
                       const TextStreamOptions& options)
    : detokenizer_(tokenizer, {.skip_special = options.skip_special}), stops_(std::move(stops)), options_(options) {}

TextStream::Output TextStream::Search(absl::string_view text) {
  if (stops_ == nullptr || stops_->empty()) return {std::string(text), std::nullopt};
  // held_ plus text is what the search has seen and not emitted.
  std::string pending = std::move(held_);
  held_.clear();
  const size_t num_held = pending.size();
  absl::StrAppend(&pending, text);
  for (size_t i = num_held; i < pending.size(); ++i) {
    state_ = stops_->Next(state_, static_cast<uint8_t>(pending[i]));
    const int match = stops_->Match(state_);
    if (match < 0) continue;
    const absl::string_view stop = stops_->string(match);
    stopped_ = true;
    pending.resize(i + 1 - (options_.include_stop_str ? 0 : stop.size()));
    return {std::move(pending), std::string(stop)};
  }
  const size_t num_out = pending.size() - stops_->HeldBytes(state_);
  held_ = pending.substr(num_out);
  pending.resize(num_out);
  return {std::move(pending), std::nullopt};
}

absl::StatusOr<TextStream::Output> TextStream::Append(int32_t token_id) {
  if (stopped_ || finished_) {
    return absl::FailedPreconditionError("the text has ended; no token can follow");
  }
  std::string text;
  absl::Status status = detokenizer_.Append(token_id, &text);
  if (!status.ok()) return status;
  ++num_tokens_;
  if (num_tokens_ < options_.min_tokens) return Output{std::move(text), std::nullopt};
  return Search(text);
}

TextStream::Output TextStream::Finish() {
  if (stopped_ || finished_) return {};
  finished_ = true;
  std::string text;
  detokenizer_.Flush(&text);
  Output output;
  if (num_tokens_ < options_.min_tokens) {
    output.text = std::move(text);
  } else {
    output = Search(text);
  }
  if (!stopped_) output.text += held_;
  held_.clear();
  return output;
}

}  // namespace baton::model
