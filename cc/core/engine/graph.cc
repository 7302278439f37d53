#include "cc/core/engine/graph.h"

#include "cc/core/base/check.h"

namespace coop {

static_assert(sizeof(Storage) == 64);

StorageId Graph::AddStorage(const Storage& storage) {
  ++scalars_.live_storages;
  const StorageId id = scalars_.dead_storage;
  if (id == kNone) return storages_.Append(storage);
  scalars_.dead_storage = storages_[id].producer;
  storages_.Mutable(id) = storage;
  return id;
}

void Graph::RecycleStorage(StorageId id) {
  Storage& storage = storages_.Mutable(id);
  storage = Storage{};
  storage.producer = scalars_.dead_storage;
  scalars_.dead_storage = id;
  --scalars_.live_storages;
}

OperationId Graph::AddOperation(std::span<const StorageId> inputs,
                                std::span<const OutputSpec> outputs, double cost_seconds,
                                bool recomputable) {
  ++scalars_.live_operations;
  OperationId id = scalars_.dead_operation;
  if (id == kNone) {
    id = operations_.Append({});
  } else {
    scalars_.dead_operation = operations_[id].first_edge;
  }
  Operation operation{.cost_seconds = cost_seconds, .recomputable = recomputable, .alive = true};

  EdgeId next_edge = kNone;
  for (size_t i = inputs.size(); i-- > 0;) {  // backwards: each edge names the one after it
    const StorageId input = inputs[i];
    Storage& storage = storages_.Mutable(input);
    const Edge edge{id, input, next_edge, storage.first_consumer, kNone};
    EdgeId edge_id = scalars_.dead_edge;
    if (edge_id == kNone) {
      edge_id = edges_.Append(edge);
    } else {
      scalars_.dead_edge = edges_[edge_id].next_in_operation;
      edges_.Mutable(edge_id) = edge;
    }
    if (edge.next_in_storage != kNone) {
      edges_.Mutable(edge.next_in_storage).previous_in_storage = edge_id;
    }
    storage.first_consumer = edge_id;
    ++storage.needed_by;
    next_edge = edge_id;
  }
  operation.first_edge = next_edge;

  OutputId next_output = kNone;
  for (size_t i = outputs.size(); i-- > 0;) {
    const OutputSpec& spec = outputs[i];
    Output output{spec.bytes,   kNone,     next_output, spec.in_place_input,
                  spec.outside, spec.side, spec.place};
    OutputId output_id = scalars_.dead_output;
    if (output_id == kNone) {
      output_id = outputs_.Append(output);
    } else {
      scalars_.dead_output = outputs_[output_id].next;
    }
    output.storage = AddStorage({.bytes = spec.bytes,
                                 .cost_seconds = cost_seconds,
                                 .producer = id,
                                 .output = output_id,
                                 .refs = 1,
                                 .state = StorageState::kUnborn,
                                 .outside = spec.outside});
    outputs_.Mutable(output_id) = output;
    if (!spec.outside) ++operation.live_outputs;
    next_output = output_id;
  }
  operation.first_output = next_output;
  operations_.Mutable(id) = operation;
  return id;
}

StorageId Graph::AddStorageNow(const Storage& storage) {
  ++scalars_.live_storages;
  const StorageId id = scalars_.dead_storage;
  if (id == kNone) return storages_.AppendNow(storage);
  Storage& record = storages_.Now(id);
  scalars_.dead_storage = record.producer;
  record = storage;
  return id;
}

Graph::Added Graph::AddExecuted(std::span<const StorageId> inputs, const OutputSpec& output,
                                const Operation& operation, const Storage& storage) {
  ++scalars_.live_operations;
  OperationId id = scalars_.dead_operation;
  if (id == kNone) {
    id = operations_.AppendNow({});
  } else {
    scalars_.dead_operation = operations_[id].first_edge;
  }
  EdgeId next_edge = kNone;
  for (size_t i = inputs.size(); i-- > 0;) {  // backwards, as in AddOperation
    Storage& input = storages_.Now(inputs[i]);
    EdgeId edge_id = scalars_.dead_edge;
    if (edge_id == kNone) {
      edge_id = edges_.AppendNow({});
    } else {
      scalars_.dead_edge = edges_[edge_id].next_in_operation;
    }
    if (input.first_consumer != kNone) {
      edges_.Now(input.first_consumer).previous_in_storage = edge_id;
    }
    edges_.Now(edge_id) = {id, inputs[i], next_edge, input.first_consumer, kNone};
    input.first_consumer = edge_id;
    ++input.needed_by;
    next_edge = edge_id;
  }
  OutputId output_id = scalars_.dead_output;
  if (output_id == kNone) {
    output_id = outputs_.AppendNow({});
  } else {
    scalars_.dead_output = outputs_[output_id].next;
  }
  const StorageId added = AddStorageNow(storage);
  storages_.Now(added).producer = id;
  storages_.Now(added).output = output_id;
  outputs_.Now(output_id) = {output.bytes,   added,       kNone,       output.in_place_input,
                             output.outside, output.side, output.place};
  Operation& record = operations_.Now(id);
  record = operation;
  record.first_edge = next_edge;
  record.first_output = output_id;
  return {id, added};
}

StorageId Graph::PopEdge(OperationId id) {
  Operation& operation = operations_.Mutable(id);
  const EdgeId edge_id = operation.first_edge;
  const Edge edge = edges_[edge_id];
  operation.first_edge = edge.next_in_operation;
  if (edge.next_in_storage != kNone) {
    edges_.Mutable(edge.next_in_storage).previous_in_storage = edge.previous_in_storage;
  }
  Storage& storage = storages_.Mutable(edge.storage);
  if (edge.previous_in_storage != kNone) {
    edges_.Mutable(edge.previous_in_storage).next_in_storage = edge.next_in_storage;
  } else {
    storage.first_consumer = edge.next_in_storage;
  }
  --storage.needed_by;
  edges_.Mutable(edge_id) = {.next_in_operation = scalars_.dead_edge};
  scalars_.dead_edge = edge_id;
  return edge.storage;
}

void Graph::RecycleOperation(OperationId id) {
  OutputId output_id = operations_[id].first_output;
  while (output_id != kNone) {
    const Output output = outputs_[output_id];
    if (output.storage != kNone) {
      Storage& storage = storages_.Mutable(output.storage);
      storage.producer = kNone;
      storage.output = kNone;
    }
    outputs_.Mutable(output_id) = {.next = scalars_.dead_output};
    scalars_.dead_output = output_id;
    output_id = output.next;
  }
  operations_.Mutable(id) = {.first_edge = scalars_.dead_operation};
  scalars_.dead_operation = id;
  --scalars_.live_operations;
}

void Graph::Record(bool recording) {
  storages_.Record(recording);
  operations_.Record(recording);
  edges_.Record(recording);
  outputs_.Record(recording);
}

Graph::MarkPoint Graph::Mark() const {
  return {storages_.Mark(), operations_.Mark(), edges_.Mark(), outputs_.Mark(), scalars_};
}

void Graph::Rollback(const MarkPoint& mark) {
  storages_.Rollback(mark.storages);
  operations_.Rollback(mark.operations);
  edges_.Rollback(mark.edges);
  outputs_.Rollback(mark.outputs);
  scalars_ = mark.scalars;
}

void Graph::ValidateStorage(StorageId id) const {
  const Storage& storage = storages_[id];
  int32_t needed_by = 0;
  EdgeId previous = kNone;
  for (EdgeId e = storage.first_consumer; e != kNone; e = edges_[e].next_in_storage) {
    Check(edges_[e].storage == id, "the edges in a storage's list read that storage");
    Check(edges_[e].previous_in_storage == previous, "edges of a storage are doubly linked");
    Check(IsOperation(edges_[e].operation), "edges belong to live operations");
    previous = e;
    ++needed_by;
  }
  Check(needed_by == storage.needed_by, "needed_by is the number of edges of live operations");
  Check(storage.is_wanted(), "a storage that is not wanted is dead");
  Check(storage.refs >= 0, "references are not negative");
  Check((storage.producer == kNone) == (storage.output == kNone),
        "a storage with a producer is one of its outputs");
  if (storage.producer == kNone) {
    Check(storage.state == StorageState::kResident || storage.state == StorageState::kConsumed,
          "a storage without a recipe is resident, or taken by an in-place output");
    return;
  }
  const Operation& producer = operations_[storage.producer];
  Check(producer.alive, "the producer of a storage is live");
  Check(outputs_[storage.output].storage == id, "a storage is an output of its producer");
  Check(producer.executed == (storage.state != StorageState::kUnborn),
        "outputs are unborn exactly until their operation runs");
  if (storage.state == StorageState::kEvicted) {
    Check(storage.has_recipe() && producer.recomputable, "evicted storages have a recipe");
    for (EdgeId e = producer.first_edge; e != kNone; e = edges_[e].next_in_operation) {
      const Storage& input = storages_[edges_[e].storage];
      Check(input.state == StorageState::kResident || input.state == StorageState::kEvicted,
            "the inputs of a recipe that is needed are resident or recomputable");
    }
  }
}

void Graph::ValidateOperation(OperationId id) const {
  const Operation& operation = operations_[id];
  for (EdgeId e = operation.first_edge; e != kNone; e = edges_[e].next_in_operation) {
    Check(edges_[e].operation == id, "the edges in an operation's list belong to it");
    Check(IsStorage(edges_[e].storage), "the inputs of a live operation are not dead");
  }
  int32_t live_outputs = 0;
  for (OutputId o = operation.first_output; o != kNone; o = outputs_[o].next) {
    if (outputs_[o].storage == kNone) continue;
    const Storage& storage = storages_[outputs_[o].storage];
    Check(storage.producer == id && storage.output == o, "outputs name their producer");
    if (!storage.outside && !storage.permanent) ++live_outputs;
  }
  Check(live_outputs == operation.live_outputs, "live_outputs counts what can be recomputed");
  Check(!operation.executed || (live_outputs > 0 && operation.recomputable),
        "an operation that ran is kept only while one of its outputs may be recomputed");
}

void Graph::Validate() const {
  int32_t live_storages = 0;
  for (StorageId s = 0; s < storages_.count(); ++s) {
    if (storages_[s].state == StorageState::kDead) continue;
    ++live_storages;
    ValidateStorage(s);
  }
  Check(live_storages == scalars_.live_storages, "live_storages counts them");
  int32_t live_operations = 0;
  for (OperationId o = 0; o < operations_.count(); ++o) {
    if (!operations_[o].alive) continue;
    ++live_operations;
    ValidateOperation(o);
  }
  Check(live_operations == scalars_.live_operations, "live_operations counts them");
}

uint64_t Graph::Fingerprint(uint64_t hash) const {
  hash = HashValues(hash, scalars_.dead_storage, scalars_.dead_operation, scalars_.dead_edge,
                    scalars_.dead_output, scalars_.live_storages, scalars_.live_operations);
  for (StorageId i = 0; i < storages_.count(); ++i) {
    const Storage& s = storages_[i];
    hash =
        HashValues(hash, s.bytes, Bits(s.cost_seconds), Bits(s.last_access), s.producer, s.output,
                   s.refs, s.needed_by, s.block, s.first_consumer, s.component, s.evicted_neighbors,
                   s.neighbor_components, s.state, s.outside, s.permanent, s.may_overwrite);
  }
  for (OperationId i = 0; i < operations_.count(); ++i) {
    const Operation& o = operations_[i];
    hash = HashValues(hash, Bits(o.cost_seconds), o.first_edge, o.first_output, o.live_outputs,
                      o.missing_outputs, o.recomputable, o.executed, o.alive, o.sequence);
  }
  for (EdgeId i = 0; i < edges_.count(); ++i) {
    const Edge& e = edges_[i];
    hash = HashValues(hash, e.operation, e.storage, e.next_in_operation, e.next_in_storage,
                      e.previous_in_storage);
  }
  for (OutputId i = 0; i < outputs_.count(); ++i) {
    const Output& o = outputs_[i];
    hash = HashValues(hash, o.bytes, o.storage, o.next, o.in_place_input, o.outside);
  }
  return hash;
}

}  // namespace coop
