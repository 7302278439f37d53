// The cost of the evicted neighbourhood of a storage.
//
// Model: two storages are neighbours when one is an input of the other's producer. The projected
// cost of a storage is its own cost plus that of the evicted storages around it, because bringing
// it back may bring them back.
//   exact       the distinct operations of evicted ancestors, and of evicted descendants, reachable
//               through evicted storages only.
//   ancestors   of those the ancestors alone: what bringing the storage back would run.
//   awaited     the ancestors, and the descendants whose operations have missing outputs.
//   union-find  components of evicted neighbours, ignoring direction. A storage that comes back
//               takes its cost out of its component but does not split it; when it is evicted again
//               it starts as a fresh node. Never less than the exact cost.
// Asleep it counts what is evicted and nothing else; waking, it looks at the whole graph once.
// Invariants, awake: evicted_neighbors(s) counts evicted neighbours, once per edge; the cost of a
// component's root is the sum of the costs of the storages in it that are evicted now (exactly:
// costs are fixed-point).
// Unions go by size without path compression, so that reading changes nothing. All nodes are let go
// when nothing is evicted, and rebuilt when they outnumber the evicted storages by far, so their
// number is bounded by what is live.
// Thread rule: one thread at a time.
// Complexity: O(edges of the storage * log nodes); exact: O(size of the neighbourhood).
// Ancestors and awaited look at kMostWalked operations at most, so that planning stays linear in
// the program: a cost that is not complete by then is a large one anyway.
// Source: paper section 3.3 (projected cost); e* and its union-find form: Dynamic Tensor
// Rematerialization, which the paper builds on.
#ifndef COOP_CORE_ENGINE_NEIGHBORHOOD_H_
#define COOP_CORE_ENGINE_NEIGHBORHOOD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/fixed_point.h"
#include "cc/core/base/journal.h"
#include "cc/core/base/types.h"
#include "cc/core/engine/graph.h"

namespace coop {

class Neighborhood {
 public:
  // `sleeps`: nothing is kept until Wake.
  Neighborhood(Graph& graph, NeighborhoodMode mode, bool sleeps)
      : graph_(graph), mode_(mode), awake_(!sleeps) {}

  // Before costs are asked for.
  void Wake() {
    if (!awake_) Begin();
  }

  // After the storage became evicted.
  void OnEvicted(StorageId storage);
  // Before an evicted storage comes back or dies.
  void OnNoLongerEvicted(StorageId storage);
  // After an operation got its edges, and before it loses them all.
  void OnEdgesAdded(OperationId operation) { TellAcross(operation, 1); }
  void OnEdgesGoing(OperationId operation) { TellAcross(operation, -1); }

  // Seconds to run the operations around the storage that are evicted; not its own.
  [[nodiscard]] double CostAround(StorageId storage) const { return CostAround(storage, mode_); }
  [[nodiscard]] double CostAround(StorageId storage, NeighborhoodMode mode) const {
    return ToDouble(mode == NeighborhoodMode::kUnionFind ? ComponentsCost(storage)
                                                         : WalkedCost(storage, mode));
  }
  [[nodiscard]] NeighborhoodMode mode() const { return mode_; }
  [[nodiscard]] int32_t evicted_count() const { return evicted_count_; }

  struct MarkPoint {
    size_t components = 0;
    int32_t evicted_count = 0;
    bool awake = true;
  };
  void Record(bool recording) { components_.Record(recording); }
  [[nodiscard]] MarkPoint Mark() const { return {components_.Mark(), evicted_count_, awake_}; }
  void Rollback(const MarkPoint& mark) {
    components_.Rollback(mark.components);
    evicted_count_ = mark.evicted_count;
    awake_ = mark.awake;
  }

  void Validate() const;
  [[nodiscard]] uint64_t Fingerprint(uint64_t hash) const;

 private:
  static constexpr int kMostWalked = 128;

  struct Component {
    Fixed cost = 0;  // of a root
    ComponentId parent = kNone;
    int32_t nodes = 1;
  };

  // Until `visit` returns false.
  template <typename Visit>
  void ForEachNeighbor(StorageId storage, Visit visit) const;
  // Adds (1) an evicted neighbour of a storage, or takes it away (-1).
  void Tell(StorageId storage, StorageId evicted, int32_t sign);
  void TellNeighbors(StorageId storage, int32_t sign);
  void TellAcross(OperationId operation, int32_t sign);
  [[nodiscard]] ComponentId Root(ComponentId component) const;
  void AddNode(StorageId storage);
  void Begin();
  void Rebuild();
  [[nodiscard]] Fixed ComponentsCost(StorageId storage) const;
  [[nodiscard]] Fixed WalkedCost(StorageId storage, NeighborhoodMode mode) const;

  Graph& graph_;
  NeighborhoodMode mode_;
  JournaledVector<Component> components_;
  int32_t evicted_count_ = 0;
  bool awake_;
  // Scratch of the const searches: what was seen in the search of that number.
  [[nodiscard]] bool FirstVisit(int32_t id) const;
  void BeginVisits(int32_t count) const;
  mutable std::vector<uint32_t> seen_;
  mutable uint32_t visit_ = 0;
  mutable std::vector<StorageId> stack_;
};

}  // namespace coop

#endif  // COOP_CORE_ENGINE_NEIGHBORHOOD_H_
