// Tokens to tree.
#ifndef BATON_MODEL_TEMPLATE_PARSER_H_
#define BATON_MODEL_TEMPLATE_PARSER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/template/ast.h"
#include "model/template/lexer.h"

namespace baton::model::jinja {

// InvalidArgument with the line for a syntax error or nesting deeper than max_depth.
absl::StatusOr<std::unique_ptr<const Template>> ParseTemplate(std::vector<Token> tokens, int max_depth);

// Statements are in parser.cc, expressions in parse_expression.cc.
class Parser {
 public:
  Parser(std::vector<Token> tokens, int max_depth, Template* out)
      : tokens_(std::move(tokens)), max_depth_(max_depth), out_(out) {}

  absl::Status Run();

 private:
  // A chain of filters, attributes and calls grows the tree without nesting in the source.
  static constexpr int kMaxHeight = 200;

  const Token& Current() const { return tokens_[at_]; }
  const Token& Next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void Skip() { at_ += at_ + 1 < tokens_.size() ? 1 : 0; }
  bool AtName(absl::string_view name) const { return Current().kind == TokenKind::kName && Current().text == name; }
  bool AtOp(absl::string_view op) const { return Current().kind == TokenKind::kOperator && Current().text == op; }
  bool SkipName(absl::string_view name);
  bool SkipOp(absl::string_view op);
  absl::Status ExpectOp(absl::string_view op);
  absl::Status ExpectName(absl::string_view name);
  absl::StatusOr<std::string> ExpectAnyName();
  absl::Status ExpectBlockEnd();
  absl::Status Unexpected(absl::string_view wanted) const;
  int Intern(const std::string& name);

  // Counts nesting; Enter fails when too deep, and each success is matched by a Leave.
  class Nesting;
  absl::Status Enter();

  absl::StatusOr<ExprPtr> Finish(ExprPtr expr) const;  // computes and checks the height
  ExprPtr New(ExprKind kind) const;

  absl::StatusOr<ExprPtr> ParseExpression();
  absl::StatusOr<ExprPtr> ParseOr();
  absl::StatusOr<ExprPtr> ParseAnd();
  absl::StatusOr<ExprPtr> ParseNot();
  absl::StatusOr<ExprPtr> ParseCompare();
  absl::StatusOr<ExprPtr> ParseSum();
  absl::StatusOr<ExprPtr> ParseConcat();
  absl::StatusOr<ExprPtr> ParseProduct();
  absl::StatusOr<ExprPtr> ParsePower();
  using Operand = absl::StatusOr<ExprPtr> (Parser::*)();
  absl::StatusOr<ExprPtr> ParseArithmetic(Operand operand, std::vector<std::pair<const char*, Op>> ops);
  absl::StatusOr<ExprPtr> ParseUnaryWithFilters() { return ParseUnary(true); }
  absl::StatusOr<ExprPtr> ParseUnary(bool with_filters);
  absl::StatusOr<ExprPtr> ParsePrimary();
  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseFilters(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseFilterChain(ExprPtr expr, bool first_without_pipe);
  absl::StatusOr<ExprPtr> ParseTest(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseSubscript(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseList();
  absl::StatusOr<ExprPtr> ParseDict();
  absl::Status ParseCallArgs(Expr* call);
  // Expressions with commas between make a tuple. `in_parentheses`: an empty one is a tuple too.
  absl::StatusOr<ExprPtr> ParseTuple(bool with_conditional, bool in_parentheses);

  absl::StatusOr<Target> ParseTarget(bool with_attribute);
  absl::StatusOr<Target> ParseOneTarget(bool with_attribute);
  // Up to a tag that starts with one of `ends`; leaves its name as the current token.
  absl::StatusOr<Body> ParseBody(const std::vector<absl::string_view>& ends);
  absl::StatusOr<Body> ParseBlock(absl::string_view end);  // the rest of the tag, the body, and the end tag's name
  absl::Status ParseStatement(Body* out);
  using StmtPtr = std::unique_ptr<Stmt>;
  absl::StatusOr<StmtPtr> ParseFor();
  absl::StatusOr<StmtPtr> ParseIf();
  absl::StatusOr<StmtPtr> ParseSet();
  absl::StatusOr<StmtPtr> ParseMacro();
  absl::StatusOr<StmtPtr> ParseCall();
  absl::StatusOr<StmtPtr> ParseWith();
  absl::Status ParseSignature(MacroDef* macro);
  absl::Status ParseMacroBody(MacroDef* macro, absl::string_view end);
  StmtPtr NewStmt(StmtKind kind) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int max_depth_;
  int loop_depth_ = 0;
  std::vector<MacroDef*> macros_;  // those being parsed, innermost last
  Template* out_;
  absl::flat_hash_map<std::string, int> names_;
};

class Parser::Nesting {
 public:
  explicit Nesting(Parser* parser) : parser_(parser) { ++parser_->depth_; }
  ~Nesting() { --parser_->depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Parser* parser_;
};

}  // namespace baton::model::jinja

#endif  // BATON_MODEL_TEMPLATE_PARSER_H_
