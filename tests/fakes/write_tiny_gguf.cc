// write_tiny_gguf DIR: writes each model that has a tiny golden to DIR/NAME.gguf.
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/model/tiny_reference_models.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_tiny_gguf DIR\n");
    return 2;
  }
  for (const auto& model : baton::fakes::TinyReferenceModels()) {
    const absl::Status s = WriteTinyGguf(model.options, absl::StrCat(argv[1], "/", model.name, ".gguf"));
    if (!s.ok()) {
      std::fprintf(stderr, "%s\n", s.ToString().c_str());
      return 1;
    }
    std::printf("%s\n", model.name);
  }
  return 0;
}
