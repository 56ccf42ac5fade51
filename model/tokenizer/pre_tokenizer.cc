#include "model/tokenizer/pre_tokenizer.h"

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace baton::model {
namespace {

struct Scheme {
  const char* names;  // separated by spaces
  std::vector<const char*> patterns;
  bool ignore_merges = false;
  bool nfc = false;
};

constexpr char kDigit[] = R"(\p{N})";
constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr char kTekken[] = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                           R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// "default" is what converters write when they know no better; its meaning is the one GGUF readers have given it.
const std::vector<Scheme>& Schemes() {
  static const auto* const schemes = new std::vector<Scheme>{
      {"gpt-2 phi-2 mpt olmo jina-es jina-de", {kGpt2}},
      {"smollm starcoder refact command-r codeshell", {kDigit, kGpt2}},
      {"llama-bpe llama3 llama-v3", {kLlama3}, /*ignore_merges=*/true},
      {"qwen2 deepseek-r1-qwen", {kQwen2}, false, /*nfc=*/true},
      {"stablelm2", {kQwen2}},
      {"tekken", {kTekken}, /*ignore_merges=*/true},
      {"gpt-4o llama4", {kO200k}},
      {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
  return *schemes;
}

absl::StatusOr<const Scheme*> FindScheme(absl::string_view name) {
  std::vector<std::string> known;
  for (const Scheme& scheme : Schemes()) {
    const std::vector<std::string> names = absl::StrSplit(scheme.names, ' ');
    known.insert(known.end(), names.begin(), names.end());
    if (std::find(names.begin(), names.end(), name) != names.end()) return &scheme;
  }
  return absl::UnimplementedError(absl::StrCat("the model's pre-tokenizer \"", name, "\" is not known; known are ",
                                               absl::StrJoin(known, ", "),
                                               ". Use a model file converted with one of these."));
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, CodeDeleter>;
using MatchData = std::unique_ptr<pcre2_match_data, MatchDataDeleter>;
using MatchContext = std::unique_ptr<pcre2_match_context, MatchContextDeleter>;

std::string ErrorText(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

absl::StatusOr<Code> Compile(const char* pattern) {
  // PCRE2's \s also takes U+180E, which Unicode (and so every reference tokenizer) no longer calls white space.
  const std::string source = absl::StrReplaceAll(pattern, {{"\\s", "\\p{White_Space}"}, {"\\S", "\\P{White_Space}"}});
  int error = 0;
  PCRE2_SIZE error_at = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), PCRE2_UTF | PCRE2_UCP, &error,
                          &error_at, nullptr));
  if (code == nullptr) {
    return absl::InternalError(
        absl::StrCat("pre-tokenizer pattern does not compile at ", error_at, ": ", ErrorText(error), ": ", source));
  }
  // Without JIT (a platform that forbids it) matching is slower and otherwise the same.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

absl::Status SplitPiece(const pcre2_code* code, pcre2_match_data* data, pcre2_match_context* context,
                        absl::string_view piece, std::vector<absl::string_view>* out) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(piece.data());
  size_t done = 0;    // everything before this is in `out`
  size_t search = 0;  // where the next match may begin
  while (search < piece.size()) {
    const int rc = pcre2_match(code, subject, piece.size(), search, PCRE2_NO_UTF_CHECK, data, context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("splitting the text into words failed at byte ", search, ": ",
                                                       ErrorText(rc), "; send a shorter text"));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
    if (range[1] <= range[0]) return absl::InternalError("a pre-tokenizer pattern matched nothing");
    if (range[0] > done) out->push_back(piece.substr(done, range[0] - done));
    out->push_back(piece.substr(range[0], range[1] - range[0]));
    done = search = range[1];
  }
  if (done < piece.size()) out->push_back(piece.substr(done));
  return absl::OkStatus();
}

}  // namespace

struct PreTokenizer::Impl {
  std::vector<Code> patterns;
  bool ignore_merges;
  bool nfc;
};

PreTokenizer::PreTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PreTokenizer::~PreTokenizer() = default;

bool PreTokenizer::ignore_merges() const { return impl_->ignore_merges; }
bool PreTokenizer::nfc() const { return impl_->nfc; }

absl::StatusOr<std::vector<std::string>> PreTokenizer::Patterns(absl::string_view name) {
  const absl::StatusOr<const Scheme*> scheme = FindScheme(name);
  if (!scheme.ok()) return scheme.status();
  return std::vector<std::string>((*scheme)->patterns.begin(), (*scheme)->patterns.end());
}

absl::StatusOr<std::unique_ptr<const PreTokenizer>> PreTokenizer::Create(absl::string_view name) {
  const absl::StatusOr<const Scheme*> scheme = FindScheme(name);
  if (!scheme.ok()) return scheme.status();
  auto impl = std::make_unique<Impl>();
  impl->ignore_merges = (*scheme)->ignore_merges;
  impl->nfc = (*scheme)->nfc;
  for (const char* pattern : (*scheme)->patterns) {
    absl::StatusOr<Code> code = Compile(pattern);
    if (!code.ok()) return code.status();
    impl->patterns.push_back(*std::move(code));
  }
  return std::unique_ptr<const PreTokenizer>(new PreTokenizer(std::move(impl)));
}

absl::StatusOr<std::vector<absl::string_view>> PreTokenizer::Split(absl::string_view text) const {
  MatchData data(pcre2_match_data_create(1, nullptr));
  MatchContext context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) return absl::ResourceExhaustedError("no memory to match words");
  // Our patterns backtrack over a run at most once for each alternative.
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(text.size(), 1 << 27) * 16 + 10000));

  std::vector<absl::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Code& code : impl_->patterns) {
    std::vector<absl::string_view> next;
    next.reserve(pieces.size() * 2);
    for (const absl::string_view piece : pieces) {
      absl::Status split = SplitPiece(code.get(), data.get(), context.get(), piece, &next);
      if (!split.ok()) return split;
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace baton::model
