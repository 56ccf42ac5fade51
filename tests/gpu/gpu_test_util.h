// Runs something under several orders of the emulator's threads.
#ifndef BATON_TESTS_GPU_GPU_TEST_UTIL_H_
#define BATON_TESTS_GPU_GPU_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"

namespace baton::kernels::cuda {

// The reference: plain C++, f32.
inline std::unique_ptr<Backend> Reference() { return MakeBackend(Isa::kScalar, NumericsClass::kF32); }

// fn() -> vector, in each order; all must be `expected`, bit for bit.
template <typename T, typename Fn>
void ExpectSameBitsInAnyOrder(const std::vector<T>& expected, const Fn& fn) {
  using cuda_emulator::Order;
  for (const auto& [order, seed] : {std::pair{Order::kAscending, 0u}, {Order::kDescending, 0u}, {Order::kShuffled, 1u}}) {
    cuda_emulator::SetSchedule(order, seed);
    const std::vector<T> actual = fn();
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
          << "element " << i << " is " << +actual[i] << ", expected " << +expected[i] << ", order "
          << static_cast<int>(order);
    }
  }
  cuda_emulator::SetSchedule(Order::kAscending);
}

}  // namespace baton::kernels::cuda

#endif  // BATON_TESTS_GPU_GPU_TEST_UTIL_H_
