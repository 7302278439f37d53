#include "cc/core/engine/demand.h"

#include "cc/core/base/check.h"

namespace coop {

void Demand::Turn(StorageId storage) {
  turned_.assign(1, storage);
  while (!turned_.empty()) {
    const StorageId id = turned_.back();
    turned_.pop_back();
    const Storage& record = graph_.storage(id);
    if (nodes_[id].overwritten && record.refs == 0) nodes_.Mutable(id).overwritten = false;
    if (nodes_[id].kept && (record.state != StorageState::kResident || record.refs > 0)) {
      nodes_.Mutable(id).kept = false;
    }
    const bool missing = ShouldBeMissing(id);
    if (missing == nodes_[id].missing) continue;
    nodes_.Mutable(id).missing = missing;
    const OperationId producer = graph_.storage(id).producer;
    Operation& operation = graph_.MutableOperation(producer);
    operation.missing_outputs += missing ? 1 : -1;
    // Only the first that turns and the last that turns back change what is demanded.
    if (operation.missing_outputs != (missing ? 1 : 0)) continue;
    for (EdgeId e = operation.first_edge; e != kNone; e = graph_.edge(e).next_in_operation) {
      const StorageId input = graph_.edge(e).storage;
      nodes_.Mutable(input).demands += missing ? 1 : -1;
      turned_.push_back(input);
    }
  }
}

void Demand::Validate() const {
  Check(nodes_.count() == graph_.storage_capacity(), "every storage has a node");
  for (StorageId s = 0; s < nodes_.count(); ++s) {
    if (!graph_.IsStorage(s)) {
      Check(
          nodes_[s].demands == 0 && !nodes_[s].missing && !nodes_[s].kept && !nodes_[s].overwritten,
          "dead storages are not demanded");
      continue;
    }
    Check(nodes_[s].missing == ShouldBeMissing(s), "missing: evicted, and held or demanded");
    Check(!nodes_[s].kept ||
              (graph_.storage(s).state == StorageState::kResident && graph_.storage(s).refs == 0),
          "what is kept is resident, and nobody's");
    int32_t demands = 0;
    for (EdgeId e = graph_.storage(s).first_consumer; e != kNone;
         e = graph_.edge(e).next_in_storage) {
      if (graph_.operation(graph_.edge(e).operation).missing_outputs > 0) ++demands;
    }
    Check(demands == nodes_[s].demands, "demands counts edges of operations that must run again");
  }
  for (OperationId o = 0; o < graph_.operation_capacity(); ++o) {
    if (!graph_.IsOperation(o)) continue;
    int32_t missing = 0;
    for (OutputId i = graph_.operation(o).first_output; i != kNone; i = graph_.output(i).next) {
      const StorageId output = graph_.output(i).storage;
      if (output != kNone && nodes_[output].missing) ++missing;
    }
    Check(missing == graph_.operation(o).missing_outputs, "missing_outputs counts them");
  }
}

uint64_t Demand::Fingerprint(uint64_t hash) const {
  for (StorageId s = 0; s < nodes_.count(); ++s) {
    hash = HashValues(hash, nodes_[s].demands, nodes_[s].missing, nodes_[s].kept,
                      nodes_[s].overwritten);
  }
  return hash;
}

}  // namespace coop
