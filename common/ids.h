// Names that must not repeat.
#ifndef BATON_COMMON_IDS_H_
#define BATON_COMMON_IDS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// From the kernel's generator; thread-safe; never fails (aborts where the system has no randomness at all).
void RandomBytes(std::span<std::byte> out);
uint64_t RandomU64();

// 32 hex digits of 128 random bits: a new one at every process start. A worker is (name, incarnation).
std::string NewIncarnation();
// "req-" and 32 hex digits.
std::string NewRequestId();

std::string HexEncode(std::span<const std::byte> bytes);

}  // namespace baton

#endif  // BATON_COMMON_IDS_H_
