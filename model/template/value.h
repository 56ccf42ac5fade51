// The values of the template language: Python's, as far as templates meet them. All but namespaces are immutable, so
// copies share. Containers know their nesting depth, which is bounded, so nothing that walks a value can overflow the
// stack; whatever takes time or memory in proportion to a value is charged to a Budget.
#ifndef BATON_MODEL_TEMPLATE_VALUE_H_
#define BATON_MODEL_TEMPLATE_VALUE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::model::jinja {

using Int = __int128;

// What one rendering may still use. Not thread safe.
class Budget {
 public:
  Budget(int64_t steps, size_t alloc_bytes, size_t max_string_bytes, int max_depth)
      : steps_(steps),
        max_steps_(steps),
        alloc_bytes_(alloc_bytes),
        max_alloc_bytes_(alloc_bytes),
        max_string_bytes_(max_string_bytes),
        max_depth_(max_depth) {}

  // ResourceExhausted when used up.
  absl::Status Step(int64_t count = 1);
  absl::Status StepBytes(size_t bytes) { return Step(1 + static_cast<int64_t>(bytes / 64)); }
  absl::Status Alloc(size_t bytes);
  // For a string about to be made of `bytes`.
  absl::Status CheckString(size_t bytes);

  size_t max_string_bytes() const { return max_string_bytes_; }
  int max_depth() const { return max_depth_; }

 private:
  int64_t steps_;
  int64_t max_steps_;
  size_t alloc_bytes_;
  size_t max_alloc_bytes_;
  size_t max_string_bytes_;
  int max_depth_;
};

class Value;
struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

struct Undefined {
  std::shared_ptr<const std::string> what;  // for messages: "'x' is undefined"
};
struct None {};

class Value {
 public:
  Value() : v_(Undefined{}) {}
  explicit Value(None) : v_(None{}) {}
  explicit Value(bool b) : v_(b) {}
  explicit Value(Int i) : v_(i) {}
  explicit Value(double d) : v_(d) {}
  explicit Value(std::string s) : v_(std::make_shared<const std::string>(std::move(s))) {}
  explicit Value(std::shared_ptr<const List> list) : v_(std::move(list)) {}
  explicit Value(std::shared_ptr<const Dict> dict) : v_(std::move(dict)) {}
  explicit Value(Namespace* ns) : v_(ns) {}  // owned by the interpreter, as the next one
  explicit Value(Loop* loop) : v_(loop) {}
  explicit Value(std::shared_ptr<const Callable> callable) : v_(std::move(callable)) {}
  static Value UndefinedNamed(std::string what);

  bool is_undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool is_none() const { return std::holds_alternative<None>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const { return std::holds_alternative<Int>(v_); }  // not bool
  bool is_float() const { return std::holds_alternative<double>(v_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const std::string>>(v_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(v_); }  // or tuple
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(v_); }
  bool is_namespace() const { return std::holds_alternative<Namespace*>(v_); }
  bool is_loop() const { return std::holds_alternative<Loop*>(v_); }
  bool is_callable() const { return std::holds_alternative<std::shared_ptr<const Callable>>(v_); }

  bool as_bool() const { return std::get<bool>(v_); }
  double as_float() const { return std::get<double>(v_); }
  const std::string& as_string() const { return *std::get<std::shared_ptr<const std::string>>(v_); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(v_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(v_); }
  Namespace* as_namespace() const { return std::get<Namespace*>(v_); }
  Loop* as_loop() const { return std::get<Loop*>(v_); }
  const Callable& as_callable() const { return *std::get<std::shared_ptr<const Callable>>(v_); }
  Int as_int() const { return is_bool() ? as_bool() : std::get<Int>(v_); }  // is_int() or is_bool()
  double as_number() const { return is_float() ? as_float() : static_cast<double>(as_int()); }

  const char* type_name() const;  // Python's
  std::string undefined_what() const;
  int depth() const;  // nesting of containers below and including this one; 0 for a scalar

 private:
  std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const std::string>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, Namespace*, Loop*, std::shared_ptr<const Callable>>
      v_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
};

// Insertion order, as Python's. Keys are scalars.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  absl::flat_hash_map<std::string, size_t> strings;  // index of string keys
  int depth = 1;
};

struct Namespace {
  absl::flat_hash_map<std::string, Value> attributes;
};

// State of one execution of a for statement.
struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
  std::vector<Value> last_changed;
  bool has_changed = false;
};

struct Scope;
struct MacroDef;

struct Callable {
  enum class Kind { kMacro, kMethod, kGlobal };
  Kind kind;
  std::string name;                 // of the method or global
  Value self;                       // kMethod
  const MacroDef* macro = nullptr;  // kMacro
  Scope* scope = nullptr;           // kMacro: where it was defined
};

absl::Status TypeError(absl::string_view message);
absl::Status UndefinedError(const Value& value);

absl::StatusOr<Value> MakeString(Budget& budget, std::string text);
absl::StatusOr<Value> MakeList(Budget& budget, std::vector<Value> items, bool is_tuple = false);
absl::StatusOr<Value> MakeDict(Budget& budget,
                               std::vector<std::pair<Value, Value>> items);  // the later of equal keys wins

bool Truth(const Value& value);
absl::StatusOr<bool> Equal(Budget& budget, const Value& a, const Value& b);
absl::StatusOr<bool> Less(Budget& budget, const Value& a, const Value& b);
absl::StatusOr<bool> Contains(Budget& budget, const Value& container, const Value& item);
absl::StatusOr<size_t> Length(Budget& budget, const Value& value);
// The elements that a for loop over `value` sees.
absl::StatusOr<std::vector<Value>> Elements(Budget& budget, const Value& value);
// Null if absent.
absl::StatusOr<const Value*> FindKey(Budget& budget, const Dict& dict, const Value& key);

}  // namespace baton::model::jinja

#endif  // BATON_MODEL_TEMPLATE_VALUE_H_
