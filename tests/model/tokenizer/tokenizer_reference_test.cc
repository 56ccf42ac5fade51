// Token ids of 2,000 varied strings equal the reference tokenizers' (tests/reference/tokenizer_reference.py says
// which), and decode back. The vocabularies are read from the model files.
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "model/gguf.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/gguf_tokenizer.h"
#include "model/tokenizer/utf8.h"

namespace baton::model {
namespace {

struct Golden {
  std::string text;
  std::vector<int32_t> ids;
  std::vector<int32_t> ids_plain;  // special tokens in the text as plain text
  std::string decoded;
};

class Reader {
 public:
  explicit Reader(std::string blob) : blob_(std::move(blob)) {}
  bool done() const { return at_ == blob_.size(); }
  uint32_t U32() {
    uint32_t value;
    std::memcpy(&value, Bytes(4).data(), 4);
    return value;
  }
  std::string Bytes(size_t size) {
    if (size > blob_.size() - at_) {
      ADD_FAILURE() << "golden file ends early";
      std::abort();
    }
    at_ += size;
    return blob_.substr(at_ - size, size);
  }
  std::string String() { return Bytes(U32()); }
  std::vector<int32_t> Ids() {
    std::vector<int32_t> ids(U32());
    for (int32_t& id : ids) id = static_cast<int32_t>(U32());
    return ids;
  }

 private:
  std::string blob_;
  size_t at_ = 0;
};

std::vector<Golden> ReadGoldens(const std::string& name) {
  std::ifstream file("tests/model/tokenizer/testdata/" + name, std::ios::binary);
  const std::string packed((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_GT(packed.size(), 4u) << name;
  uint32_t size = 0;
  std::memcpy(&size, packed.data(), 4);
  std::string blob(size, '\0');
  uLongf out_size = size;
  EXPECT_EQ(uncompress(reinterpret_cast<Bytef*>(blob.data()), &out_size,
                       reinterpret_cast<const Bytef*>(packed.data()) + 4, packed.size() - 4),
            Z_OK);
  EXPECT_EQ(out_size, size);
  Reader reader(std::move(blob));
  std::vector<Golden> goldens;
  while (!reader.done()) {
    Golden golden;
    golden.text = reader.String();
    golden.ids = reader.Ids();
    golden.ids_plain = reader.Ids();
    golden.decoded = reader.String();
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

std::string ModelPath(const std::string& name) {
  const char* cache = std::getenv("BATON_CACHE");
  const char* home = std::getenv("HOME");
  const std::string root = cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/baton";
  return root + "/models/" + name;
}

std::string IdsText(const std::vector<int32_t>& ids) { return absl::StrJoin(ids, " "); }

// Returns how many texts came back as they were; `lossy` as the reference has it.
int CheckAll(const Tokenizer& tokenizer, const std::vector<Golden>& goldens) {
  int num_back = 0;
  for (size_t i = 0; i < goldens.size(); ++i) {
    const Golden& golden = goldens[i];
    const std::string what = absl::StrCat("text ", i, ": \"", absl::CHexEscape(golden.text.substr(0, 300)), "\"");
    EncodeOptions options;
    options.add_special = false;
    absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(golden.text, options);
    options.parse_special = false;
    absl::StatusOr<std::vector<int32_t>> plain = tokenizer.Encode(golden.text, options);
    if (!ids.ok() || !plain.ok()) {
      ADD_FAILURE() << what << ids.status() << plain.status();
      continue;
    }
    EXPECT_EQ(IdsText(*ids), IdsText(golden.ids)) << what;
    EXPECT_EQ(IdsText(*plain), IdsText(golden.ids_plain)) << what << " (no special tokens)";
    absl::StatusOr<std::string> back = tokenizer.Decode(golden.ids);
    EXPECT_TRUE(back.ok()) << what << back.status();
    if (!back.ok()) continue;
    EXPECT_EQ(*back, golden.decoded) << what;
    num_back += *back == golden.text;

    Detokenizer stream(&tokenizer, {.skip_special = false});
    std::string streamed;
    for (const int32_t id : golden.ids) {
      EXPECT_TRUE(stream.Append(id, &streamed).ok());
      EXPECT_FALSE(FirstInvalidUtf8(streamed).has_value()) << what;
    }
    stream.Flush(&streamed);
    EXPECT_EQ(streamed, *back) << what;
    if (testing::Test::HasFailure() && i > 50) break;
  }
  return num_back;
}

std::unique_ptr<const Tokenizer> Load(const std::string& model) {
  absl::StatusOr<GgufFile> file = GgufFile::Open(ModelPath(model));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return nullptr;
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer = LoadTokenizer(*file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(TokenizerReferenceTest, SmolLm2) {
  const std::unique_ptr<const Tokenizer> tokenizer = Load("SmolLM2-135M-Instruct.Q4_1.gguf");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<Golden> goldens = ReadGoldens("smollm2.golden");
  ASSERT_EQ(goldens.size(), 2000u);
  // 21 bytes have no token in this vocabulary; the texts that hold one of them cannot come back, in the reference
  // either.
  int num_complete = 0;
  for (const Golden& golden : goldens) num_complete += golden.decoded == golden.text;
  EXPECT_EQ(CheckAll(*tokenizer, goldens), num_complete);
  EXPECT_GT(num_complete, 1750);
  EXPECT_EQ(tokenizer->eos_ids(), (std::vector<int32_t>{0, 2}));
  EXPECT_FALSE(tokenizer->add_bos());
}

TEST(TokenizerReferenceTest, Gemma3) {
  const std::unique_ptr<const Tokenizer> tokenizer = Load("gemma-3-270m-q4_k_m.gguf");
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<Golden> goldens = ReadGoldens("gemma3.golden");
  ASSERT_EQ(goldens.size(), 2000u);
  // Only U+2581 itself, which the vocabulary uses for a space, does not come back.
  int num_complete = 0;
  for (const Golden& golden : goldens) num_complete += golden.text.find("\xE2\x96\x81") == std::string::npos;
  EXPECT_EQ(CheckAll(*tokenizer, goldens), num_complete);
  EXPECT_GT(num_complete, 1900);
  EXPECT_EQ(tokenizer->eos_ids(), (std::vector<int32_t>{1, 106}));
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer->Encode("hi");
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), tokenizer->bos_id());
}

}  // namespace
}  // namespace baton::model
