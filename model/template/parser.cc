// The statement half of the parser.
#include "model/template/parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/template/status_macros.h"

namespace baton::model::jinja {

absl::StatusOr<std::unique_ptr<const Template>> ParseTemplate(std::vector<Token> tokens, int max_depth) {
  auto tree = std::make_unique<Template>();
  JINJA_RETURN_IF_ERROR(Parser(std::move(tokens), max_depth, tree.get()).Run());
  return std::unique_ptr<const Template>(std::move(tree));
}

bool Parser::SkipName(absl::string_view name) {
  if (!AtName(name)) return false;
  Skip();
  return true;
}

bool Parser::SkipOp(absl::string_view op) {
  if (!AtOp(op)) return false;
  Skip();
  return true;
}

absl::Status Parser::Unexpected(absl::string_view wanted) const {
  const Token& token = Current();
  const std::string got = token.kind == TokenKind::kEnd    ? "the end of the template"
                          : token.kind == TokenKind::kData ? "text"
                                                           : absl::StrCat("\"", token.text, "\"");
  return SyntaxError(token.line, absl::StrCat("expected ", wanted, ", got ", got));
}

absl::Status Parser::ExpectOp(absl::string_view op) {
  return SkipOp(op) ? absl::OkStatus() : Unexpected(absl::StrCat("\"", op, "\""));
}

absl::Status Parser::ExpectName(absl::string_view name) {
  return SkipName(name) ? absl::OkStatus() : Unexpected(absl::StrCat("\"", name, "\""));
}

absl::StatusOr<std::string> Parser::ExpectAnyName() {
  if (Current().kind != TokenKind::kName) return Unexpected("a name");
  std::string name = Current().text;
  Skip();
  return name;
}

absl::Status Parser::ExpectBlockEnd() {
  if (Current().kind != TokenKind::kBlockEnd) return Unexpected("\"%}\"");
  Skip();
  return absl::OkStatus();
}

int Parser::Intern(const std::string& name) {
  const auto [it, inserted] = names_.try_emplace(name, static_cast<int>(out_->names.size()));
  if (inserted) out_->names.push_back(name);
  return it->second;
}

Parser::StmtPtr Parser::NewStmt(StmtKind kind) const {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = Current().line;
  return stmt;
}

absl::Status Parser::Run() {
  JINJA_ASSIGN_OR_RETURN(out_->body, ParseBody({}));
  return absl::OkStatus();
}

absl::StatusOr<Body> Parser::ParseBody(const std::vector<absl::string_view>& ends) {
  const Nesting nesting(this);
  JINJA_RETURN_IF_ERROR(Enter());
  Body body;
  while (Current().kind != TokenKind::kEnd) {
    if (Current().kind == TokenKind::kData) {
      StmtPtr stmt = NewStmt(StmtKind::kText);
      stmt->text = Current().text;
      body.push_back(std::move(stmt));
      Skip();
    } else if (Current().kind == TokenKind::kVariableBegin) {
      StmtPtr stmt = NewStmt(StmtKind::kOutput);
      Skip();
      JINJA_ASSIGN_OR_RETURN(stmt->expr, ParseTuple(true, false));
      if (Current().kind != TokenKind::kVariableEnd) return Unexpected("\"}}\"");
      Skip();
      body.push_back(std::move(stmt));
    } else {
      Skip();  // {%
      if (std::any_of(ends.begin(), ends.end(), [this](absl::string_view end) { return AtName(end); })) return body;
      JINJA_RETURN_IF_ERROR(ParseStatement(&body));
      JINJA_RETURN_IF_ERROR(ExpectBlockEnd());
    }
  }
  if (!ends.empty()) return Unexpected(absl::StrCat("a ", ends.back(), " tag"));
  return body;
}

absl::StatusOr<Body> Parser::ParseBlock(absl::string_view end) {
  SkipOp(":");  // allowed, for the sake of Python's habits
  JINJA_RETURN_IF_ERROR(ExpectBlockEnd());
  JINJA_ASSIGN_OR_RETURN(Body body, ParseBody({end}));
  Skip();
  return body;
}

absl::Status Parser::ParseStatement(Body* out) {
  if (Current().kind != TokenKind::kName) return Unexpected("the name of a tag");
  const std::string tag = Current().text;
  absl::StatusOr<StmtPtr> stmt = StmtPtr();
  if (tag == "for") {
    stmt = ParseFor();
  } else if (tag == "if") {
    stmt = ParseIf();
  } else if (tag == "set") {
    stmt = ParseSet();
  } else if (tag == "macro") {
    stmt = ParseMacro();
  } else if (tag == "call") {
    stmt = ParseCall();
  } else if (tag == "with") {
    stmt = ParseWith();
  } else if (tag == "filter") {
    stmt = NewStmt(StmtKind::kFilterBlock);
    Skip();
    JINJA_ASSIGN_OR_RETURN((*stmt)->expr, ParseFilterChain(nullptr, true));
    JINJA_ASSIGN_OR_RETURN((*stmt)->body, ParseBlock("endfilter"));
  } else if (tag == "generation") {  // transformers' mark of what the assistant said
    stmt = NewStmt(StmtKind::kScope);
    Skip();
    JINJA_ASSIGN_OR_RETURN((*stmt)->body, ParseBlock("endgeneration"));
  } else if (tag == "print") {
    Skip();
    while (Current().kind != TokenKind::kBlockEnd) {
      StmtPtr output = NewStmt(StmtKind::kOutput);
      JINJA_ASSIGN_OR_RETURN(output->expr, ParseExpression());
      out->push_back(std::move(output));
      if (Current().kind != TokenKind::kBlockEnd) JINJA_RETURN_IF_ERROR(ExpectOp(","));
    }
    return absl::OkStatus();
  } else if ((tag == "break" || tag == "continue") && loop_depth_ > 0) {
    stmt = NewStmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue);
    Skip();
  } else if (tag == "break" || tag == "continue") {
    return SyntaxError(Current().line, absl::StrCat(tag, " outside of a loop"));
  } else {
    return SyntaxError(Current().line,
                       absl::StrCat("the tag \"", tag, "\" is not known here; chat templates may use for, if, ",
                                    "set, macro, call, with, filter, generation, print, break and continue"));
  }
  if (!stmt.ok()) return stmt.status();
  out->push_back(*std::move(stmt));
  return absl::OkStatus();
}

