// A pool of a few equal blocks, for tests of what goes and what stays.
#ifndef COOP_TESTS_CORE_SMALL_POOL_H_
#define COOP_TESTS_CORE_SMALL_POOL_H_

#include <cstdint>

#include "cc/core/base/types.h"

namespace coop::testing {

inline constexpr int64_t kBlock = 64;

inline EngineOptions LookaheadOptions(int64_t blocks, const Policy& policy = Policy::Lookahead()) {
  EngineOptions options;
  options.capacity_bytes = blocks * kBlock;
  options.alignment_bytes = kBlock;
  options.policy = policy;
  return options;
}

}  // namespace coop::testing

#endif  // COOP_TESTS_CORE_SMALL_POOL_H_
