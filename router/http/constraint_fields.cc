// What a request says its text must be, in the spellings that clients use.
#include <string>

#include "absl/strings/str_cat.h"
#include "router/http/openai_request.h"

namespace baton::router::http {
namespace {

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Of all fields that ask for a constraint, at most one may be there.
class ConstraintReader {
 public:
  ConstraintReader(JsonFields* fields, v1::SamplingParams* sampling) : fields_(fields), sampling_(sampling) {}

  // The name of the field that asked for a constraint; empty: none did.
  const std::string& found() const { return found_; }

  void Read() {
    if (const Json* format = fields_->Object("response_format"); format != nullptr) ReadResponseFormat(*format);
    Schema(fields_, "guided_json");
    Regex(fields_, "guided_regex");
    Choice(fields_, "guided_choice");
    Grammar(fields_, "guided_grammar");
    if (const Json* outputs = fields_->Object("structured_outputs"); outputs != nullptr) {
      JsonFields inner(*outputs, "structured_outputs.");
      Schema(&inner, "json");
      Regex(&inner, "regex");
      Choice(&inner, "choice");
      if (inner.Bool("json_object").value_or(false)) {
        if (v1::Constraint* c = New(&inner, "json_object")) c->set_json_object(true);
      }
      Grammar(&inner, "grammar");
      if (inner.Find("structural_tag") != nullptr) {
        inner.Fail("structural_tag", "is not supported; a JSON Schema, a regex, a choice or a grammar is");
      }
      fields_->Fail(inner.status());
    }
  }

 private:
  v1::Constraint* New(JsonFields* fields, const std::string& name) {
    if (!found_.empty()) {
      fields->Fail(name, absl::StrCat("cannot be given together with ", found_,
                                      ": the text can satisfy one constraint only"));
      return nullptr;
    }
    found_ = fields->PathOf(name);
    return sampling_->mutable_constraint();
  }

  void ReadResponseFormat(const Json& format) {
    JsonFields inner(format, "response_format.");
    const std::string type = inner.String("type").value_or("");
    if (type == "json_object") {
      New(&inner, "type")->set_json_object(true);
    } else if (type == "json_schema") {
      const Json* wrapper = inner.Object("json_schema");
      const auto schema = wrapper == nullptr ? Json::const_iterator() : wrapper->find("schema");
      if (wrapper == nullptr || schema == wrapper->end() || !(schema->is_object() || schema->is_boolean())) {
        inner.Fail("json_schema.schema", "must be a JSON Schema");
      } else {
        New(&inner, "json_schema.schema")->set_json_schema(Dump(*schema));
      }
    } else if (type == "structural_tag") {
      inner.Fail("type", "structural_tag is not supported; json_object and json_schema are");
    } else if (type != "text") {
      inner.Fail("type", "must be text, json_object or json_schema");
    }
    fields_->Fail(inner.status());
  }

  // A schema, or the text of one.
  void Schema(JsonFields* fields, const char* name) {
    const Json* schema = fields->Find(name);
    if (schema == nullptr) return;
    if (!schema->is_object() && !schema->is_boolean() && !schema->is_string()) {
      return fields->Fail(name, "must be a JSON Schema");
    }
    if (v1::Constraint* c = New(fields, name)) {
      c->set_json_schema(schema->is_string() ? schema->get<std::string>() : Dump(*schema));
    }
  }

  void Regex(JsonFields* fields, const char* name) {
    const auto regex = fields->String(name);
    if (!regex.has_value()) return;
    if (v1::Constraint* c = New(fields, name)) c->set_regex(*regex);
  }

  void Grammar(JsonFields* fields, const char* name) {
    const auto grammar = fields->String(name);
    if (!grammar.has_value()) return;
    if (v1::Constraint* c = New(fields, name)) c->set_grammar(*grammar);
  }

  void Choice(JsonFields* fields, const char* name) {
    const Json* choices = fields->Array(name);
    if (choices == nullptr) return;
    v1::Constraint* c = New(fields, name);
    if (c == nullptr) return;
    c->mutable_choice();
    for (const Json& one : *choices) {
      if (!one.is_string()) return fields->Fail(name, "must be a list of strings");
      c->mutable_choice()->add_texts(one.get<std::string>());
    }
  }

  JsonFields* const fields_;
  v1::SamplingParams* const sampling_;
  std::string found_;
};

}  // namespace

std::string ReadConstraint(JsonFields* fields, v1::SamplingParams* sampling) {
  ConstraintReader reader(fields, sampling);
  reader.Read();
  return reader.found();
}

}  // namespace baton::router::http
