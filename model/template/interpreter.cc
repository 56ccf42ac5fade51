// The statements of a template.
#include "model/template/interpreter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/template/python_text.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {
namespace {

// Evaluation calls itself; this bounds the stack it takes (well under 1 MB), for any mix of macros and expressions.
constexpr int kMaxFrames = 600;

class Increment {
 public:
  explicit Increment(int* count) : count_(count) { ++*count_; }
  ~Increment() { --*count_; }
  Increment(const Increment&) = delete;
  Increment& operator=(const Increment&) = delete;

 private:
  int* count_;
};

void MarkCaptured(Scope* scope) {
  for (; scope != nullptr && !scope->captured; scope = scope->parent) scope->captured = true;
}

}  // namespace

Interpreter::Interpreter(const Template& tree, const ChatTemplateLimits& limits, std::optional<absl::Time> now)
    : tree_(tree),
      now_(now),
      budget_(limits.max_steps, limits.max_alloc_bytes, limits.max_output_bytes, 2 * limits.max_depth),
      max_macro_depth_(limits.max_depth) {
  for (size_t id = 0; id < tree_.names.size(); ++id) name_ids_[tree_.names[id]] = static_cast<int>(id);
  for (std::string& name : GlobalNames(now.has_value())) {
    auto callable = std::make_shared<Callable>();
    callable->kind = Callable::Kind::kGlobal;
    callable->name = name;
    SetVariable(name, Value(std::shared_ptr<const Callable>(std::move(callable))));
  }
}

void Interpreter::SetVariable(const std::string& name, Value value) {
  if (const int id = NameId(name); id >= 0) globals_.variables[id] = std::move(value);
}

int Interpreter::NameId(absl::string_view name) const {
  const auto it = name_ids_.find(name);
  return it == name_ids_.end() ? -1 : it->second;
}

absl::StatusOr<std::string> Interpreter::Run() {
  std::string output;
  out_ = &output;
  Scope* const before = &globals_;
  scope_ = before;
  std::unique_ptr<Scope> root = PushScope(before);
  JINJA_RETURN_IF_ERROR(ExecBody(tree_.body).status());
  return output;
}

absl::Status Interpreter::EnterFrame() {
  if (frame_depth_ <= kMaxFrames) return budget_.Step();
  return absl::ResourceExhaustedError("evaluation is nested too deep; a macro may be calling itself without end");
}

absl::Status Interpreter::Emit(absl::string_view text) {
  JINJA_RETURN_IF_ERROR(budget_.CheckString(out_->size() + text.size()));
  JINJA_RETURN_IF_ERROR(budget_.StepBytes(text.size()));
  out_->append(text.data(), text.size());
  return absl::OkStatus();
}

std::unique_ptr<Scope> Interpreter::PushScope(Scope* parent) {
  auto scope = std::make_unique<Scope>();
  scope->parent = parent;
  scope_ = scope.get();
  return scope;
}

absl::Status Interpreter::PopScope(std::unique_ptr<Scope> scope, Scope* previous) {
  scope_ = previous;
  if (!scope->captured) return absl::OkStatus();
  JINJA_RETURN_IF_ERROR(budget_.Alloc(sizeof(Scope) + scope->variables.size() * 2 * sizeof(Value)));
  captured_scopes_.push_back(std::move(scope));
  return absl::OkStatus();
}

