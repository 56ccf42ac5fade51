// The tree of a template. Built once by the parser, which bounds its height, then only read.
#ifndef BATON_MODEL_TEMPLATE_AST_H_
#define BATON_MODEL_TEMPLATE_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/template/value.h"

namespace baton::model::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kConst,
  kName,     // name
  kList,     // args
  kTuple,    // args
  kDict,     // args: key, value, key, value...
  kGetAttr,  // args[0].text
  kGetItem,  // args[0][args[1]]
  kSlice,    // args[0][args[1]:args[2]:args[3]], null where left out
  kCall,     // args[0](...)
  kFilter,   // args[0] | text(...); args[0] null: a filter block's or set block's own text
  kTest,     // args[0] is text(...)
  kNot,
  kNegate,
  kPlus,
  kAnd,  // all of args, flattened, as the next four
  kOr,
  kArithmetic,  // args[0] ops[0] args[1] ops[1] ..., from the left
  kConcat,
  kCompare,      // chained as in Python
  kConditional,  // args: test, then, else (null: undefined)
};

enum class Op { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr {
  ExprKind kind = ExprKind::kConst;
  int line = 0;
  int height = 1;
  Value constant;
  int name = -1;                   // index into Template::names
  std::string text;                // attribute, filter or test
  std::vector<ExprPtr> args;       // operands
  std::vector<ExprPtr> call_args;  // of a call, filter or test
  std::vector<std::pair<std::string, ExprPtr>> call_kwargs;
  ExprPtr star_args;
  ExprPtr star_kwargs;
  std::vector<Op> ops;
};

// What an assignment stores to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  int name = -1;
  std::string attribute;  // not empty: of the namespace `name`
  std::vector<Target> items;
  bool is_tuple = false;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct MacroDef {
  std::string name;
  int name_id = -1;
  std::vector<int> params;
  std::vector<std::string> param_names;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
  Body body;
};

enum class StmtKind {
  kText,         // text
  kOutput,       // expr
  kFor,          // target, expr, filter (may be null), body, else_body
  kIf,           // branches, else_body
  kSet,          // target, expr
  kSetBlock,     // target, expr (a chain of filters, may be null), body
  kMacro,        // macro
  kCallBlock,    // macro (the caller), expr (the call)
  kFilterBlock,  // expr (a chain of filters), body
  kWith,         // assignments, body
  kScope,        // body, for tags that only mark it
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;
  Target target;
  ExprPtr expr;
  ExprPtr filter;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  std::unique_ptr<MacroDef> macro;
  Body body;
  Body else_body;
};

struct Template {
  std::vector<std::string> names;
  Body body;
};

}  // namespace baton::model::jinja

#endif  // BATON_MODEL_TEMPLATE_AST_H_
