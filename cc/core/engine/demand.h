// Which storages a live value that is not in memory is waiting for.
//
// Model: a storage is *missing* while it is evicted and either held by the front end or demanded.
// It is *demanded* while it is an input of an operation that has a missing output: bringing that
// output back will read it. So a value that is demanded when its owner lets go of it is *kept*: to
// drop it would mean to compute it again for that. It may be evicted as anything else may, and then
// comes back only as part of a recomputation.
// Invariants (Validate): demands(s) counts the edges at s of operations with missing outputs;
// missing(s) is as said above; only resident storages without references are kept.
// Thread rule: one thread at a time. Complexity: O(edges of the storage) when something turns
// missing or stops being so, through evicted ancestors only where those turn with it.
// Source: ours. The paper leaves open what happens at the last use; DTR's authors evict there.
#ifndef COOP_CORE_ENGINE_DEMAND_H_
#define COOP_CORE_ENGINE_DEMAND_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/base/journal.h"
#include "cc/core/base/types.h"
#include "cc/core/engine/graph.h"

namespace coop {

class Demand {
 public:
  explicit Demand(Graph& graph) : graph_(graph) {}

  // By more than so many edges.
  [[nodiscard]] bool IsDemanded(StorageId storage, int32_t by_more_than = 0) const {
    return nodes_[storage].demands > by_more_than;
  }
  [[nodiscard]] bool IsKept(StorageId storage) const {
    return nodes_[storage].kept && nodes_[storage].demands > 0;
  }
  // After storages were added.
  void Grow() {
    while (nodes_.count() < graph_.storage_capacity()) nodes_.Append({});
  }
  // After the state or the references of a storage changed.
  void Update(StorageId storage) {
    const Node& node = nodes_[storage];
    if (node.overwritten || node.kept || node.missing != ShouldBeMissing(storage)) Turn(storage);
  }
  // After its id was given up.
  void Forget(StorageId storage) {
    if (nodes_[storage].kept) nodes_.Mutable(storage).kept = false;
  }
  // Its owner has let go of it, and it stays for now.
  void Keep(StorageId storage) { nodes_.Mutable(storage).kept = true; }
  // After an output took the memory of a storage in place. Its owner lets go of it next: until then
  // its reference does not count, or all that it was made from would seem demanded.
  void OnOverwritten(StorageId storage) {
    nodes_.Mutable(storage).overwritten = true;
    Update(storage);
  }

  void Record(bool recording) { nodes_.Record(recording); }
  [[nodiscard]] size_t Mark() const { return nodes_.Mark(); }
  void Rollback(size_t mark) { nodes_.Rollback(mark); }

  void Validate() const;
  [[nodiscard]] uint64_t Fingerprint(uint64_t hash) const;

 private:
  struct Node {
    int32_t demands = 0;
    bool missing = false;
    bool overwritten = false;
    bool kept = false;
  };

  [[nodiscard]] bool ShouldBeMissing(StorageId storage) const {
    const Storage& s = graph_.storage(storage);
    return s.state == StorageState::kEvicted &&
           ((s.refs > 0 && !nodes_[storage].overwritten) || nodes_[storage].demands > 0);
  }

  void Turn(StorageId storage);

  Graph& graph_;
  JournaledVector<Node> nodes_;    // parallel to the storages
  std::vector<StorageId> turned_;  // work list of Update
};

}  // namespace coop

#endif  // COOP_CORE_ENGINE_DEMAND_H_
