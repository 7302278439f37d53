#include "cc/core/neighborhood.h"

#include <algorithm>
#include <utility>

#include "cc/core/check.h"

namespace coop {

template <typename Visit>
void Neighborhood::ForEachNeighbor(StorageId storage, Visit visit) const {
  const OperationId producer = graph_.storage(storage).producer;
  if (producer != kNone) {
    for (EdgeId e = graph_.operation(producer).first_edge; e != kNone;
         e = graph_.edge(e).next_in_operation) {
      visit(graph_.edge(e).storage);
    }
  }
  for (EdgeId e = graph_.storage(storage).first_consumer; e != kNone;
       e = graph_.edge(e).next_in_storage) {
    const OperationId consumer = graph_.edge(e).operation;
    for (OutputId o = graph_.operation(consumer).first_output; o != kNone;
         o = graph_.output(o).next) {
      if (graph_.output(o).storage != kNone) visit(graph_.output(o).storage);
    }
  }
}

void Neighborhood::OnEvicted(StorageId storage) {
  ++evicted_count_;
  ForEachNeighbor(storage,
                  [&](StorageId neighbor) { ++graph_.MutableStorage(neighbor).evicted_neighbors; });
  if (mode_ == NeighborhoodMode::kUnionFind) {
    AddNode(storage);
    RebuildIfMany();
  }
}

void Neighborhood::OnNoLongerEvicted(StorageId storage) {
  --evicted_count_;
  ForEachNeighbor(storage,
                  [&](StorageId neighbor) { --graph_.MutableStorage(neighbor).evicted_neighbors; });
  if (mode_ != NeighborhoodMode::kUnionFind) return;
  Storage& record = graph_.MutableStorage(storage);
  components_.Mutable(Root(record.component)).cost -= ToFixed(record.cost_seconds);
  record.component = kNone;
  if (evicted_count_ == 0) components_.Clear();
}

void Neighborhood::CountAcross(OperationId operation, int32_t sign) {
  if (evicted_count_ == 0) return;
  const Operation& op = graph_.operation(operation);
  for (EdgeId e = op.first_edge; e != kNone; e = graph_.edge(e).next_in_operation) {
    const StorageId input = graph_.edge(e).storage;
    const bool input_evicted = graph_.storage(input).state == StorageState::kEvicted;
    for (OutputId o = op.first_output; o != kNone; o = graph_.output(o).next) {
      const StorageId output = graph_.output(o).storage;
      if (output == kNone) continue;
      if (input_evicted) graph_.MutableStorage(output).evicted_neighbors += sign;
      if (graph_.storage(output).state == StorageState::kEvicted) {
        graph_.MutableStorage(input).evicted_neighbors += sign;
      }
    }
  }
}

ComponentId Neighborhood::Root(ComponentId component) const {
  while (components_[component].parent != kNone) component = components_[component].parent;
  return component;
}

void Neighborhood::AddNode(StorageId storage) {
  ComponentId root = components_.Append({.cost = ToFixed(graph_.storage(storage).cost_seconds)});
  graph_.MutableStorage(storage).component = root;
  if (graph_.storage(storage).evicted_neighbors == 0) return;
  ForEachNeighbor(storage, [&](StorageId neighbor) {
    // While rebuilding, neighbours without a node are still to come and will join this one.
    if (graph_.storage(neighbor).component == kNone) return;
    ComponentId other = Root(graph_.storage(neighbor).component);
    if (other == root) return;
    if (components_[root].nodes < components_[other].nodes) std::swap(root, other);
    const Component child = components_[other];
    components_.Mutable(other).parent = root;
    Component& parent = components_.Mutable(root);
    parent.cost += child.cost;
    parent.nodes += child.nodes;
  });
}

void Neighborhood::RebuildIfMany() {
  if (components_.count() <= 1024 + 8 * evicted_count_) return;
  components_.Clear();
  for (StorageId s = 0; s < graph_.storage_capacity(); ++s) {
    if (graph_.storage(s).component != kNone) graph_.MutableStorage(s).component = kNone;
  }
  for (StorageId s = 0; s < graph_.storage_capacity(); ++s) {
    if (graph_.storage(s).state == StorageState::kEvicted) AddNode(s);
  }
}

void Neighborhood::BeginVisits(int32_t count) const {
  if (seen_.size() < static_cast<size_t>(count)) seen_.resize(static_cast<size_t>(count), 0);
  if (++visit_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    visit_ = 1;
  }
}

bool Neighborhood::FirstVisit(int32_t id) const {
  uint32_t& seen = seen_[static_cast<size_t>(id)];
  if (seen == visit_) return false;
  seen = visit_;
  return true;
}

Fixed Neighborhood::ComponentsCost(StorageId storage) const {
  BeginVisits(components_.count());
  Fixed cost = 0;
  ForEachNeighbor(storage, [&](StorageId neighbor) {
    const ComponentId component = graph_.storage(neighbor).component;
    if (component == kNone) return;
    const ComponentId root = Root(component);
    if (FirstVisit(root)) cost += components_[root].cost;
  });
  return cost;
}

Fixed Neighborhood::ExactCost(StorageId storage) const {
  BeginVisits(graph_.operation_capacity());
  Fixed cost = 0;
  const auto is_evicted = [&](StorageId s) {
    return s != kNone && graph_.storage(s).state == StorageState::kEvicted;
  };
  stack_.assign(1, storage);
  while (!stack_.empty()) {  // ancestors
    const OperationId producer = graph_.storage(stack_.back()).producer;
    stack_.pop_back();
    if (producer == kNone) continue;
    for (EdgeId e = graph_.operation(producer).first_edge; e != kNone;
         e = graph_.edge(e).next_in_operation) {
      const StorageId input = graph_.edge(e).storage;
      if (!is_evicted(input) || !FirstVisit(graph_.storage(input).producer)) continue;
      cost += ToFixed(graph_.storage(input).cost_seconds);
      stack_.push_back(input);
    }
  }
  stack_.assign(1, storage);
  while (!stack_.empty()) {  // descendants
    const StorageId from = stack_.back();
    stack_.pop_back();
    for (EdgeId e = graph_.storage(from).first_consumer; e != kNone;
         e = graph_.edge(e).next_in_storage) {
      const OperationId consumer = graph_.edge(e).operation;
      if (!FirstVisit(consumer)) continue;
      bool any = false;
      for (OutputId o = graph_.operation(consumer).first_output; o != kNone;
           o = graph_.output(o).next) {
        if (!is_evicted(graph_.output(o).storage)) continue;
        any = true;
        stack_.push_back(graph_.output(o).storage);
      }
      if (any) cost += ToFixed(graph_.operation(consumer).cost_seconds);
    }
  }
  return cost;
}

void Neighborhood::Validate() const {
  int32_t evicted_count = 0;
  std::vector<Fixed> costs(static_cast<size_t>(components_.count()), 0);
  for (StorageId s = 0; s < graph_.storage_capacity(); ++s) {
    const Storage& storage = graph_.storage(s);
    if (storage.state == StorageState::kDead) continue;
    int32_t evicted_neighbors = 0;
    ForEachNeighbor(s, [&](StorageId neighbor) {
      if (graph_.storage(neighbor).state == StorageState::kEvicted) ++evicted_neighbors;
    });
    Check(evicted_neighbors == storage.evicted_neighbors,
          "evicted_neighbors counts the evicted neighbours");
    const bool evicted = storage.state == StorageState::kEvicted;
    if (evicted) ++evicted_count;
    Check((storage.component != kNone) == (evicted && mode_ == NeighborhoodMode::kUnionFind),
          "exactly the evicted storages are nodes of the union-find forest");
    if (storage.component != kNone) {
      costs[static_cast<size_t>(Root(storage.component))] += ToFixed(storage.cost_seconds);
    }
  }
  Check(evicted_count == evicted_count_, "evicted_count counts the evicted storages");
  for (ComponentId c = 0; c < components_.count(); ++c) {
    if (components_[c].parent != kNone) continue;
    Check(components_[c].cost == costs[static_cast<size_t>(c)],
          "a component costs what its evicted storages cost");
  }
  Check(evicted_count_ > 0 || components_.empty(),
        "no union-find nodes are kept when nothing is evicted");
}

uint64_t Neighborhood::Fingerprint(uint64_t hash) const {
  hash = HashValues(hash, evicted_count_, components_.count());
  for (ComponentId c = 0; c < components_.count(); ++c) {
    const Component& component = components_[c];
    hash =
        HashValues(hash, component.cost, component.cost >> 64, component.parent, component.nodes);
  }
  return hash;
}

}  // namespace coop
