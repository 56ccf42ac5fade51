// 18 templates that use every construct that we support, each with 10 conversations: byte for byte what jinja2 renders.
#include "tests/model/template/reference_data.h"

namespace baton::model {
namespace {

TEST(ChatTemplateReferenceTest, EqualsJinja2) {
  const nlohmann::ordered_json goldens = ReadJson("goldens.json");
  int num_templates = 0;
  for (auto it = goldens.begin(); it != goldens.end(); ++it) {
    if (it.key() == "SmolLM2") continue;  // its text is in the model file: model_template_reference_test
    ExpectGoldens(it.key(), ReadTestData(it.key()), it.value());
    ++num_templates;
  }
  EXPECT_EQ(num_templates, 18);
}

}  // namespace
}  // namespace baton::model
