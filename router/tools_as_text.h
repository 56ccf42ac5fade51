// Tools for models whose chat template knows none: told in words in the system message, in the form of Hermes (NousResearch's
// function calling, which Qwen and others follow), which the output is then searched for.
//
// Thread contract: plain functions.
#ifndef BATON_ROUTER_TOOLS_AS_TEXT_H_
#define BATON_ROUTER_TOOLS_AS_TEXT_H_

#include <nlohmann/json.hpp>

namespace baton::router {

// `tools`: OpenAI's list. `messages`, as templates know them: the first becomes, or follows, a system message that lists the
// tools; calls of the assistant and answers of tools become text of the roles that every template knows.
void TellOfTools(const nlohmann::ordered_json& tools, nlohmann::ordered_json* messages);

}  // namespace baton::router

#endif  // BATON_ROUTER_TOOLS_AS_TEXT_H_
