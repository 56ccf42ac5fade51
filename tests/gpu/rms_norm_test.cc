// The norm kernel on the emulator against the CPU's plain C++ kernels, bit for bit.
#include "kernels/cuda/kernels.h"
#include "tests/gpu/gpu_test_util.h"

namespace baton::kernels::cuda {
namespace {

struct Shape {
  int m, dim, padding;
};
constexpr Shape kShapes[] = {{1, 1, 0}, {3, 15, 1}, {2, 16, 0}, {5, 129, 3}, {7, 576, 0}, {2, 2049, 7}};

TEST(RmsNormTest, HasTheBitsOfTheCpu) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.dim);
    const int stride = shape.dim + shape.padding;
    const std::vector<float> x = RandomFloats(shape.m * stride, 1), weight = RandomFloats(shape.dim, 2);
    std::vector<float> expected(x.size(), 7.0f);
    Reference()->RmsNorm(x.data(), stride, shape.m, shape.dim, weight.data(), 1e-5f, expected.data(), stride);
    ExpectSameBitsInAnyOrder(expected, [&] {
      std::vector<float> in = x, out(x.size(), 7.0f);
      RmsNorm({.x = in.data(), .x_stride = stride, .m = shape.m, .dim = shape.dim, .weight = weight.data(),
               .epsilon = 1e-5f, .y = out.data(), .y_stride = stride},
              nullptr);
      EXPECT_EQ(in, x);
      return out;
    });
  }
}

TEST(RmsNormTest, InPlaceGivesTheSame) {
  const std::vector<float> x = RandomFloats(4 * 100, 1), weight = RandomFloats(100, 2);
  std::vector<float> expected(x.size());
  Reference()->RmsNorm(x.data(), 100, 4, 100, weight.data(), 1e-6f, expected.data(), 100);
  ExpectSameBitsInAnyOrder(expected, [&] {
    std::vector<float> y = x;
    RmsNorm({.x = y.data(), .x_stride = 100, .m = 4, .dim = 100, .weight = weight.data(), .epsilon = 1e-6f,
             .y = y.data(), .y_stride = 100},
            nullptr);
    return y;
  });
}

TEST(RmsNormTest, WithAResidualIsAnAddAndANorm) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.dim);
    const int stride = shape.dim + shape.padding;
    const std::vector<float> x = RandomFloats(shape.m * stride, 3), residual = RandomFloats(shape.m * stride, 4),
                             weight = RandomFloats(shape.dim, 2);
    std::vector<float> sum = x, expected(x.size(), 7.0f);
    const auto cpu = Reference();
    cpu->Add(sum.data(), stride, residual.data(), stride, shape.m, shape.dim);
    cpu->RmsNorm(sum.data(), stride, shape.m, shape.dim, weight.data(), 1e-5f, expected.data(), stride);
    expected.insert(expected.end(), sum.begin(), sum.end());
    ExpectSameBitsInAnyOrder(expected, [&] {
      std::vector<float> in = x, out(x.size(), 7.0f);
      RmsNorm({.x = in.data(), .x_stride = stride, .residual = residual.data(), .residual_stride = stride, .m = shape.m,
               .dim = shape.dim, .weight = weight.data(), .epsilon = 1e-5f, .y = out.data(), .y_stride = stride},
              nullptr);
      out.insert(out.end(), in.begin(), in.end());
      return out;
    });
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
