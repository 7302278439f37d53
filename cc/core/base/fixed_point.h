// Fixed-point numbers for sums that are added to and subtracted from many times.
//
// A window slides by adding scores on its right and subtracting them on its left, and a component
// of evicted storages gains and loses costs. In floating point both would gather rounding errors
// and a sum that should be zero would not be. So sums are 128-bit integers with 64 fractional bits:
// exact under add and subtract, and equal on every machine.
//
// Range: values are clamped to [0, 2^46]; 2^17 of the greatest can be added up. Not-a-number counts
// as the greatest value, so that nothing whose score is broken looks cheap to evict.
// Source: ours; the paper (section 3.3) does not say how sums are kept.
#ifndef COOP_CORE_BASE_FIXED_POINT_H_
#define COOP_CORE_BASE_FIXED_POINT_H_

#include <bit>
#include <cstdint>

namespace coop {

__extension__ typedef unsigned __int128 Fixed;

inline constexpr int kFixedFractionBits = 64;
inline constexpr int kFixedMaxLog2 = 46;
inline constexpr Fixed kFixedMax = Fixed{1} << (kFixedFractionBits + kFixedMaxLog2);

// Nearest fixed-point value not above `value`.
[[nodiscard]] inline Fixed ToFixed(double value) {
  if (!(value < 0x1p46)) return kFixedMax;  // also not-a-number
  if (!(value > 0)) return 0;
  // By bits: the library's conversion to 128 bits is several times slower, and this is the
  // innermost step of the window search.
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52) - 1075 + kFixedFractionBits;
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  if (exponent >= 0) return Fixed{mantissa} << exponent;
  return exponent > -64 ? mantissa >> -exponent : 0;  // subnormals end here as well
}

// Monotone: a <= b implies ToDouble(a) <= ToDouble(b).
[[nodiscard]] inline double ToDouble(Fixed value) {
  return static_cast<double>(static_cast<uint64_t>(value >> 64)) +
         static_cast<double>(static_cast<uint64_t>(value)) * 0x1p-64;
}

}  // namespace coop

#endif  // COOP_CORE_BASE_FIXED_POINT_H_
