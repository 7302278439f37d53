// Checks that name the invariant they guard, and the hash behind Fingerprint.
// Thread rule: pure functions.
#ifndef COOP_CORE_BASE_CHECK_H_
#define COOP_CORE_BASE_CHECK_H_

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace coop {

// An internal breakage. `invariant` says what should have held.
inline void Check(bool holds, const char* invariant) {
  if (!holds) [[unlikely]] {
    throw std::logic_error(std::string("coop: broken invariant: ") + invariant);
  }
}

// A mistake of the caller.
inline void Require(bool holds, const char* requirement) {
  if (!holds) [[unlikely]] {
    throw std::invalid_argument(std::string("coop: ") + requirement);
  }
}

[[nodiscard]] inline uint64_t HashValue(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdu;
  return hash ^ (hash >> 33);
}

template <typename... Values>
[[nodiscard]] uint64_t HashValues(uint64_t hash, Values... values) {
  ((hash = HashValue(hash, static_cast<uint64_t>(values))), ...);
  return hash;
}

[[nodiscard]] inline uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

}  // namespace coop

#endif  // COOP_CORE_BASE_CHECK_H_
