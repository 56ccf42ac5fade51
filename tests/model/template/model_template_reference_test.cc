// The chat template inside SmolLM2's model file renders as with jinja2. Gemma's file carries none.
#include <cstdlib>

#include "model/gguf.h"
#include "tests/model/template/reference_data.h"

namespace baton::model {
namespace {

TEST(ModelTemplateReferenceTest, SmolLm2) {
  const char* cache = std::getenv("BATON_CACHE");
  const char* home = std::getenv("HOME");
  const std::string root = cache != nullptr ? cache : absl::StrCat(home != nullptr ? home : "", "/.cache/baton");
  absl::StatusOr<GgufFile> file = GgufFile::Open(root + "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  absl::StatusOr<absl::string_view> source = file->GetString("tokenizer.chat_template");
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectGoldens("SmolLM2", std::string(*source), ReadJson("goldens.json")["SmolLM2"]);
}

}  // namespace
}  // namespace baton::model
