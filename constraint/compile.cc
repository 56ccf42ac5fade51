#include "constraint/compile.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/validate_request.h"
#include "constraint/gbnf.h"
#include "constraint/json_grammar.h"
#include "constraint/json_schema.h"
#include "constraint/regex.h"

namespace baton::constraint {
namespace {

const char* KindName(const v1::Constraint& constraint) {
  switch (constraint.kind_case()) {
    case v1::Constraint::kJsonObject:
      return "json_object";
    case v1::Constraint::kJsonSchema:
      return "json_schema";
    case v1::Constraint::kRegex:
      return "regex";
    case v1::Constraint::kChoice:
      return "choice";
    case v1::Constraint::kEnclosed:
      return "enclosed";
    case v1::Constraint::kGrammar:
      return "grammar";
    case v1::Constraint::KIND_NOT_SET:
      break;
  }
  return "";
}

std::string Field(const v1::Constraint& constraint) {
  const char* kind = KindName(constraint);
  return absl::StrCat("sampling.constraint", *kind == '\0' ? "" : ".", kind);
}

void BuildChoice(Builder* builder, const v1::Constraint::Choices& choice) {
  size_t bytes = 0;
  for (const std::string& text : choice.texts()) bytes += text.size();
  if (choice.texts().empty()) return builder->Fail(absl::InvalidArgumentError("is an empty list"));
  if (bytes > static_cast<size_t>(kMaxChoiceBytes)) {
    return builder->Fail(absl::InvalidArgumentError(absl::StrCat(bytes, " bytes; at most ", kMaxChoiceBytes)));
  }
  for (int i = 0; i < choice.texts_size(); ++i) {
    if (choice.texts(i).empty())
      return builder->Fail(absl::InvalidArgumentError(absl::StrCat("choice ", i, " is empty")));
  }
  const Rule rule = builder->NewRule();
  builder->End(builder->OneOf(builder->begin(rule), {choice.texts().begin(), choice.texts().end()}));
}

void BuildEnclosed(Builder* builder, const v1::Constraint::EnclosedJson& enclosed) {
  for (const std::string* text : {&enclosed.before(), &enclosed.after()}) {
    if (text->size() <= kMaxEnclosingBytes) continue;
    return builder->Fail(absl::InvalidArgumentError(
        absl::StrCat("before or after has ", text->size(), " bytes; at most ", kMaxEnclosingBytes)));
  }
  const Rule rule = builder->NewRule();
  const Rule json = BuildSchema(builder, enclosed.json_schema());
  if (!builder->ok()) return;
  const State opened = builder->Literal(builder->begin(rule), enclosed.before());
  builder->End(builder->Literal(builder->Call(opened, json), enclosed.after()));
}

void Build(Builder* builder, const v1::Constraint& constraint) {
  switch (constraint.kind_case()) {
    case v1::Constraint::kJsonObject: {
      if (!constraint.json_object()) return builder->Fail(absl::InvalidArgumentError("must be true, or left out"));
      const Rule rule = builder->NewRule();
      builder->End(JsonGrammar(builder).Object(builder->begin(rule)));
      return;
    }
    case v1::Constraint::kJsonSchema:
      BuildSchema(builder, constraint.json_schema());
      return;
    case v1::Constraint::kRegex: {
      const Rule rule = builder->NewRule();
      builder->End(AddRegex(builder, builder->begin(rule), constraint.regex()));
      return;
    }
    case v1::Constraint::kChoice:
      return BuildChoice(builder, constraint.choice());
    case v1::Constraint::kEnclosed:
      return BuildEnclosed(builder, constraint.enclosed());
    case v1::Constraint::kGrammar:
      BuildGbnf(builder, constraint.grammar());
      return;
    case v1::Constraint::KIND_NOT_SET:
      break;
  }
  builder->Fail(absl::InvalidArgumentError("has no kind; set json_object, json_schema, regex, choice, enclosed or grammar"));
}

absl::Status CheckTexts(const v1::Constraint& constraint) {
  const auto check = [&](const std::string& text) {
    const int64_t bad = FirstInvalidUtf8(text);
    return bad < 0 ? absl::OkStatus() : InvalidField(Field(constraint), absl::StrCat("not valid UTF-8 at byte ", bad));
  };
  for (const std::string& text : constraint.choice().texts()) {
    if (absl::Status s = check(text); !s.ok()) return s;
  }
  for (const std::string* text : {&constraint.regex(), &constraint.enclosed().before(), &constraint.enclosed().json_schema(),
                                  &constraint.enclosed().after(), &constraint.grammar()}) {
    if (absl::Status s = check(*text); !s.ok()) return s;
  }
  return check(constraint.json_schema());
}

absl::Status CheckCombination(const v1::SamplingParams& sampling) {
  if (sampling.has_constraint() && sampling.ignore_eos()) {
    return InvalidField("sampling.ignore_eos",
                        "contradicts a constraint, which says where the text ends; leave one out");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const v1::Constraint& constraint, const ByteSet& spellable) {
  if (absl::Status s = CheckTexts(constraint); !s.ok()) return s;
  Builder builder;
  Build(&builder, constraint);
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar = builder.Finish(spellable);
  if (grammar.ok()) return grammar;
  // The request's fault, and no other worker would find it smaller: not RESOURCE_EXHAUSTED, which is tried again.
  return InvalidField(Field(constraint), absl::string_view(grammar.status().message()));
}

absl::Status CheckConstraint(const v1::SamplingParams& sampling) {
  if (!sampling.has_constraint()) return absl::OkStatus();
  if (absl::Status s = CheckCombination(sampling); !s.ok()) return s;
  return Compile(sampling.constraint(), ByteSet().set()).status();
}

absl::StatusOr<std::shared_ptr<TokenConstraint>> ConstraintCompiler::ForRequest(const v1::SamplingParams& sampling) {
  if (!sampling.has_constraint()) return std::shared_ptr<TokenConstraint>();
  if (absl::Status s = CheckCombination(sampling); !s.ok()) return s;
  if (!has_eos_) {
    return InvalidField("sampling.constraint", "the model has no token that ends an answer, which a constraint needs");
  }
  // The kind's number and text: unlike the message's bytes, never in another order.
  const std::string key = sampling.constraint().SerializeAsString();
  {
    MutexLock lock(&mu_);
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->key != key) continue;
      kept_.splice(kept_.begin(), kept_, it);
      return it->constraint;
    }
  }
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar = Compile(sampling.constraint(), vocabulary_->spellable());
  if (!grammar.ok()) return grammar.status();
  auto constraint = std::make_shared<TokenConstraint>(*std::move(grammar), vocabulary_);
  std::list<Kept> old;  // goes without the lock
  MutexLock lock(&mu_);
  kept_.push_front({key, constraint});
  if (kept_.size() > kMaxKept) old.splice(old.begin(), kept_, std::prev(kept_.end()));
  return constraint;
}

}  // namespace baton::constraint