absl::StatusOr<Target> Parser::ParseOneTarget(bool with_attribute) {
  if (SkipOp("(")) {
    const Nesting nesting(this);
    JINJA_RETURN_IF_ERROR(Enter());
    JINJA_ASSIGN_OR_RETURN(Target inner, ParseTarget(with_attribute));
    JINJA_RETURN_IF_ERROR(ExpectOp(")"));
    return inner;
  }
  static constexpr const char* kConstants[] = {"true", "false", "none", "True", "False", "None"};
  for (const char* constant : kConstants) {
    if (AtName(constant)) return SyntaxError(Current().line, absl::StrCat("cannot assign to ", constant));
  }
  Target target;
  JINJA_ASSIGN_OR_RETURN(const std::string name, ExpectAnyName());
  target.name = Intern(name);
  if (with_attribute && SkipOp(".")) {
    JINJA_ASSIGN_OR_RETURN(target.attribute, ExpectAnyName());
  }
  return target;
}

absl::StatusOr<Target> Parser::ParseTarget(bool with_attribute) {
  Target tuple;
  tuple.is_tuple = true;
  bool has_comma = false;
  while (true) {
    if (has_comma && (AtName("in") || AtOp("=") || AtOp(")") || Current().kind == TokenKind::kBlockEnd)) break;
    JINJA_ASSIGN_OR_RETURN(Target item, ParseOneTarget(with_attribute));
    tuple.items.push_back(std::move(item));
    if (!SkipOp(",")) break;
    has_comma = true;
  }
  if (!has_comma) {
    Target only = std::move(tuple.items[0]);
    return only;
  }
  return tuple;
}

absl::StatusOr<Parser::StmtPtr> Parser::ParseFor() {
  StmtPtr stmt = NewStmt(StmtKind::kFor);
  Skip();
  JINJA_ASSIGN_OR_RETURN(stmt->target, ParseTarget(false));
  JINJA_RETURN_IF_ERROR(ExpectName("in"));
  JINJA_ASSIGN_OR_RETURN(stmt->expr, ParseTuple(false, false));
  if (SkipName("if")) {
    JINJA_ASSIGN_OR_RETURN(stmt->filter, ParseExpression());
  }
  if (AtName("recursive")) return SyntaxError(Current().line, "recursive loops are not supported; use a macro");
  SkipOp(":");
  JINJA_RETURN_IF_ERROR(ExpectBlockEnd());
  ++loop_depth_;
  absl::StatusOr<Body> body = ParseBody({"else", "endfor"});
  --loop_depth_;
  if (!body.ok()) return body.status();
  stmt->body = *std::move(body);
  if (SkipName("else")) {
    JINJA_ASSIGN_OR_RETURN(stmt->else_body, ParseBlock("endfor"));
  } else {
    Skip();
  }
  return stmt;
}

