#include "model/tokenizer/utf8.h"

namespace baton::model {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// What may follow a lead byte: how many continuation bytes, and the range of the first of them.
struct Lead {
  uint8_t num_continuation;
  uint8_t min;
  uint8_t max;
};

// num_continuation 0 for a byte >= 0x80 means that no sequence starts with it.
Lead LeadOf(uint8_t byte) {
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte < 0xF0) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte < 0xF4) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(absl::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    if (byte < 0x80) {
      ++i;
      continue;
    }
    const Lead lead = LeadOf(byte);
    if (lead.num_continuation == 0 || text.size() - i <= lead.num_continuation) return i;
    uint8_t min = lead.min;
    uint8_t max = lead.max;
    for (int k = 1; k <= lead.num_continuation; ++k) {
      const uint8_t next = static_cast<uint8_t>(text[i + k]);
      if (next < min || next > max) return i;
      min = 0x80;
      max = 0xBF;
    }
    i += lead.num_continuation + 1;
  }
  return std::nullopt;
}

int Utf8SequenceLength(uint8_t lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

void Utf8Stream::Start(uint8_t byte, std::string* out) {
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  const Lead lead = LeadOf(byte);
  if (lead.num_continuation == 0) {
    out->append(kReplacement);
    return;
  }
  pending_[0] = static_cast<char>(byte);
  num_pending_ = 1;
  num_needed_ = lead.num_continuation;
  next_min_ = lead.min;
  next_max_ = lead.max;
}

void Utf8Stream::Append(absl::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (num_pending_ == 0) {
      Start(byte, out);
      continue;
    }
    if (byte < next_min_ || byte > next_max_) {
      Flush(out);
      Start(byte, out);
      continue;
    }
    pending_[num_pending_++] = c;
    next_min_ = 0x80;
    next_max_ = 0xBF;
    if (--num_needed_ == 0) {
      out->append(pending_, num_pending_);
      num_pending_ = 0;
    }
  }
}

void Utf8Stream::Flush(std::string* out) {
  if (num_pending_ > 0) out->append(kReplacement);
  num_pending_ = 0;
}

}  // namespace baton::model