absl::StatusOr<Namespace*> Interpreter::NewNamespace() {
  JINJA_RETURN_IF_ERROR(budget_.Alloc(sizeof(Namespace) + 64));
  return &namespaces_.emplace_back();
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecBody(const Body& body) {
  for (const std::unique_ptr<Stmt>& stmt : body) {
    JINJA_ASSIGN_OR_RETURN(const Flow flow, Exec(*stmt));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecScoped(const Body& body) {
  Scope* const previous = scope_;
  std::unique_ptr<Scope> scope = PushScope(previous);
  absl::StatusOr<Flow> flow = ExecBody(body);
  JINJA_RETURN_IF_ERROR(PopScope(std::move(scope), previous));
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Exec(const Stmt& stmt) {
  const Increment frame(&frame_depth_);
  line_ = stmt.line;
  JINJA_RETURN_IF_ERROR(EnterFrame());
  switch (stmt.kind) {
    case StmtKind::kText:
      JINJA_RETURN_IF_ERROR(Emit(stmt.text));
      return Flow::kNext;
    case StmtKind::kOutput: {
      JINJA_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.expr));
      JINJA_ASSIGN_OR_RETURN(const std::string text, Str(budget_, value));
      JINJA_RETURN_IF_ERROR(Emit(text));
      return Flow::kNext;
    }
    case StmtKind::kFor:
      return ExecFor(stmt);
    case StmtKind::kIf:
      return ExecIf(stmt);
    case StmtKind::kSet: {
      JINJA_ASSIGN_OR_RETURN(Value value, Eval(*stmt.expr));
      JINJA_RETURN_IF_ERROR(Assign(stmt.target, std::move(value)));
      return Flow::kNext;
    }
    case StmtKind::kSetBlock: {
      JINJA_ASSIGN_OR_RETURN(Value text, Capture(stmt.body));
      JINJA_ASSIGN_OR_RETURN(Value value, FilterText(stmt.expr.get(), std::move(text)));
      JINJA_RETURN_IF_ERROR(Assign(stmt.target, std::move(value)));
      return Flow::kNext;
    }
    case StmtKind::kFilterBlock: {
      JINJA_ASSIGN_OR_RETURN(Value text, Capture(stmt.body));
      JINJA_ASSIGN_OR_RETURN(const Value value, FilterText(stmt.expr.get(), std::move(text)));
      JINJA_ASSIGN_OR_RETURN(const std::string filtered, Str(budget_, value));
      JINJA_RETURN_IF_ERROR(Emit(filtered));
      return Flow::kNext;
    }
    case StmtKind::kMacro: {
      JINJA_ASSIGN_OR_RETURN(Value macro, NewMacro(stmt.macro.get()));
      scope_->variables[stmt.macro->name_id] = std::move(macro);
      return Flow::kNext;
    }
    case StmtKind::kCallBlock:
      JINJA_RETURN_IF_ERROR(ExecCallBlock(stmt));
      return Flow::kNext;
    case StmtKind::kWith:
      return ExecWith(stmt);
    case StmtKind::kScope:
      return ExecScoped(stmt.body);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return absl::InternalError("a statement of unknown kind");
}

absl::StatusOr<std::vector<Value>> Interpreter::LoopItems(const Stmt& stmt) {
  JINJA_ASSIGN_OR_RETURN(const Value iterable, Eval(*stmt.expr));
  JINJA_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(budget_, iterable));
  if (stmt.filter == nullptr) return items;
  std::vector<Value> kept;
  Scope* const previous = scope_;
  std::unique_ptr<Scope> scope = PushScope(previous);
  for (Value& item : items) {
    scope->variables.clear();
    JINJA_RETURN_IF_ERROR(Assign(stmt.target, item));
    JINJA_ASSIGN_OR_RETURN(const Value keep, Eval(*stmt.filter));
    if (Truth(keep)) kept.push_back(std::move(item));
  }
  JINJA_RETURN_IF_ERROR(PopScope(std::move(scope), previous));
  return kept;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecFor(const Stmt& stmt) {
  JINJA_ASSIGN_OR_RETURN(std::vector<Value> items, LoopItems(stmt));
  if (items.empty()) return ExecScoped(stmt.else_body);
  JINJA_RETURN_IF_ERROR(budget_.Alloc(sizeof(Loop) + sizeof(List)));
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  Loop& loop = loops_.emplace_back();
  loop.items = std::move(list);

  const int loop_name = NameId("loop");
  Scope* const previous = scope_;
  std::unique_ptr<Scope> scope = PushScope(previous);
  bool going = true;
  for (; going && loop.index < loop.items->items.size(); ++loop.index) {
    JINJA_RETURN_IF_ERROR(budget_.Step());
    if (scope->captured) {
      JINJA_RETURN_IF_ERROR(PopScope(std::move(scope), previous));
      scope = PushScope(previous);
    }
    scope->variables.clear();
    if (loop_name >= 0) scope->variables[loop_name] = Value(&loop);
    JINJA_RETURN_IF_ERROR(Assign(stmt.target, loop.items->items[loop.index]));
    JINJA_ASSIGN_OR_RETURN(const Flow flow, ExecBody(stmt.body));
    going = flow != Flow::kBreak;
  }
  JINJA_RETURN_IF_ERROR(PopScope(std::move(scope), previous));
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecIf(const Stmt& stmt) {
  for (const auto& [test, body] : stmt.branches) {
    JINJA_ASSIGN_OR_RETURN(const Value value, Eval(*test));
    if (Truth(value)) return ExecBody(body);
  }
  return ExecBody(stmt.else_body);
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecWith(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, expr] : stmt.assignments) {
    JINJA_ASSIGN_OR_RETURN(Value value, Eval(*expr));
    values.push_back(std::move(value));
  }
  Scope* const previous = scope_;
  std::unique_ptr<Scope> scope = PushScope(previous);
  for (size_t i = 0; i < values.size(); ++i) {
    JINJA_RETURN_IF_ERROR(Assign(stmt.assignments[i].first, std::move(values[i])));
  }
  absl::StatusOr<Flow> flow = ExecBody(stmt.body);
  JINJA_RETURN_IF_ERROR(PopScope(std::move(scope), previous));
  return flow;
}

absl::StatusOr<Value> Interpreter::Capture(const Body& body) {
  std::string text;
  std::string* const out = out_;
  out_ = &text;
  absl::StatusOr<Flow> flow = ExecScoped(body);
  out_ = out;
  if (!flow.ok()) return flow.status();
  return MakeString(budget_, std::move(text));
}

absl::StatusOr<Value> Interpreter::FilterText(const Expr* filters, Value text) {
  if (filters == nullptr) return text;
  block_text_ = std::move(text);  // the innermost filter reads it before anything else runs
  return Eval(*filters);
}

absl::Status Interpreter::Assign(const Target& target, Value value) {
  if (target.is_tuple) {
    JINJA_ASSIGN_OR_RETURN(std::vector<Value> items, Elements(budget_, value));
    if (items.size() != target.items.size()) {
      return TypeError(absl::StrCat("cannot unpack ", items.size(), " values into ", target.items.size(), " names"));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      JINJA_RETURN_IF_ERROR(Assign(target.items[i], std::move(items[i])));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    scope_->variables[target.name] = std::move(value);
    return absl::OkStatus();
  }
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const auto it = scope->variables.find(target.name);
    if (it == scope->variables.end()) continue;
    if (!it->second.is_namespace()) break;
    if (target.attribute[0] == '_') return TypeError("a namespace cannot have attributes that start with _");
    JINJA_RETURN_IF_ERROR(budget_.Alloc(sizeof(Value)));
    it->second.as_namespace()->attributes[target.attribute] = std::move(value);
    return absl::OkStatus();
  }
  return TypeError(
      absl::StrCat("cannot assign attribute on non-namespace object: ", tree_.names[static_cast<size_t>(target.name)]));
}

absl::StatusOr<Value> Interpreter::NewMacro(const MacroDef* macro) {
  JINJA_RETURN_IF_ERROR(budget_.Alloc(sizeof(Callable)));
  auto callable = std::make_shared<Callable>();
  callable->kind = Callable::Kind::kMacro;
  callable->name = macro->name;
  callable->macro = macro;
  callable->scope = scope_;
  MarkCaptured(scope_);
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

absl::Status Interpreter::ExecCallBlock(const Stmt& stmt) {
  JINJA_ASSIGN_OR_RETURN(Value caller, NewMacro(stmt.macro.get()));
  JINJA_ASSIGN_OR_RETURN(const Value callee, Eval(*stmt.expr->args[0]));
  JINJA_ASSIGN_OR_RETURN(CallArgs args, EvalArgs(*stmt.expr));
  args.named.emplace_back("caller", std::move(caller));
  JINJA_ASSIGN_OR_RETURN(const Value result, Call(callee, args));
  JINJA_ASSIGN_OR_RETURN(const std::string text, Str(budget_, result));
  return Emit(text);
}

absl::Status Interpreter::BindMacro(const MacroDef& macro, const CallArgs& args) {
  // Each named argument is compared with each parameter.
  JINJA_RETURN_IF_ERROR(budget_.Step(static_cast<int64_t>(args.named.size() * macro.params.size() / 4)));
  const auto by_name = [&](absl::string_view name) -> const Value* {
    for (const auto& [other, value] : args.named) {
      if (other == name) return &value;
    }
    return nullptr;
  };
  const size_t first_default = macro.params.size() - macro.defaults.size();
  for (size_t i = 0; i < macro.params.size(); ++i) {
    Value value;
    if (i < args.positional.size()) {
      value = args.positional[i];
    } else if (const Value* named = by_name(macro.param_names[i])) {
      value = *named;
    } else if (i >= first_default) {
      JINJA_ASSIGN_OR_RETURN(value, Eval(*macro.defaults[i - first_default]));
    } else {
      value = Value::UndefinedNamed(absl::StrCat("parameter '", macro.param_names[i], "' was not provided"));
    }
    scope_->variables[macro.params[i]] = std::move(value);
  }
  std::vector<Value> varargs;
  for (size_t i = macro.params.size(); i < args.positional.size(); ++i) varargs.push_back(args.positional[i]);
  std::vector<std::pair<Value, Value>> kwargs;
  Value caller = Value::UndefinedNamed("No caller defined");
  for (const auto& [name, value] : args.named) {
    bool is_param = false;
    for (size_t i = args.positional.size(); i < macro.params.size(); ++i) is_param |= macro.param_names[i] == name;
    if (is_param) continue;
    if (name == "caller" && macro.uses_caller) {
      caller = value;
    } else if (macro.uses_kwargs) {
      kwargs.emplace_back(Value(name), value);
    } else {
      return TypeError(absl::StrCat("macro '", macro.name, "' takes no keyword argument '", name, "'"));
    }
  }
  if (!varargs.empty() && !macro.uses_varargs) {
    return TypeError(
        absl::StrCat("macro '", macro.name, "' takes not more than ", macro.params.size(), " argument(s)"));
  }
  if (macro.uses_caller) scope_->variables.try_emplace(NameId("caller"), caller);
  if (macro.uses_varargs) {
    JINJA_ASSIGN_OR_RETURN(scope_->variables[NameId("varargs")], MakeList(budget_, std::move(varargs), true));
  }
  if (macro.uses_kwargs) {
    JINJA_ASSIGN_OR_RETURN(scope_->variables[NameId("kwargs")], MakeDict(budget_, std::move(kwargs)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::CallMacro(const Callable& callable, const CallArgs& args) {
  const Increment depth(&macro_depth_);
  if (macro_depth_ > max_macro_depth_) {
    return absl::ResourceExhaustedError(absl::StrCat("macros call one another deeper than ", max_macro_depth_));
  }
  std::string text;
  std::string* const out = out_;
  Scope* const previous = scope_;
  out_ = &text;
  std::unique_ptr<Scope> scope = PushScope(callable.scope);
  absl::Status status = BindMacro(*callable.macro, args);
  if (status.ok()) status = ExecBody(callable.macro->body).status();
  out_ = out;
  JINJA_RETURN_IF_ERROR(PopScope(std::move(scope), previous));
  JINJA_RETURN_IF_ERROR(status);
  return MakeString(budget_, std::move(text));
}

}  // namespace baton::model::jinja