absl::StatusOr<Parser::StmtPtr> Parser::ParseIf() {
  StmtPtr stmt = NewStmt(StmtKind::kIf);
  Skip();
  while (true) {
    JINJA_ASSIGN_OR_RETURN(ExprPtr test, ParseTuple(false, false));
    SkipOp(":");
    JINJA_RETURN_IF_ERROR(ExpectBlockEnd());
    JINJA_ASSIGN_OR_RETURN(Body body, ParseBody({"elif", "else", "endif"}));
    stmt->branches.emplace_back(std::move(test), std::move(body));
    if (SkipName("elif")) continue;
    if (SkipName("else")) {
      JINJA_ASSIGN_OR_RETURN(stmt->else_body, ParseBlock("endif"));
    } else {
      Skip();
    }
    return stmt;
  }
}

absl::StatusOr<Parser::StmtPtr> Parser::ParseSet() {
  StmtPtr stmt = NewStmt(StmtKind::kSet);
  Skip();
  JINJA_ASSIGN_OR_RETURN(stmt->target, ParseTarget(true));
  if (SkipOp("=")) {
    JINJA_ASSIGN_OR_RETURN(stmt->expr, ParseTuple(true, false));
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  JINJA_ASSIGN_OR_RETURN(stmt->expr, ParseFilterChain(nullptr, false));
  JINJA_ASSIGN_OR_RETURN(stmt->body, ParseBlock("endset"));
  return stmt;
}

absl::Status Parser::ParseSignature(MacroDef* macro) {
  JINJA_RETURN_IF_ERROR(ExpectOp("("));
  while (!AtOp(")")) {
    if (!macro->params.empty()) JINJA_RETURN_IF_ERROR(ExpectOp(","));
    JINJA_ASSIGN_OR_RETURN(const std::string name, ExpectAnyName());
    macro->params.push_back(Intern(name));
    macro->param_names.push_back(name);
    if (SkipOp("=")) {
      JINJA_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      macro->defaults.push_back(std::move(value));
    } else if (!macro->defaults.empty()) {
      return SyntaxError(Current().line, "a parameter without a default follows one with a default");
    }
  }
  return ExpectOp(")");
}

absl::Status Parser::ParseMacroBody(MacroDef* macro, absl::string_view end) {
  macros_.push_back(macro);
  const int loops = loop_depth_;
  loop_depth_ = 0;
  absl::StatusOr<Body> body = ParseBlock(end);
  loop_depth_ = loops;
  macros_.pop_back();
  if (body.ok()) macro->body = *std::move(body);
  return body.status();
}

absl::StatusOr<Parser::StmtPtr> Parser::ParseMacro() {
  StmtPtr stmt = NewStmt(StmtKind::kMacro);
  Skip();
  stmt->macro = std::make_unique<MacroDef>();
  JINJA_ASSIGN_OR_RETURN(stmt->macro->name, ExpectAnyName());
  stmt->macro->name_id = Intern(stmt->macro->name);
  JINJA_RETURN_IF_ERROR(ParseSignature(stmt->macro.get()));
  JINJA_RETURN_IF_ERROR(ParseMacroBody(stmt->macro.get(), "endmacro"));
  return stmt;
}

absl::StatusOr<Parser::StmtPtr> Parser::ParseCall() {
  StmtPtr stmt = NewStmt(StmtKind::kCallBlock);
  Skip();
  stmt->macro = std::make_unique<MacroDef>();
  stmt->macro->name = "caller";
  if (AtOp("(")) JINJA_RETURN_IF_ERROR(ParseSignature(stmt->macro.get()));
  JINJA_ASSIGN_OR_RETURN(stmt->expr, ParseExpression());
  if (stmt->expr->kind != ExprKind::kCall) return SyntaxError(stmt->line, "a call block needs a call");
  JINJA_RETURN_IF_ERROR(ParseMacroBody(stmt->macro.get(), "endcall"));
  return stmt;
}

absl::StatusOr<Parser::StmtPtr> Parser::ParseWith() {
  StmtPtr stmt = NewStmt(StmtKind::kWith);
  Skip();
  while (Current().kind != TokenKind::kBlockEnd && !AtOp(":")) {
    if (!stmt->assignments.empty()) JINJA_RETURN_IF_ERROR(ExpectOp(","));
    JINJA_ASSIGN_OR_RETURN(Target target, ParseOneTarget(false));
    JINJA_RETURN_IF_ERROR(ExpectOp("="));
    JINJA_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    stmt->assignments.emplace_back(std::move(target), std::move(value));
  }
  JINJA_ASSIGN_OR_RETURN(stmt->body, ParseBlock("endwith"));
  return stmt;
}

}  // namespace baton::model::jinja
