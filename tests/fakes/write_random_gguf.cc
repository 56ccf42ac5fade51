// write_random_gguf SHAPE FORMAT PATH [SEED]: a model of a real shape with random weights, for benchmarks.
#include <cstdio>
#include <cstdlib>

#include "tests/fakes/random_gguf.h"

int main(int argc, char** argv) {
  using namespace baton;
  fakes::RandomGgufOptions options;
  if (argc >= 4) options.shape = fakes::FindModelShape(argv[1]);
  const auto dtype = argc >= 4 ? kernels::FromName(argv[2]) : std::nullopt;
  if (options.shape == nullptr || !dtype || argc > 5) {
    std::fprintf(stderr, "usage: write_random_gguf SHAPE FORMAT PATH [SEED]\nSHAPE is one of:");
    for (const fakes::ModelShape& shape : fakes::ModelShapes()) std::fprintf(stderr, " %s", shape.name);
    std::fprintf(stderr, "\nFORMAT is f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k or q6_k\n");
    return 2;
  }
  options.dtype = *dtype;
  if (argc == 5) options.seed = std::strtoull(argv[4], nullptr, 10);
  const absl::Status status = fakes::WriteRandomGguf(options, argv[3]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
