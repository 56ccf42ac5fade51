#include "model/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fakes/tiny_gguf.h"

namespace baton::model {
namespace {

using fakes::GgufText;
using fakes::GgufU32;
using fakes::GgufU64;
using fakes::GgufWriter;

absl::StatusOr<GgufFile> ParseBytes(std::string bytes) {
  return GgufFile::Parse(RandomAccessFile::OfBytes(std::move(bytes), "test.gguf"));
}

// The file is refused with this code, and the message names the file and holds `text`.
void ExpectRefused(std::string bytes, absl::StatusCode code, const std::string& text) {
  const auto file = ParseBytes(std::move(bytes));
  ASSERT_FALSE(file.ok()) << "accepted, wanted: " << text;
  EXPECT_EQ(file.status().code(), code) << file.status();
  EXPECT_TRUE(absl::StrContains(file.status().message(), text)) << file.status() << "\nwanted: " << text;
  EXPECT_TRUE(absl::StrContains(file.status().message(), "test.gguf")) << file.status();
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr uint32_t kF32 = 0, kQ4_0 = 2;
constexpr uint32_t kArray = 9, kString = 8, kUint32 = 4, kUint64 = 10, kBool = 7;

TEST(GgufTest, ReadsEveryMetadataType) {
  GgufWriter writer;
  writer.AddRaw("u8", 0, "\xff");
  writer.AddRaw("i8", 1, "\xff");
  writer.AddRaw("u16", 2, "\xfe\xff");
  writer.AddRaw("i16", 3, "\xfe\xff");
  writer.AddUint32("u32", 4000000000u);
  writer.AddRaw("i32", 5, GgufU32(static_cast<uint32_t>(-7)));
  writer.AddFloat("f32", 0.5f);
  writer.AddBool("bool", true);
  writer.AddString("string", "text");
  writer.AddUint64("u64", std::numeric_limits<uint64_t>::max());
  writer.AddRaw("i64", 11, GgufU64(static_cast<uint64_t>(-9)));
  writer.AddRaw("f64", 12, std::string("\0\0\0\0\0\0\xf8\x3f", 8));
  writer.AddStrings("strings", {"a", "", "ccc"});
  writer.AddInt32s("ints", {-1, 2});
  writer.AddFloats("floats", {1, -2.5});
  writer.AddRaw("bools", kArray, GgufU32(kBool) + GgufU64(2) + std::string("\1\0", 2));
  const auto file = ParseBytes(writer.Finish());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->GetUint("u8"), 255u);
  EXPECT_EQ(*file->GetInt("i8"), -1);
  EXPECT_EQ(*file->GetUint("u16"), 65534u);
  EXPECT_EQ(*file->GetInt("i16"), -2);
  EXPECT_EQ(*file->GetUint("u32"), 4000000000u);
  EXPECT_EQ(*file->GetInt("i32"), -7);
  EXPECT_EQ(*file->GetFloat("f32"), 0.5);
  EXPECT_TRUE(*file->GetBool("bool"));
  EXPECT_EQ(*file->GetString("string"), "text");
  EXPECT_EQ(*file->GetUint("u64"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(*file->GetInt("i64"), -9);
  EXPECT_EQ(*file->GetFloat("f64"), 1.5);
  const auto strings = *file->GetStrings("strings");
  ASSERT_EQ(strings.size(), 3u);
  EXPECT_EQ(strings[0], "a");
  EXPECT_EQ(strings[1], "");
  EXPECT_EQ(strings[2], "ccc");
  EXPECT_EQ(*file->GetInts("ints"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(*file->GetFloats("floats"), (std::vector<float>{1, -2.5}));
  EXPECT_EQ(*file->GetBools("bools"), (std::vector<bool>{true, false}));
}

TEST(GgufTest, GettersNameKeyAndTypes) {
  GgufWriter writer;
  writer.AddString("name", "x");
  writer.AddRaw("negative", 11, GgufU64(static_cast<uint64_t>(-1)));
  writer.AddUint64("huge", ~uint64_t{0});
  const auto file = ParseBytes(writer.Finish());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->GetUint("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(file->GetUint("absent").status().message(), "absent"));
  for (const absl::Status& status :
       {file->GetUint("name").status(), file->GetUint("negative").status(), file->GetInt("huge").status(),
        file->GetFloat("huge").status(), file->GetBool("name").status(), file->GetString("huge").status(),
        file->GetStrings("name").status(), file->GetInts("name").status(), file->GetFloats("name").status()}) {
    EXPECT_EQ(status.code(), kInvalid) << status;
  }
  EXPECT_TRUE(absl::StrContains(file->GetUint("name").status().message(), "string"));
}

TEST(GgufTest, ReadsTensorsOfBothVersions) {
  for (uint32_t version : {2u, 3u}) {
    GgufWriter writer(version);
    writer.AddUint32("general.alignment", 64);
    writer.set_alignment(64);
    writer.AddTensor("a", {4, 2}, kF32, std::string(32, 'a'));
    writer.AddTensor("b", {32}, kQ4_0, std::string(18, 'b'));
    const auto file = ParseBytes(writer.Finish());
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->alignment(), 64u);
    const GgufTensor* b = file->FindTensor("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->num_bytes, 18u);
    EXPECT_EQ(b->file_offset % 64, 0u);
    std::string bytes(5, '\0');
    ASSERT_TRUE(file->ReadTensor(*b, 13, std::as_writable_bytes(std::span(bytes))).ok());
    EXPECT_EQ(bytes, "bbbbb");
    EXPECT_EQ(file->ReadTensor(*b, 14, std::as_writable_bytes(std::span(bytes))).code(), kInvalid);
    EXPECT_EQ(file->FindTensor("c"), nullptr);
  }
}

TEST(GgufTest, ReadsHeadersLargerThanOneRead) {
  GgufWriter writer;
  writer.AddString("big", std::string(3 << 20, 'x'));
  writer.AddStrings("many", std::vector<std::string>(300000, "token"));
  writer.AddString("last", "end");
  writer.AddTensor("t", {2}, kF32, std::string(8, 't'));
  const auto file = ParseBytes(writer.Finish());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->GetString("last"), "end");
  EXPECT_EQ(file->GetStrings("many")->size(), 300000u);
}

TEST(GgufTest, ViewsSurviveAMove) {
  GgufWriter writer;
  writer.AddString("k", "short");
  auto parsed = ParseBytes(writer.Finish());
  ASSERT_TRUE(parsed.ok());
  const absl::string_view before = *parsed->GetString("k");
  const GgufFile moved = *std::move(parsed);
  EXPECT_EQ(before, "short");
  EXPECT_EQ(moved.GetString("k")->data(), before.data());
}

TEST(GgufTest, RefusesOtherFilesAndVersions) {
  ExpectRefused("", kInvalid, "magic");
  ExpectRefused("PK\x03\x04 and so on", kInvalid, "not a GGUF file");
  ExpectRefused(GgufWriter(1).Finish(), kUnimplemented, "version 1");
  ExpectRefused(GgufWriter(4).Finish(), kUnimplemented, "version 4");
  ExpectRefused(GgufWriter(0x03000000).Finish(), kUnimplemented, "big-endian");
}

// CVE-2024-21802 and its kin: counts that are multiplied or allocated before they are checked.
TEST(GgufTest, RefusesCountsThatCannotFit) {
  const GgufWriter writer;
  for (uint64_t n : {uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
    ExpectRefused(writer.Finish(n, 0), kInvalid, "tensor count");
    ExpectRefused(writer.Finish(0, n), kInvalid, "metadata count");
  }
}

TEST(GgufTest, RefusesStringLengthsPastTheFile) {
  for (uint64_t n : {uint64_t{100}, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    GgufWriter value;
    value.AddRaw("k", kString, GgufU64(n) + "short");
    ExpectRefused(value.Finish(), kInvalid, "k");
    ExpectRefused(absl::StrCat("GGUF", GgufU32(3), GgufU64(0), GgufU64(1), GgufU64(n), "key and some more bytes"),
                  kInvalid, "metadata key");
  }
}

TEST(GgufTest, RefusesArraysThatCannotFit) {
  for (uint64_t n : {uint64_t{100}, uint64_t{1} << 61, uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}}) {
    for (uint32_t type : {kUint32, kUint64, kString}) {
      GgufWriter writer;
      writer.AddRaw("k", kArray, GgufU32(type) + GgufU64(n) + GgufU64(0));
      ExpectRefused(writer.Finish(), kInvalid, "k");
    }
  }
}

TEST(GgufTest, RefusesUnknownAndNestedTypes) {
  GgufWriter nested;
  nested.AddRaw("k", kArray, GgufU32(kArray) + GgufU64(1) + GgufU32(kUint32) + GgufU64(0));
  ExpectRefused(nested.Finish(), kInvalid, "holds arrays");
  GgufWriter unknown;
  unknown.AddRaw("k", 13, GgufU64(0));
  ExpectRefused(unknown.Finish(), kInvalid, "value type 13");
  GgufWriter element;
  element.AddRaw("k", kArray, GgufU32(99) + GgufU64(0));
  ExpectRefused(element.Finish(), kInvalid, "element type 99");
  GgufWriter boolean;
  boolean.AddRaw("k", kBool, "\2");
  ExpectRefused(boolean.Finish(), kInvalid, "not 0 or 1");
}

TEST(GgufTest, RefusesDuplicates) {
  GgufWriter keys;
  keys.AddUint32("k", 1);
  keys.AddUint32("k", 2);
  ExpectRefused(keys.Finish(), kInvalid, "occurs twice");
  GgufWriter tensors;
  tensors.AddTensor("t", {8}, kF32, std::string(32, 't'));
  tensors.AddTensor("t", {8}, kF32, std::string(32, 't'));
  ExpectRefused(tensors.Finish(), kInvalid, "occurs twice");
}

TEST(GgufTest, RefusesEmptyNames) {
  GgufWriter key;
  key.AddUint32("", 1);
  ExpectRefused(key.Finish(), kInvalid, "empty metadata key");
  GgufWriter tensor;
  tensor.AddTensor("", {8}, kF32, std::string(32, 't'));
  ExpectRefused(tensor.Finish(), kInvalid, "empty tensor name");
}

// An alignment of 2^31 made a reader seek past its buffer; 0 divides; others break the rounding.
TEST(GgufTest, RefusesBadAlignments) {
  for (uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 21, 1u << 31, ~0u}) {
    GgufWriter writer;
    writer.AddUint32("general.alignment", alignment);
    writer.AddTensor("t", {8}, kF32, std::string(32, 't'));
    ExpectRefused(writer.Finish(), kInvalid, "general.alignment");
  }
  GgufWriter text;
  text.AddString("general.alignment", "32");
  ExpectRefused(text.Finish(), kInvalid, "general.alignment");
}

// CVE-2025-53630, CVE-2026-27940: products of dimensions that wrap; zero dimensions that divide.
TEST(GgufTest, RefusesBadDimensions) {
  const uint64_t big = uint64_t{1} << 32;
  const std::vector<std::vector<uint64_t>> bad = {{},
                                                  {0},
                                                  {8, 0},
                                                  {1, 1, 1, 1, 1},
                                                  {uint64_t{1} << 63},
                                                  {~uint64_t{0}},
                                                  {big, big},
                                                  {big, big, big, big},
                                                  {uint64_t{1} << 61},
                                                  {6, 0x2aaaaaaaaaaaaaab},
                                                  {uint64_t{1} << 59},
                                                  {1, uint64_t{1} << 58}};
  for (const auto& dims : bad) {
    GgufWriter writer;
    writer.AddTensorInfo("t", dims, kF32, 0);
    ExpectRefused(writer.Finish() + std::string(256, '\0'), kInvalid, "tensor t");
  }
}

TEST(GgufTest, RefusesRowsThatAreNoMultipleOfTheBlock) {
  GgufWriter writer;
  writer.AddTensor("t", {33, 32}, kQ4_0, std::string(1024, 't'));
  ExpectRefused(writer.Finish(), kInvalid, "block of 32");
}

TEST(GgufTest, RefusesUnknownTensorTypes) {
  GgufWriter writer;
  writer.AddTensor("t", {256}, 23, std::string(1024, 't'));
  ExpectRefused(writer.Finish(), kUnimplemented, "ggml type 23");
}

// CVE-2026-7482: data outside the file was read from the heap.
TEST(GgufTest, RefusesDataOutsideTheFile) {
  for (uint64_t offset : {uint64_t{32}, uint64_t{1} << 40, uint64_t{1} << 63, ~uint64_t{0} - 31}) {
    GgufWriter writer;
    writer.AddTensorInfo("t", {8}, kF32, offset);
    ExpectRefused(writer.Finish() + std::string(32, '\0'), kInvalid, "tensor t");
  }
  GgufWriter misaligned;
  misaligned.AddTensorInfo("t", {8}, kF32, 8);
  ExpectRefused(misaligned.Finish() + std::string(64, '\0'), kInvalid, "multiple of 32");
  GgufWriter overlap;
  overlap.AddTensorInfo("t", {16}, kF32, 0);
  overlap.AddTensorInfo("u", {8}, kF32, 32);
  ExpectRefused(overlap.Finish() + std::string(64, '\0'), kInvalid, "overlap");
}

// Every prefix of a model is refused, and where the header ends does not matter.
TEST(GgufTest, EveryTruncationIsRefused) {
  const std::string bytes = fakes::TinyGguf({.extra_vocab = 3});
  const auto whole = ParseBytes(bytes);
  ASSERT_TRUE(whole.ok()) << whole.status();
  uint64_t header = bytes.size();
  for (const GgufTensor& tensor : whole->tensors()) header = std::min(header, tensor.file_offset);
  const GgufTensor& last = whole->tensors().back();
  const uint64_t end = last.file_offset + last.num_bytes;  // padding may follow
  std::vector<uint64_t> sizes;
  for (uint64_t n = 0; n <= header; ++n) sizes.push_back(n);
  for (uint64_t n = header; n < end; n += 4096) sizes.push_back(n);
  sizes.push_back(end - 1);
  for (uint64_t n : sizes) {
    const auto file = ParseBytes(bytes.substr(0, n));
    ASSERT_FALSE(file.ok()) << n;
    ASSERT_EQ(file.status().code(), kInvalid) << n << file.status();
    ASSERT_TRUE(absl::StrContains(file.status().message(), "at offset ")) << n << file.status();
  }
  EXPECT_TRUE(ParseBytes(bytes.substr(0, end)).ok());
}

// Every byte of the header changed in a few ways: refused or read, never a crash (run under a sanitizer).
TEST(GgufTest, ChangedHeaderBytesNeverCrash) {
  const std::string bytes = fakes::TinyGguf({.num_layers = 1, .extra_vocab = 1});
  const uint64_t header = ParseBytes(bytes)->tensors().front().file_offset;
  for (uint64_t i = 0; i < header; ++i) {
    for (const int value : {0x00, 0x7f, 0x80, 0xff}) {
      std::string changed = bytes.substr(0, header + 4096);
      changed[i] = static_cast<char>(value);
      (void)ParseBytes(std::move(changed));
    }
  }
}

class GgufFileTest : public testing::Test {
 protected:
  GgufFileTest() : path_(absl::StrCat(testing::TempDir(), "/gguf_test.", getpid())) {}
  ~GgufFileTest() override { std::remove(path_.c_str()); }
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  const std::string path_;
};

TEST_F(GgufFileTest, OpenNamesWhatIsWrongWithThePath) {
  EXPECT_EQ(GgufFile::Open(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(testing::TempDir()).status().code(), kInvalid);
  EXPECT_EQ(GgufFile::Open("/dev/zero").status().code(), kInvalid);
}

// A file that shrinks after it was opened is an error of the read, not a signal.
TEST_F(GgufFileTest, TruncatedWhileOpen) {
  Write(fakes::TinyGguf({}));
  const auto file = GgufFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->CheckUnchanged().ok());
  const GgufTensor& last = file->tensors().back();
  ASSERT_EQ(truncate(path_.c_str(), static_cast<off_t>(last.file_offset)), 0);
  std::vector<std::byte> bytes(last.num_bytes);
  const absl::Status read = file->ReadTensor(last, 0, bytes);
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss) << read;
  EXPECT_TRUE(absl::StrContains(read.message(), absl::StrCat("offset ", last.file_offset))) << read;
  EXPECT_EQ(file->CheckUnchanged().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace baton::model
