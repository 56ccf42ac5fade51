// The expression half of the parser: Jinja's grammar, where filters and tests bind tighter than arithmetic.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "model/template/parser.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {

ExprPtr Parser::New(ExprKind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = Current().line;
  return expr;
}

absl::Status Parser::Enter() {
  if (depth_ <= max_depth_) return absl::OkStatus();
  return SyntaxError(Current().line, absl::StrCat("nested deeper than ", max_depth_));
}

absl::StatusOr<ExprPtr> Parser::Finish(ExprPtr expr) const {
  int height = 0;
  const auto see = [&](const ExprPtr& child) {
    if (child != nullptr) height = std::max(height, child->height);
  };
  for (const ExprPtr& child : expr->args) see(child);
  for (const ExprPtr& child : expr->call_args) see(child);
  for (const auto& [name, child] : expr->call_kwargs) see(child);
  see(expr->star_args);
  see(expr->star_kwargs);
  expr->height = height + 1;
  if (expr->height > kMaxHeight) return SyntaxError(expr->line, "an expression is too deep");
  return expr;
}

absl::StatusOr<ExprPtr> Parser::ParseExpression() {
  const Nesting nesting(this);
  JINJA_RETURN_IF_ERROR(Enter());
  JINJA_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  while (AtName("if")) {
    ExprPtr conditional = New(ExprKind::kConditional);
    Skip();
    JINJA_ASSIGN_OR_RETURN(ExprPtr test, ParseOr());
    ExprPtr otherwise;
    if (SkipName("else")) {
      JINJA_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    conditional->args.push_back(std::move(test));
    conditional->args.push_back(std::move(value));
    conditional->args.push_back(std::move(otherwise));
    JINJA_ASSIGN_OR_RETURN(value, Finish(std::move(conditional)));
  }
  return value;
}

absl::StatusOr<ExprPtr> Parser::ParseOr() {
  JINJA_ASSIGN_OR_RETURN(ExprPtr first, ParseAnd());
  if (!AtName("or")) return first;
  ExprPtr all = New(ExprKind::kOr);
  all->args.push_back(std::move(first));
  while (SkipName("or")) {
    JINJA_ASSIGN_OR_RETURN(ExprPtr next, ParseAnd());
    all->args.push_back(std::move(next));
  }
  return Finish(std::move(all));
}

absl::StatusOr<ExprPtr> Parser::ParseAnd() {
  JINJA_ASSIGN_OR_RETURN(ExprPtr first, ParseNot());
  if (!AtName("and")) return first;
  ExprPtr all = New(ExprKind::kAnd);
  all->args.push_back(std::move(first));
  while (SkipName("and")) {
    JINJA_ASSIGN_OR_RETURN(ExprPtr next, ParseNot());
    all->args.push_back(std::move(next));
  }
  return Finish(std::move(all));
}

absl::StatusOr<ExprPtr> Parser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const Nesting nesting(this);
  JINJA_RETURN_IF_ERROR(Enter());
  ExprPtr expr = New(ExprKind::kNot);
  Skip();
  JINJA_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  expr->args.push_back(std::move(operand));
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> Parser::ParseCompare() {
  static constexpr std::pair<const char*, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                        {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
  JINJA_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  ExprPtr compare;
  while (true) {
    std::optional<Op> op;
    for (const auto& [text, candidate] : kOps) {
      if (AtOp(text)) op = candidate;
    }
    if (AtName("in")) op = Op::kIn;
    const bool not_in = AtName("not") && Next().kind == TokenKind::kName && Next().text == "in";
    if (not_in) op = Op::kNotIn;
    if (!op.has_value()) break;
    if (compare == nullptr) {
      compare = New(ExprKind::kCompare);
      compare->args.push_back(std::move(first));
    }
    Skip();
    if (not_in) Skip();
    JINJA_ASSIGN_OR_RETURN(ExprPtr operand, ParseSum());
    compare->ops.push_back(*op);
    compare->args.push_back(std::move(operand));
  }
  return compare == nullptr ? absl::StatusOr<ExprPtr>(std::move(first)) : Finish(std::move(compare));
}

absl::StatusOr<ExprPtr> Parser::ParseArithmetic(Operand operand, std::vector<std::pair<const char*, Op>> ops) {
  JINJA_ASSIGN_OR_RETURN(ExprPtr first, (this->*operand)());
  ExprPtr all;
  while (true) {
    std::optional<Op> op;
    for (const auto& [text, candidate] : ops) {
      if (AtOp(text)) op = candidate;
    }
    if (!op.has_value()) break;
    if (all == nullptr) {
      all = New(ExprKind::kArithmetic);
      all->args.push_back(std::move(first));
    }
    Skip();
    JINJA_ASSIGN_OR_RETURN(ExprPtr next, (this->*operand)());
    all->ops.push_back(*op);
    all->args.push_back(std::move(next));
  }
  return all == nullptr ? absl::StatusOr<ExprPtr>(std::move(first)) : Finish(std::move(all));
}

absl::StatusOr<ExprPtr> Parser::ParseSum() {
  return ParseArithmetic(&Parser::ParseConcat, {{"+", Op::kAdd}, {"-", Op::kSub}});
}

absl::StatusOr<ExprPtr> Parser::ParseConcat() {
  JINJA_ASSIGN_OR_RETURN(ExprPtr first, ParseProduct());
  if (!AtOp("~")) return first;
  ExprPtr all = New(ExprKind::kConcat);
  all->args.push_back(std::move(first));
  while (SkipOp("~")) {
    JINJA_ASSIGN_OR_RETURN(ExprPtr next, ParseProduct());
    all->args.push_back(std::move(next));
  }
  return Finish(std::move(all));
}

absl::StatusOr<ExprPtr> Parser::ParseProduct() {
  return ParseArithmetic(&Parser::ParsePower,
                         {{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}});
}

absl::StatusOr<ExprPtr> Parser::ParsePower() {
  return ParseArithmetic(&Parser::ParseUnaryWithFilters, {{"**", Op::kPow}});
}

absl::StatusOr<ExprPtr> Parser::ParseUnary(bool with_filters) {
  ExprPtr expr;
  if (AtOp("-") || AtOp("+")) {
    const Nesting nesting(this);
    JINJA_RETURN_IF_ERROR(Enter());
    ExprPtr sign = New(AtOp("-") ? ExprKind::kNegate : ExprKind::kPlus);
    Skip();
    JINJA_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(false));
    sign->args.push_back(std::move(operand));
    JINJA_ASSIGN_OR_RETURN(expr, Finish(std::move(sign)));
  } else {
    JINJA_ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  JINJA_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  if (!with_filters) return expr;
  return ParseFilters(std::move(expr));
}

absl::StatusOr<ExprPtr> Parser::ParsePrimary() {
  ExprPtr expr = New(ExprKind::kConst);
  const Token token = Current();
  if (token.kind == TokenKind::kName) {
    Skip();
    if (token.text == "true" || token.text == "True") {
      expr->constant = Value(true);
    } else if (token.text == "false" || token.text == "False") {
      expr->constant = Value(false);
    } else if (token.text == "none" || token.text == "None") {
      expr->constant = Value(None{});
    } else {
      expr->kind = ExprKind::kName;
      expr->name = Intern(token.text);
      for (MacroDef* macro : macros_) {
        if (token.text == "varargs") macro->uses_varargs = true;
        if (token.text == "kwargs") macro->uses_kwargs = true;
        if (token.text == "caller") macro->uses_caller = true;
      }
    }
    return expr;
  }
  if (token.kind == TokenKind::kString) {
    std::string text;
    for (; Current().kind == TokenKind::kString; Skip()) text += Current().text;
    expr->constant = Value(std::move(text));
    return expr;
  }
  if (token.kind == TokenKind::kNumber) {
    Skip();
    expr->constant = token.number;
    return expr;
  }
  if (AtOp("(")) {
    Skip();
    JINJA_ASSIGN_OR_RETURN(ExprPtr inner, ParseTuple(true, true));
    JINJA_RETURN_IF_ERROR(ExpectOp(")"));
    return inner;
  }
  if (AtOp("[")) return ParseList();
  if (AtOp("{")) return ParseDict();
  return Unexpected("an expression");
}

absl::StatusOr<ExprPtr> Parser::ParseTuple(bool with_conditional, bool in_parentheses) {
  ExprPtr tuple = New(ExprKind::kTuple);
  bool is_tuple = false;
  while (true) {
    const bool ended = Current().kind == TokenKind::kVariableEnd || Current().kind == TokenKind::kBlockEnd ||
                       Current().kind == TokenKind::kEnd || AtOp(")") || (!with_conditional && AtName("recursive"));
    if (ended) break;
    JINJA_ASSIGN_OR_RETURN(ExprPtr item, with_conditional ? ParseExpression() : ParseOr());
    tuple->args.push_back(std::move(item));
    if (!SkipOp(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !tuple->args.empty()) return std::move(tuple->args[0]);
  if (!is_tuple && !in_parentheses) return Unexpected("an expression");
  return Finish(std::move(tuple));
}

absl::StatusOr<ExprPtr> Parser::ParseList() {
  ExprPtr list = New(ExprKind::kList);
  Skip();
  while (!AtOp("]")) {
    if (!list->args.empty()) JINJA_RETURN_IF_ERROR(ExpectOp(","));
    if (AtOp("]")) break;
    JINJA_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    list->args.push_back(std::move(item));
  }
  JINJA_RETURN_IF_ERROR(ExpectOp("]"));
  return Finish(std::move(list));
}

absl::StatusOr<ExprPtr> Parser::ParseDict() {
  ExprPtr dict = New(ExprKind::kDict);
  Skip();
  while (!AtOp("}")) {
    if (!dict->args.empty()) JINJA_RETURN_IF_ERROR(ExpectOp(","));
    if (AtOp("}")) break;
    JINJA_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    JINJA_RETURN_IF_ERROR(ExpectOp(":"));
    JINJA_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    dict->args.push_back(std::move(key));
    dict->args.push_back(std::move(value));
  }
  JINJA_RETURN_IF_ERROR(ExpectOp("}"));
  return Finish(std::move(dict));
}

absl::StatusOr<ExprPtr> Parser::ParsePostfix(ExprPtr expr) {
  while (true) {
    if (AtOp(".") || AtOp("[")) {
      JINJA_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (AtOp("(")) {
      ExprPtr call = New(ExprKind::kCall);
      call->args.push_back(std::move(expr));
      JINJA_RETURN_IF_ERROR(ParseCallArgs(call.get()));
      JINJA_ASSIGN_OR_RETURN(expr, Finish(std::move(call)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> Parser::ParseFilters(ExprPtr expr) {
  while (true) {
    if (AtOp("|")) {
      JINJA_ASSIGN_OR_RETURN(expr, ParseFilterChain(std::move(expr), false));
    } else if (AtName("is")) {
      JINJA_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (AtOp("(")) {
      ExprPtr call = New(ExprKind::kCall);
      call->args.push_back(std::move(expr));
      JINJA_RETURN_IF_ERROR(ParseCallArgs(call.get()));
      JINJA_ASSIGN_OR_RETURN(expr, Finish(std::move(call)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> Parser::ParseFilterChain(ExprPtr expr, bool first_without_pipe) {
  while (first_without_pipe || SkipOp("|")) {
    first_without_pipe = false;
    ExprPtr filter = New(ExprKind::kFilter);
    JINJA_ASSIGN_OR_RETURN(filter->text, ExpectAnyName());
    filter->args.push_back(std::move(expr));
    if (AtOp("(")) JINJA_RETURN_IF_ERROR(ParseCallArgs(filter.get()));
    JINJA_ASSIGN_OR_RETURN(expr, Finish(std::move(filter)));
  }
  return expr;
}

absl::StatusOr<ExprPtr> Parser::ParseTest(ExprPtr expr) {
  ExprPtr test = New(ExprKind::kTest);
  Skip();
  const bool negated = SkipName("not");
  JINJA_ASSIGN_OR_RETURN(test->text, ExpectAnyName());
  test->args.push_back(std::move(expr));
  const TokenKind kind = Current().kind;
  if (AtOp("(")) {
    JINJA_RETURN_IF_ERROR(ParseCallArgs(test.get()));
  } else if (((kind == TokenKind::kName && !AtName("else") && !AtName("or") && !AtName("and")) ||
              kind == TokenKind::kString || kind == TokenKind::kNumber || AtOp("[") || AtOp("{"))) {
    if (AtName("is")) return SyntaxError(Current().line, "tests cannot be chained with is");
    JINJA_ASSIGN_OR_RETURN(ExprPtr arg, ParsePrimary());
    JINJA_ASSIGN_OR_RETURN(arg, ParsePostfix(std::move(arg)));
    test->call_args.push_back(std::move(arg));
  }
  JINJA_ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!negated) return test;
  ExprPtr inverse = New(ExprKind::kNot);
  inverse->args.push_back(std::move(test));
  return Finish(std::move(inverse));
}

absl::StatusOr<ExprPtr> Parser::ParseSubscript(ExprPtr expr) {
  ExprPtr result = New(ExprKind::kGetItem);
  result->args.push_back(std::move(expr));
  if (SkipOp(".")) {
    if (Current().kind == TokenKind::kNumber && Current().number.is_int()) {
      ExprPtr index = New(ExprKind::kConst);
      index->constant = Current().number;
      Skip();
      result->args.push_back(std::move(index));
    } else {
      result->kind = ExprKind::kGetAttr;
      JINJA_ASSIGN_OR_RETURN(result->text, ExpectAnyName());
    }
    return Finish(std::move(result));
  }
  Skip();  // [
  const auto at_end = [this] { return AtOp("]") || AtOp(","); };
  ExprPtr start;
  if (!AtOp(":")) {
    JINJA_ASSIGN_OR_RETURN(start, ParseExpression());
  }
  if (!AtOp(":")) {
    result->args.push_back(std::move(start));
    JINJA_RETURN_IF_ERROR(ExpectOp("]"));
    return Finish(std::move(result));
  }
  Skip();
  result->kind = ExprKind::kSlice;
  ExprPtr stop;
  ExprPtr step;
  if (!AtOp(":") && !at_end()) {
    JINJA_ASSIGN_OR_RETURN(stop, ParseExpression());
  }
  if (SkipOp(":") && !at_end()) {
    JINJA_ASSIGN_OR_RETURN(step, ParseExpression());
  }
  JINJA_RETURN_IF_ERROR(ExpectOp("]"));
  result->args.push_back(std::move(start));
  result->args.push_back(std::move(stop));
  result->args.push_back(std::move(step));
  return Finish(std::move(result));
}

absl::Status Parser::ParseCallArgs(Expr* call) {
  JINJA_RETURN_IF_ERROR(ExpectOp("("));
  bool first = true;
  while (!AtOp(")")) {
    if (!first) JINJA_RETURN_IF_ERROR(ExpectOp(","));
    first = false;
    if (AtOp(")")) break;
    const bool is_keyword =
        Current().kind == TokenKind::kName && Next().kind == TokenKind::kOperator && Next().text == "=";
    const bool positional_allowed =
        call->call_kwargs.empty() && call->star_args == nullptr && call->star_kwargs == nullptr;
    if (AtOp("*") && call->star_args == nullptr && call->star_kwargs == nullptr) {
      Skip();
      JINJA_ASSIGN_OR_RETURN(call->star_args, ParseExpression());
    } else if (AtOp("**") && call->star_kwargs == nullptr) {
      Skip();
      JINJA_ASSIGN_OR_RETURN(call->star_kwargs, ParseExpression());
    } else if (is_keyword && call->star_kwargs == nullptr) {
      std::string name = Current().text;
      for (const auto& [other, unused] : call->call_kwargs) {
        if (other == name) return SyntaxError(Current().line, absl::StrCat("keyword argument repeated: ", name));
      }
      Skip();
      Skip();
      JINJA_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      call->call_kwargs.emplace_back(std::move(name), std::move(value));
    } else if (positional_allowed) {
      JINJA_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      call->call_args.push_back(std::move(value));
    } else {
      return SyntaxError(Current().line, "invalid syntax for the arguments of a call");
    }
  }
  return ExpectOp(")");
}

}  // namespace baton::model::jinja
