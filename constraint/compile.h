// From the wire form of a constraint to what decides over tokens. This is the validator of both doors and of the workers.
//
// Bounded: sizes of texts, states and nesting (grammar.h); compiling takes some tens of milliseconds at most.
//
// Thread contract: plain functions; ConstraintCompiler is thread-safe.
#ifndef BATON_CONSTRAINT_COMPILE_H_
#define BATON_CONSTRAINT_COMPILE_H_

#include <list>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "constraint/grammar.h"
#include "constraint/token_constraint.h"
#include "constraint/vocabulary.h"
#include "proto/inference.pb.h"

namespace baton::constraint {

inline constexpr int kMaxChoiceBytes = 64 << 10;
inline constexpr size_t kMaxEnclosingBytes = 256;

// INVALID_ARGUMENT or RESOURCE_EXHAUSTED ... always told as INVALID_ARGUMENT "sampling.constraint.<kind>: <where>: <what>".
absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const v1::Constraint& constraint, const ByteSet& spellable);

// What a request's parameters say of a constraint, before any worker is asked: OK without one.
absl::Status CheckConstraint(const v1::SamplingParams& sampling);

// Compiles for one vocabulary and keeps the newest.
class ConstraintCompiler {
 public:
  static constexpr size_t kMaxKept = 32;

  // `has_eos`: the model has a token that ends an answer. Without one nothing can end where a constraint says so.
  ConstraintCompiler(std::shared_ptr<const Vocabulary> vocabulary, bool has_eos)
      : vocabulary_(std::move(vocabulary)), has_eos_(has_eos) {}

  // nullptr without a constraint. The object is for one engine's thread; requests of the same constraint share it.
  absl::StatusOr<std::shared_ptr<TokenConstraint>> ForRequest(const v1::SamplingParams& sampling);

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<TokenConstraint> constraint;
  };

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const bool has_eos_;
  Mutex mu_;
  std::list<Kept> kept_ ABSL_GUARDED_BY(mu_);  // newest use first
};

}  // namespace baton::constraint

#endif  // BATON_CONSTRAINT_COMPILE_H_
