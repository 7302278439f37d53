// The tensors, storages and evicted neighbourhoods of the simulator without addresses.
//
// Model. A *region* of a resident storage is what can be reached from it through missing storages,
// in one direction: the missing ones with the sum of their costs (interior) and the resident ones
// at the edge (frontier). Regions are kept up to date by increments: evicting a storage joins its
// region into those whose frontier it is on, recomputing one rebuilds those around it. A cost that
// changes in between (a new alias of a missing storage) or an operation that is asked for but has
// not run is seen when a region is rebuilt, not before. Components (union-find) likewise: a node of
// cost 0 from the day a storage is known, its cost *then* subtracted when it is computed.
//
// Why not Neighborhood: that one is exact or never less than exact, on a graph of storages. These
// increments are what the published numbers were made with, so they are kept as they are.
//
// Invariants: a storage has a node exactly while it is missing.
// Thread rule: one thread at a time. Complexity: O(size of the regions around) for an eviction.
// Source: the DTR paper, appendix C.
#ifndef COOP_BASELINES_DTR_NEIGHBORHOOD_H_
#define COOP_BASELINES_DTR_NEIGHBORHOOD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cc/baselines/dtr/simulator.h"

namespace coop {

struct FungibleTensor {
  int32_t storage = kNone;
  int32_t operation = kNone;
  bool defined = false;
};

struct FungibleStorage {
  int64_t bytes = 0;
  int64_t cost_ns = 0;  // of the operations of all its tensors
  int64_t last_access_ns = 0;
  int32_t references = 0;
  int32_t locks = 0;
  bool resident = false;
  bool pinned = false;
  bool in_pool = false;
  int32_t pool_before = kNone;
  int32_t pool_after = kNone;
  std::vector<int32_t> tensors;  // the first is the one that makes it
};

class FungibleGraph {
 public:
  FungibleGraph(const FungibleProgram& program, FungibleHeuristic heuristic);

  [[nodiscard]] std::span<const int32_t> ArgsOf(int32_t operation) const;
  [[nodiscard]] int32_t FirstResultOf(int32_t operation) const;
  [[nodiscard]] int32_t EndResultOf(int32_t operation) const;
  [[nodiscard]] FungibleTensor& tensor(int32_t id) { return tensors_[static_cast<size_t>(id)]; }
  [[nodiscard]] FungibleStorage& storage(int32_t id) { return storages_[static_cast<size_t>(id)]; }
  [[nodiscard]] const FungibleStorage& storage(int32_t id) const {
    return storages_[static_cast<size_t>(id)];
  }

  // The results of an operation that is asked for the first time: known, not computed.
  void AddResults(int32_t operation);
  // After a storage was evicted.
  void OnEvicted(int32_t storage);
  // After storages were computed, for the first time or again.
  void OnComputed(std::span<const int32_t> storages);

  // Costs of what is missing around a storage, as the heuristic counts it (0 for those that don't).
  [[nodiscard]] int64_t CostAround(int32_t storage);

 private:
  struct Region {
    std::vector<int32_t> interior;
    std::vector<int32_t> frontier;
    int64_t cost_ns = 0;
  };
  enum Direction { kDown = 0, kUp = 1 };
  struct Component {
    int32_t parent = kNone;
    int64_t cost_ns = 0;  // of a root
  };

  void AddEdge(int32_t from, int32_t to);
  // Several times where there are several edges.
  template <typename Visit>
  void ForEachMissingNeighbor(int32_t storage, Visit visit) const;
  [[nodiscard]] Region& region(int32_t storage, Direction direction) {
    return regions_[direction][static_cast<size_t>(storage)];
  }
  void Rebuild(int32_t storage, Direction direction);
  void Absorb(int32_t into, int32_t evicted, Direction direction);
  [[nodiscard]] int32_t Root(int32_t component);
  [[nodiscard]] int32_t NewComponent(int64_t cost_ns);
  void BeginVisits(size_t count);
  [[nodiscard]] bool FirstVisit(int32_t id);

  const FungibleProgram& program_;
  const bool has_regions_;
  const bool has_components_;
  const bool counts_down_;
  std::vector<FungibleTensor> tensors_;
  std::vector<FungibleStorage> storages_;
  std::vector<std::vector<int32_t>> next_[2];  // storages one edge away, by direction and storage
  std::vector<Region> regions_[2];             // likewise
  std::vector<Component> components_;
  std::vector<int32_t> component_of_;  // by storage; kNone while it is resident
  std::vector<uint32_t> seen_;
  uint32_t visit_ = 0;
  std::vector<int32_t> stack_;
};

}  // namespace coop

#endif  // COOP_BASELINES_DTR_NEIGHBORHOOD_H_
