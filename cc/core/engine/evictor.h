// Policies: what to evict when no free block is large enough.
//
// Model: an evictor is asked for room; it evicts through the Residency until some free block is
// large enough, or reports that this is impossible having changed nothing. It sees every block, its
// score and whether it may be evicted now, so a policy that looks ahead fits the same interface.
// Invariants: MakeRoom succeeds exactly if a run of free and evictable neighbours is large enough.
// Thread rule: one thread at a time. Source: paper sections 3.3 (Coop) and 4.1 (DTR, DTE).
#ifndef COOP_CORE_ENGINE_EVICTOR_H_
#define COOP_CORE_ENGINE_EVICTOR_H_

#include <cstdint>
#include <memory>

#include "cc/core/base/types.h"
#include "cc/core/engine/residency.h"
#include "cc/core/pool/sliding_window.h"

namespace coop {

class Evictor {
 public:
  virtual ~Evictor() = default;

  // The free block that now has at least `bytes`; kNone, with nothing changed, if there can be
  // none. `side`: where in the pool the caller would rather have it. `bytes` is rounded.
  [[nodiscard]] virtual BlockId MakeRoom(Residency& residency, int64_t bytes, Side side) = 0;
  // Makes the (first) choice MakeRoom would make and evicts nothing. For benchmarks.
  [[nodiscard]] virtual bool Choose(const Residency& residency, int64_t bytes, Side side) = 0;
};

[[nodiscard]] std::unique_ptr<Evictor> MakeEvictor(const Policy& policy);

}  // namespace coop

#endif  // COOP_CORE_ENGINE_EVICTOR_H_
