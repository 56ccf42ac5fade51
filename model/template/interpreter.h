// Runs a template's tree. One Interpreter renders once.
#ifndef BATON_MODEL_TEMPLATE_INTERPRETER_H_
#define BATON_MODEL_TEMPLATE_INTERPRETER_H_

#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/template/ast.h"
#include "model/template/chat_template.h"
#include "model/template/value.h"

namespace baton::model::jinja {

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments by the names of a function's parameters, in their order; null where not given.
class BoundArgs {
 public:
  // InvalidArgument for too many arguments or an unknown or repeated name.
  static absl::StatusOr<BoundArgs> Bind(absl::string_view function, const CallArgs& args,
                                        std::initializer_list<const char*> params);
  const Value* Get(size_t index) const { return values_[index]; }
  bool Truth(size_t index, bool otherwise) const;
  // InvalidArgument if given and not a string (or integer).
  absl::StatusOr<std::optional<std::string>> String(size_t index) const;
  absl::StatusOr<std::optional<int64_t>> Integer(size_t index) const;  // clamped to 64 bits

 private:
  std::string function_;
  std::vector<const char*> params_;
  std::vector<const Value*> values_;
};

struct Scope {
  Scope* parent = nullptr;
  absl::flat_hash_map<int, Value> variables;  // by name id
  bool captured = false;                      // a macro refers to it, so it lives to the end
};

// Not thread safe.
class Interpreter {
 public:
  Interpreter(const Template& tree, const ChatTemplateLimits& limits, std::optional<absl::Time> now);

  void SetVariable(const std::string& name, Value value);
  absl::StatusOr<std::string> Run();
  int line() const { return line_; }  // where it was last; where it failed, after an error

  Budget& budget() { return budget_; }
  const std::optional<absl::Time>& now() const { return now_; }

  // What the functions of builtins.cc, filters.cc and methods.cc need of one another.
  absl::StatusOr<Value> GetAttr(const Value& object, const std::string& name);
  absl::StatusOr<Value> GetItem(const Value& object, const Value& key);
  absl::StatusOr<Value> Call(const Value& callee, const CallArgs& args);
  absl::StatusOr<Value> CallFilter(const std::string& name, const Value& operand, const CallArgs& args);
  absl::StatusOr<bool> CallTest(const std::string& name, const Value& operand, const CallArgs& args);
  absl::StatusOr<Namespace*> NewNamespace();

 private:
  enum class Flow { kNext, kBreak, kContinue };

  int NameId(absl::string_view name) const;  // -1: the template does not use it
  absl::Status EnterFrame();
  absl::Status Emit(absl::string_view text);

  // Statements (interpreter.cc).
  absl::StatusOr<Flow> Exec(const Stmt& stmt);
  absl::StatusOr<Flow> ExecBody(const Body& body);
  absl::StatusOr<Flow> ExecScoped(const Body& body);  // in a scope of its own
  absl::StatusOr<Flow> ExecFor(const Stmt& stmt);
  absl::StatusOr<Flow> ExecIf(const Stmt& stmt);
  absl::StatusOr<Flow> ExecWith(const Stmt& stmt);
  absl::Status ExecCallBlock(const Stmt& stmt);
  absl::StatusOr<std::vector<Value>> LoopItems(const Stmt& stmt);
  absl::StatusOr<Value> Capture(const Body& body);                    // what the body prints, in a scope of its own
  absl::StatusOr<Value> FilterText(const Expr* filters, Value text);  // null filters: the text itself
  absl::Status Assign(const Target& target, Value value);
  absl::StatusOr<Value> CallMacro(const Callable& callable, const CallArgs& args);
  absl::Status BindMacro(const MacroDef& macro, const CallArgs& args);
  absl::StatusOr<Value> NewMacro(const MacroDef* macro);
  std::unique_ptr<Scope> PushScope(Scope* parent);
  absl::Status PopScope(std::unique_ptr<Scope> scope, Scope* previous);

  // Expressions (eval.cc).
  absl::StatusOr<Value> Eval(const Expr& expr);
  absl::StatusOr<Value> EvalNode(const Expr& expr);
  absl::StatusOr<Value> EvalName(const Expr& expr);
  absl::StatusOr<Value> EvalArithmetic(const Expr& expr);
  absl::StatusOr<Value> EvalConcat(const Expr& expr);
  absl::StatusOr<Value> EvalCompare(const Expr& expr);
  absl::StatusOr<Value> EvalCall(const Expr& expr);
  absl::StatusOr<Value> EvalFilter(const Expr& expr);
  absl::StatusOr<Value> EvalTest(const Expr& expr);
  absl::StatusOr<Value> EvalSlice(const Expr& expr);
  absl::StatusOr<Value> EvalSign(const Expr& expr);
  absl::StatusOr<Value> EvalLogic(const Expr& expr);
  absl::StatusOr<Value> EvalDict(const Expr& expr);
  absl::StatusOr<std::vector<Value>> EvalAll(const std::vector<ExprPtr>& exprs);
  absl::StatusOr<CallArgs> EvalArgs(const Expr& expr);

  const Template& tree_;
  const std::optional<absl::Time> now_;
  Budget budget_;
  int max_macro_depth_;
  int macro_depth_ = 0;
  int frame_depth_ = 0;
  int line_ = 1;
  absl::flat_hash_map<absl::string_view, int> name_ids_;
  Scope globals_;
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  Value block_text_;  // operand of the filter chain of a block
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
  std::vector<std::unique_ptr<Scope>> captured_scopes_;
};

// `a op b` for the arithmetic operators (arithmetic.cc).
absl::StatusOr<Value> Arithmetic(Budget& budget, Op op, const Value& a, const Value& b);

// Methods of strings, lists, dicts and loops (methods.cc).
bool HasMethod(const Value& object, absl::string_view name);
absl::StatusOr<Value> CallMethod(Interpreter& interpreter, const Value& self, const std::string& name,
                                 const CallArgs& args);
// range, namespace, dict, raise_exception and strftime_now (builtins.cc).
std::vector<std::string> GlobalNames(bool has_clock);
absl::StatusOr<Value> CallGlobal(Interpreter& interpreter, const std::string& name, const CallArgs& args);

}  // namespace baton::model::jinja

#endif  // BATON_MODEL_TEMPLATE_INTERPRETER_H_
