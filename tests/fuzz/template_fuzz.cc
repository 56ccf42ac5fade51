// A chat template from strangers' model files: parsing, and rendering one conversation, within small limits.
#include <fstream>
#include <iterator>

#include "model/template/chat_template.h"
#include "tests/fuzz/fuzz_target.h"

using baton::model::ChatTemplate;
using baton::model::ChatTemplateInput;
using baton::model::ChatTemplateLimits;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const input = [] {
    auto* made = new ChatTemplateInput;
    made->messages = nlohmann::ordered_json::parse(
        R"([{"role":"system","content":"Be brief. é世"},{"role":"user","content":[{"type":"text","text":"a\nb"}]},
            {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":[1,2.5,true]}}}]}])",
        nullptr, false);
    made->tools = nlohmann::ordered_json::parse(
        R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"array"}}}}}])",
        nullptr, false);
    made->bos_token = "<s>";
    made->now = absl::UnixEpoch();
    return made;
  }();
  ChatTemplateLimits limits;
  limits.max_steps = 20000;
  limits.max_output_bytes = 64 << 10;
  limits.max_alloc_bytes = 4 << 20;
  const auto chat_template = ChatTemplate::Parse(absl::string_view(reinterpret_cast<const char*>(data), size), limits);
  if (!chat_template.ok()) return 0;
  const auto text = chat_template->Render(*input);
  if (text.ok() && text->size() > limits.max_output_bytes) __builtin_trap();
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const char* name :
       {"01_plain", "02_whitespace", "03_loops", "04_set_namespace", "05_macros", "06_filters_text", "07_filters_seq",
        "08_tools_json", "09_expressions", "10_tests", "11_methods", "12_raise", "13_dates_extra", "14_multimodal",
        "15_reasoning", "16_schema_macro", "17_filters_blocks", "18_scopes"}) {
    std::ifstream file(std::string("tests/model/template/testdata/") + name + ".jinja", std::ios::binary);
    if (!file.good()) __builtin_trap();
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    seeds.push_back(text);
    // Single lines too: in a long template the first error hides the rest.
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      seeds.push_back(text.substr(begin, end - begin));
    }
  }
  return seeds;
}
