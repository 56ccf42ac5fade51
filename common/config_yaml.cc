#include "common/config_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Ends the parse from inside yaml-cpp, which reports its own errors by the same base class.
[[noreturn]] void Reject(const YAML::Mark& mark, const std::string& what) { throw YAML::ParserException(mark, what); }

class FlatMapHandler : public YAML::EventHandler {
 public:
  std::vector<YamlEntry> entries;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    // An empty document is an empty configuration; an empty value is a mistake.
    if (depth_ > 0) Reject(mark, has_key_ ? absl::StrCat("\"", key_, "\" has no value") : "a key is empty");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Reject(mark, "aliases are not supported"); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string& value) override {
    if (++nodes_ > kMaxYamlNodes) Reject(mark, absl::StrCat("more than ", kMaxYamlNodes, " entries"));
    if (depth_ == 0) Reject(mark, "expected `name: value` lines");
    if (!has_key_) {
      key_ = value;
      has_key_ = true;
      if (!seen_.insert(key_).second) Reject(mark, absl::StrCat("\"", key_, "\" is given twice"));
      return;
    }
    has_key_ = false;
    entries.push_back({key_, value, mark.line + 1});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    Reject(mark, "lists are not supported; every setting is one value");
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    if (++depth_ > 1) Reject(mark, "nested settings are not supported; every setting is one value");
  }
  void OnMapEnd() override { --depth_; }

 private:
  int depth_ = 0;
  int nodes_ = 0;
  bool has_key_ = false;
  std::string key_;
  std::set<std::string> seen_;
};

}  // namespace

absl::StatusOr<std::vector<YamlEntry>> ParseFlatYaml(absl::string_view text, absl::string_view file_name) {
  if (text.size() > kMaxYamlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, " has ", text.size(), " bytes; a settings file has at most ", kMaxYamlBytes));
  }
  // What an editor would not write: yaml-cpp would guess another encoding, or drop bytes.
  int line = 1;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '\n') ++line;
    const bool control = (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7f;
    if (control || byte >= 0xfe) {
      return absl::InvalidArgumentError(absl::StrCat(file_name, ":", line, ": not a text file in UTF-8 (",
                                                     control ? "control character" : "byte", " ",
                                                     static_cast<int>(byte), ")"));
    }
  }
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    FlatMapHandler handler;
    parser.HandleNextDocument(handler);
    return std::move(handler.entries);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ":", e.mark.line + 1, ": ", e.msg));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": cannot be read as YAML: ", e.what()));
  }
}

}  // namespace baton
