// A model's chat template: messages to the prompt text that the model was trained on.
//
// The language is Jinja as published chat templates use it; the output equals, byte for byte, that of jinja2 in the
// environment that Hugging Face transformers renders templates in. A template comes with a downloaded model file, so it
// is not trusted: it reaches nothing outside its own variables, and its steps, memory, output and depth are bounded.
//
// Left out, each a typed error: include, import, extends and block, recursive loops, str.format and %-formatting.
// Different from Python: integers have 128 bits, case mapping is Unicode's simple one, a generator prints as a list.
#ifndef BATON_MODEL_TEMPLATE_CHAT_TEMPLATE_H_
#define BATON_MODEL_TEMPLATE_CHAT_TEMPLATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace baton::model {

namespace jinja {
struct Template;
}

struct ChatTemplateLimits {
  size_t max_template_bytes = 256 << 10;
  int max_depth = 64;                          // nesting of blocks, of expressions, of macro calls and of data
  int64_t max_steps = 1'000'000;               // of evaluation; work on long strings and lists counts by length
  size_t max_output_bytes = 1 << 20;           // of the result and of each string made on the way
  size_t max_alloc_bytes = size_t{256} << 20;  // of all values made in one rendering, together
};

struct ChatTemplateInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;  // null: the template sees none
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  // Object: further variables (chat_template_kwargs, documents). They cannot replace the ones above.
  nlohmann::ordered_json extra;
  // What strftime_now shows, in UTC. Absent: strftime_now is not defined.
  std::optional<absl::Time> now;
};

// Immutable, so any number of threads may render with one.
class ChatTemplate {
 public:
  // InvalidArgument for a syntax error (the message has the line) or a template that is too long or too deep.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source, const ChatTemplateLimits& limits = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // InvalidArgument when the template refuses the messages (raise_exception) or does not fit them; ResourceExhausted
  // when a limit is reached. The message has the line of the template.
  absl::StatusOr<std::string> Render(const ChatTemplateInput& input) const;

 private:
  ChatTemplate(std::unique_ptr<const jinja::Template> tree, const ChatTemplateLimits& limits);

  std::unique_ptr<const jinja::Template> tree_;
  ChatTemplateLimits limits_;
};

}  // namespace baton::model

#endif  // BATON_MODEL_TEMPLATE_CHAT_TEMPLATE_H_
