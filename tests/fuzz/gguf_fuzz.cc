// A model file from strangers: parsing, typed getters, configuration and tensor reads.
#include "model/config.h"
#include "model/gguf.h"
#include "tests/fakes/tiny_gguf.h"
#include "tests/fuzz/fuzz_target.h"

using baton::RandomAccessFile;
using baton::model::GgufFile;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file =
      GgufFile::Parse(RandomAccessFile::OfBytes(std::string(reinterpret_cast<const char*>(data), size), "fuzz.gguf"));
  if (!file.ok()) return 0;
  for (const auto& entry : file->metadata()) {
    (void)file->GetUint(entry.key);
    (void)file->GetInt(entry.key);
    (void)file->GetFloat(entry.key);
    (void)file->GetBool(entry.key);
    (void)file->GetString(entry.key);
    (void)file->GetStrings(entry.key);
    (void)file->GetInts(entry.key);
    (void)file->GetFloats(entry.key);
    (void)file->GetBools(entry.key);
  }
  for (const auto& tensor : file->tensors()) {
    std::vector<std::byte> bytes(tensor.num_bytes);  // bounded by the file's size
    if (!file->ReadTensor(tensor, 0, bytes).ok()) __builtin_trap();
  }
  if (const auto config = baton::model::ReadConfig(*file); config.ok()) (void)CanonicalText(*config);
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  using baton::fakes::TinyFamily;
  using baton::kernels::DType;
  std::vector<std::string> seeds;
  // Small, so that most mutations hit a count, a type or an offset.
  baton::fakes::GgufWriter writer;
  writer.AddUint32("general.alignment", 32);
  writer.AddBool("bool", true);
  writer.AddStrings("strings", {"a", "bc"});
  writer.AddFloats("floats", {1, 2});
  writer.AddInt32s("ints", {1, -1, 2});
  writer.AddTensor("f32", {4, 2}, 0, std::string(32, 'a'));
  writer.AddTensor("q4_0", {32, 2}, 2, std::string(36, 'b'));
  seeds.push_back(writer.Finish());
  for (TinyFamily family : {TinyFamily::kLlama, TinyFamily::kLlama3Rope, TinyFamily::kMistral, TinyFamily::kQwen2,
                            TinyFamily::kQwen3, TinyFamily::kGemma3}) {
    seeds.push_back(
        baton::fakes::TinyGguf({.family = family, .dtype = DType::kQ4_0, .num_layers = 1, .extra_vocab = 0}));
  }
  return seeds;
}
