// The walk over a schema that json_schema.h starts.
//
// Thread contract: one thread's.
#ifndef BATON_CONSTRAINT_SCHEMA_COMPILER_H_
#define BATON_CONSTRAINT_SCHEMA_COMPILER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "constraint/grammar.h"
#include "constraint/json_grammar.h"
#include "constraint/key_patterns.h"
#include "constraint/schema_merge.h"

namespace baton::constraint {

// Each method that returns a state adds what it is named after behind `from` and returns where that ends. `path` is the JSON
// pointer of the schema, for errors, which the builder keeps.
class SchemaCompiler {
 public:
  // Neither is owned; both outlive this.
  SchemaCompiler(Builder* builder, const Json& root) : builder_(builder), root_(root), json_(builder) {}

  // The schema's rule.
  Rule Run();

 private:
  State Fail(const std::string& path, absl::string_view what);
  State FailKeyword(const std::string& path, absl::string_view keyword, absl::string_view what);
  State FailMerge(const std::string& path, const absl::Status& status);
  // The schema at a JSON pointer; nullptr: none.
  const Json* Resolve(const std::string& pointer) const;
  // The pointer that a $ref means; nullopt and an error when there is none.
  std::optional<std::string> Target(const Json& ref, const std::string& path);
  State CallTarget(State from, const std::string& pointer);
  // Counts what is copied to be put together. False: it became too much.
  bool Charge(const Json& copied, const std::string& path);
  // `schema` with $ref and allOf replaced by what they say; `into` holds both. False: failed.
  bool Flatten(const Json& schema, const std::string& path, int depth, Json* into);
  State Value(State from, const Json& schema, const std::string& path, int depth);
  // anyOf; the keywords beside it hold for each.
  State Some(State from, const Json& schema, const char* keyword, const std::string& path, int depth);
  State Literals(State from, const Json& schema, const std::vector<std::string>& keywords, const std::string& path);
  bool ReadTypes(const Json& type, const std::string& path, std::vector<std::string>* types);
  State Typed(State from, const Json& schema, const std::vector<std::string>& keywords, const std::string& path,
              int depth);
  State OfType(State from, const std::string& type, const Json& schema, const std::string& path, int depth);

  // schema_types.cc
  // A number of things; -1: absent; -2 and an error: no such number.
  int Count(const Json& schema, const char* keyword, const std::string& path);
  State String(State from, const Json& schema, const std::string& path);
  // The builder's error came from below; says where.
  State FailBehind(const std::string& path, absl::string_view keyword);
  State Number(State from, const Json& schema, bool integer, const std::string& path);
  State Array(State from, const Json& schema, const std::string& path, int depth);
  State Characters(State from, int min, int max);

  // schema_objects.cc
  struct Property {
    std::string name;
    const Json* schema;
    bool required;
    std::string path;
  };
  // What an object's members may be called, and what they hold.
  struct Members {
    std::vector<Property> properties;  // in the schema's order; required names that have no schema come last
    std::vector<std::string> names;    // theirs, and those that may not be written
    const Json* additional = nullptr;  // null: nothing is said
    std::vector<Property> of_patterns;
    KeyPatterns patterns;     // in the same order
    std::deque<Json> merged;  // schemas that the others point to
  };
  struct OtherMembers {
    State key_end;
    const Json* schema;
    std::string path;
  };
  // A schema of all that `own` (if any) and the patterns of the set say.
  const Json* Together(Members* members, KeyPatterns::Set matching, const Json* own, const std::string& path);
  bool ReadPatterns(const Json& schema, const std::string& path, Members* members);
  bool ReadProperties(const Json& schema, const std::string& path, Members* members);
  // Adds the names behind `from` that are none of the members', for each schema of theirs.
  std::vector<OtherMembers> OtherKeys(State from, const std::string& path, Members* members);
  State Object(State from, const Json& schema, const std::string& path, int depth);

  Builder* const builder_;
  const Json& root_;
  JsonGrammar json_;
  std::map<std::string, Rule> rules_;  // by JSON pointer
  std::vector<std::pair<std::string, Rule>> queue_;
  int64_t merge_work_ = 0;
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_SCHEMA_COMPILER_H_
