// Reads typed fields of a JSON object that a client sent; keeps the first error, and knows which fields nobody read.
#ifndef BATON_ROUTER_HTTP_JSON_FIELDS_H_
#define BATON_ROUTER_HTTP_JSON_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::router::http {

using Json = nlohmann::ordered_json;

// A field that is null counts as absent. Thread-compatible. The object outlives this.
class JsonFields {
 public:
  // `path` goes before names in errors: "messages[2]."
  explicit JsonFields(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  // nullptr when absent.
  const Json* Find(const std::string& name);
  // Absent, or of the wrong type (then status() says so): nullopt. A number with a fraction is no integer.
  std::optional<bool> Bool(const std::string& name);
  std::optional<int64_t> Int(const std::string& name);
  std::optional<int32_t> Int32(const std::string& name);
  std::optional<float> Float(const std::string& name);
  std::optional<std::string> String(const std::string& name);
  const Json* Object(const std::string& name);
  const Json* Array(const std::string& name);

  // As errors name it.
  std::string PathOf(const std::string& name) const { return path_ + name; }
  // INVALID_ARGUMENT of a field.
  void Fail(const std::string& name, absl::string_view description);
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  // Names of fields that were never asked for.
  std::vector<std::string> Unread() const;

 private:
  void WrongType(const std::string& name, absl::string_view wanted, const Json& got);

  const Json& object_;
  const std::string path_;
  std::set<std::string> read_;
  absl::Status status_;
};

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_JSON_FIELDS_H_
