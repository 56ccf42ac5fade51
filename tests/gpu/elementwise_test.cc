// Activations, sums and embeddings on the emulator against the CPU's plain C++ kernels, bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

// Ordinary values, and those at which a formula could differ.
std::vector<float> Awkward(size_t n, uint32_t seed) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> values = RandomFloats(n, seed, 3.0f);
  const float special[] = {0.0f, -0.0f, 1e-40f, -1e-40f, 87.0f, -87.0f, 89.0f, -89.0f, 1e30f, -1e30f, kInf, -kInf};
  for (size_t i = 0; i < std::size(special) && i * 3 < n; ++i) values[i * 3] = special[i];
  return values;
}

TEST(GatedActivationTest, HasTheBitsOfTheCpu) {
  for (const Activation act : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const auto& [m, dim, stride] : {std::tuple{1, 1, 1}, {3, 37, 40}, {2, 300, 300}}) {
      const std::vector<float> gate = Awkward(m * stride, 1), up = RandomFloats(m * stride, 2);
      std::vector<float> expected = gate;
      Reference()->GatedActivation(act, expected.data(), stride, up.data(), stride, m, dim);
      for (float& value : expected) value = std::isnan(value) ? -123.0f : value;  // its bits say nothing
      ExpectSameBitsInAnyOrder(expected, [&] {
        std::vector<float> out = gate;
        GatedActivation(act, out.data(), stride, up.data(), stride, m, dim, nullptr);
        for (float& value : out) value = std::isnan(value) ? -123.0f : value;
        return out;
      });
    }
  }
}

TEST(AddTest, HasTheBitsOfTheCpu) {
  const std::vector<float> x = Awkward(3 * 301, 1), y = RandomFloats(3 * 290, 2);
  std::vector<float> expected = x;
  Reference()->Add(expected.data(), 301, y.data(), 290, 3, 270);
  ExpectSameBitsInAnyOrder(expected, [&] {
    std::vector<float> out = x;
    Add(out.data(), 301, y.data(), 290, 3, 270, nullptr);
    return out;
  });
}

// Neighbours, then pairs of neighbours, and so on; and where subtrees were summed before, the same.
TEST(SumTreeTest, IsABalancedTreeWhereverItIsCut) {
  for (const auto& [m, dim, stride] : {std::tuple{1, 1, 1}, {3, 37, 40}, {2, 300, 300}, {5, 257, 259}}) {
    for (int parts = 1; parts <= kMaxTreeParts; parts *= 2) {
      const std::vector<float> values = Awkward(static_cast<size_t>(parts) * m * dim, static_cast<uint32_t>(parts));
      const auto nan_apart = [](std::vector<float> out) {
        for (float& value : out) value = std::isnan(value) ? -123.0f : value;  // its bits say nothing
        return out;
      };
      std::vector<float> tree = values;
      for (int left = parts; left > 1; left /= 2) {
        for (int p = 0; p < left / 2; ++p) {
          for (int i = 0; i < m * dim; ++i) tree[p * m * dim + i] = tree[2 * p * m * dim + i] + tree[(2 * p + 1) * m * dim + i];
        }
      }
      std::vector<float> expected(m * stride, 7.0f);
      for (int r = 0; r < m; ++r) std::copy_n(tree.begin() + r * dim, dim, expected.begin() + r * stride);
      for (int cut = 1; cut <= parts; cut *= 2) {
        ExpectSameBitsInAnyOrder(nan_apart(expected), [&] {
          std::vector<float> sums(static_cast<size_t>(cut) * m * dim), out(m * stride, 7.0f);
          for (int c = 0; c < cut; ++c) {
            SumTree(values.data() + c * (parts / cut) * m * dim, parts / cut, m, dim, sums.data() + c * m * dim, dim, nullptr);
          }
          SumTree(sums.data(), cut, m, dim, out.data(), stride, nullptr);
          return nan_apart(out);
        });
      }
    }
  }
}

TEST(EmbedTest, GivesTheRowsOfTheFile) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    SCOPED_TRACE(testing::Message() << Name(dtype));
    const int64_t cols = BlockElements(dtype) == 1 ? 277 : 288;
    const TestTensor table = RandomTensor(dtype, 11, cols, 4);
    const std::vector<int32_t> ids = {10, 0, 3, 3, 7};
    const int64_t stride = cols + 5;
    std::vector<float> expected(ids.size() * stride, 7.0f);
    for (size_t r = 0; r < ids.size(); ++r) {
      const std::vector<float> row = table.Row(ids[r]);
      for (int64_t i = 0; i < cols; ++i) expected[r * stride + i] = 1.5f * row[i];
    }
    ExpectSameBitsInAnyOrder(expected, [&] {
      std::vector<float> out(expected.size(), 7.0f);
      Embed({.dtype = dtype, .table = table.bytes.data(), .cols = cols, .ids = ids.data(),
             .m = static_cast<int>(ids.size()), .scale = 1.5f, .out = out.data(), .out_stride = stride},
            nullptr);
      return out;
    });
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
