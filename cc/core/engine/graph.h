// Storages, operations and the edges between them.
//
// Model: four tables of small records that name each other by index. Edges and outputs are pooled
// lists, so that no record owns memory and a record is restored by copying it back. Records of dead
// storages and operations are recycled: memory follows what is live, not what has ever been.
// Invariants: an edge is in the list of its operation (in input order) and in that of its storage;
// needed_by(s) is the number of edges at s; live_outputs(op) counts the outputs that are alive, not
// permanent and not outside; only live operations have edges.
// Thread rule: one thread at a time. Complexity: O(1) a record, O(edges) an operation.
// Source: paper section 3.1; collection of recipes: ours.
#ifndef COOP_CORE_ENGINE_GRAPH_H_
#define COOP_CORE_ENGINE_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/core/base/journal.h"
#include "cc/core/base/types.h"
#include "cc/core/engine/engine.h"

namespace coop {

using EdgeId = int32_t;
using OutputId = int32_t;
using ComponentId = int32_t;

// 64 bytes: the window search reads one of these for every block.
struct Storage {
  int64_t bytes = 0;             // as asked
  double cost_seconds = 0;       // of the producer
  double last_access = 0;        // on the logical clock
  OperationId producer = kNone;  // kNone: no recipe (any more). Of a dead id: the next dead one
  OutputId output = kNone;       // its record at the producer
  int32_t refs = 0;
  int32_t needed_by = 0;
  BlockId block = kNone;
  EdgeId first_consumer = kNone;
  ComponentId component = kNone;  // while evicted, with union-find
  int32_t evicted_neighbors = 0;  // counted once per edge
  // Exclusive or of their components, once per edge: where there is one, which one.
  ComponentId neighbor_components = 0;
  StorageState state = StorageState::kDead;
  bool outside = false;
  bool permanent = false;
  bool may_overwrite = true;  // by an in-place output

  [[nodiscard]] bool is_wanted() const { return refs > 0 || needed_by > 0; }
  // Evicting it loses nothing for good.
  [[nodiscard]] bool has_recipe() const { return producer != kNone && !permanent && !outside; }
};

struct Edge {
  OperationId operation = kNone;
  StorageId storage = kNone;
  EdgeId next_in_operation = kNone;  // of a recycled id: the next recycled one
  EdgeId next_in_storage = kNone;
  EdgeId previous_in_storage = kNone;
};

struct Output {
  int64_t bytes = 0;
  StorageId storage = kNone;  // kNone: dead
  OutputId next = kNone;      // of the same operation; of a recycled id: the next recycled one
  int32_t in_place_input = kNone;
  bool outside = false;
  SideHint side = SideHint::kByPolicy;
  int64_t place = kNone;
};

struct Operation {
  double cost_seconds = 0;
  int64_t sequence = 0;       // how many operations had run first when this one did
  EdgeId first_edge = kNone;  // of a recycled id: the next recycled one
  OutputId first_output = kNone;
  int32_t live_outputs = 0;
  int32_t missing_outputs = 0;  // kept by Demand
  bool recomputable = false;
  bool executed = false;
  bool alive = false;
};

class Graph {
 public:
  [[nodiscard]] const Storage& storage(StorageId id) const { return storages_[id]; }
  [[nodiscard]] const Operation& operation(OperationId id) const { return operations_[id]; }
  [[nodiscard]] const Edge& edge(EdgeId id) const { return edges_[id]; }
  [[nodiscard]] const Output& output(OutputId id) const { return outputs_[id]; }
  [[nodiscard]] Storage& MutableStorage(StorageId id) { return storages_.Mutable(id); }
  [[nodiscard]] Operation& MutableOperation(OperationId id) { return operations_.Mutable(id); }
  [[nodiscard]] Output& MutableOutput(OutputId id) { return outputs_.Mutable(id); }
  // While nothing is recorded.
  [[nodiscard]] Storage& StorageNow(StorageId id) { return storages_.Now(id); }
  [[nodiscard]] int32_t storage_capacity() const { return storages_.count(); }
  [[nodiscard]] int32_t operation_capacity() const { return operations_.count(); }
  [[nodiscard]] int32_t live_storages() const { return scalars_.live_storages; }
  [[nodiscard]] int32_t live_operations() const { return scalars_.live_operations; }
  [[nodiscard]] bool IsStorage(StorageId id) const {
    return id >= 0 && id < storages_.count() && storages_[id].state != StorageState::kDead;
  }
  [[nodiscard]] bool IsOperation(OperationId id) const {
    return id >= 0 && id < operations_.count() && operations_[id].alive;
  }

  StorageId AddStorage(const Storage& storage);
  void RecycleStorage(StorageId id);
  // Its outputs become unborn storages with one reference each.
  OperationId AddOperation(std::span<const StorageId> inputs, std::span<const OutputSpec> outputs,
                           double cost_seconds, bool recomputable);
  // While nothing is recorded: as AddOperation with one output, of an operation that has run. The
  // storage's producer and output are set; its other members are taken as they are.
  struct Added {
    OperationId operation = kNone;
    StorageId storage = kNone;
  };
  Added AddExecuted(std::span<const StorageId> inputs, const OutputSpec& output,
                    const Operation& operation, const Storage& storage);
  // While nothing is recorded, as AddStorage.
  StorageId AddStorageNow(const Storage& storage);
  // Takes out the first edge of an operation; returns the storage it read.
  StorageId PopEdge(OperationId id);
  // Gives up the records of an operation without edges. Its living outputs lose their recipe.
  void RecycleOperation(OperationId id);

  struct Scalars {
    StorageId dead_storage = kNone;
    OperationId dead_operation = kNone;
    EdgeId dead_edge = kNone;
    OutputId dead_output = kNone;
    int32_t live_storages = 0;
    int32_t live_operations = 0;
  };
  struct MarkPoint {
    size_t storages = 0, operations = 0, edges = 0, outputs = 0;
    Scalars scalars;
  };
  void Record(bool recording);
  [[nodiscard]] MarkPoint Mark() const;
  void Rollback(const MarkPoint& mark);

  // Edges, outputs and counts against each other; not the pool.
  void Validate() const;
  [[nodiscard]] uint64_t Fingerprint(uint64_t hash) const;

 private:
  void ValidateStorage(StorageId id) const;
  void ValidateOperation(OperationId id) const;

  JournaledVector<Storage> storages_;
  JournaledVector<Operation> operations_;
  JournaledVector<Edge> edges_;
  JournaledVector<Output> outputs_;
  Scalars scalars_;
};

}  // namespace coop

#endif  // COOP_CORE_ENGINE_GRAPH_H_
