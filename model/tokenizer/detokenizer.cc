#include "model/tokenizer/detokenizer.h"

namespace baton::model {

absl::Status Detokenizer::Append(int32_t token_id, std::string* out) {
  absl::StatusOr<absl::string_view> bytes = tokenizer_->TokenBytes(token_id);
  if (!bytes.ok()) return bytes.status();
  if (tokenizer_->IsSpecial(token_id)) {
    if (options_.skip_special) return absl::OkStatus();
    utf8_.Flush(out);
  } else if (options_.strip_space_prefix && !bytes->empty()) {
    if (bytes->front() == ' ') bytes->remove_prefix(1);
    options_.strip_space_prefix = false;
  }
  utf8_.Append(*bytes, out);
  return absl::OkStatus();
}

void Detokenizer::Flush(std::string* out) { utf8_.Flush(out); }

}  // namespace baton::model
