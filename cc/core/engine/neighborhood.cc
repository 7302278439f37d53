#include "cc/core/engine/neighborhood.h"

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "cc/core/base/check.h"

namespace coop {

template <typename Visit>
void Neighborhood::ForEachNeighbor(StorageId storage, Visit visit) const {
  const OperationId producer = graph_.storage(storage).producer;
  if (producer != kNone) {
    for (EdgeId e = graph_.operation(producer).first_edge; e != kNone;
         e = graph_.edge(e).next_in_operation) {
      if (!visit(graph_.edge(e).storage)) return;
    }
  }
  for (EdgeId e = graph_.storage(storage).first_consumer; e != kNone;
       e = graph_.edge(e).next_in_storage) {
    const OperationId consumer = graph_.edge(e).operation;
    for (OutputId o = graph_.operation(consumer).first_output; o != kNone;
         o = graph_.output(o).next) {
      if (graph_.output(o).storage != kNone && !visit(graph_.output(o).storage)) return;
    }
  }
}

void Neighborhood::OnEvicted(StorageId storage) {
  ++evicted_count_;
  if (!awake_) return;
  if (mode_ == NeighborhoodMode::kUnionFind) AddNode(storage);
  TellNeighbors(storage, 1);
  if (components_.count() > 1024 + 8 * evicted_count_) Rebuild();
}

void Neighborhood::OnNoLongerEvicted(StorageId storage) {
  --evicted_count_;
  if (!awake_) return;
  TellNeighbors(storage, -1);
  if (mode_ != NeighborhoodMode::kUnionFind) return;
  Storage& record = graph_.MutableStorage(storage);
  components_.Mutable(Root(record.component)).cost -= ToFixed(record.cost_seconds);
  record.component = kNone;
  if (evicted_count_ == 0) components_.Clear();
}

void Neighborhood::Tell(StorageId storage, StorageId evicted, int32_t sign) {
  const ComponentId component = graph_.storage(evicted).component;
  Storage& record = graph_.MutableStorage(storage);
  record.evicted_neighbors += sign;
  record.neighbor_components ^= component;
}

void Neighborhood::TellNeighbors(StorageId storage, int32_t sign) {
  ForEachNeighbor(storage, [&](StorageId neighbor) {
    Tell(neighbor, storage, sign);
    return true;
  });
}

void Neighborhood::TellAcross(OperationId operation, int32_t sign) {
  if (evicted_count_ == 0 || !awake_) return;
  const Operation& op = graph_.operation(operation);
  for (EdgeId e = op.first_edge; e != kNone; e = graph_.edge(e).next_in_operation) {
    const StorageId input = graph_.edge(e).storage;
    for (OutputId o = op.first_output; o != kNone; o = graph_.output(o).next) {
      const StorageId output = graph_.output(o).storage;
      if (output == kNone) continue;
      if (graph_.storage(input).state == StorageState::kEvicted) Tell(output, input, sign);
      if (graph_.storage(output).state == StorageState::kEvicted) Tell(input, output, sign);
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
    if (graph_.storage(neighbor).component == kNone) return true;
    ComponentId other = Root(graph_.storage(neighbor).component);
    if (other == root) return true;
    if (components_[root].nodes < components_[other].nodes) std::swap(root, other);
    const Component child = components_[other];
    components_.Mutable(other).parent = root;
    Component& parent = components_.Mutable(root);
    parent.cost += child.cost;
    parent.nodes += child.nodes;
    return true;
  });
}

void Neighborhood::Begin() {
  awake_ = true;
  if (evicted_count_ > 0) Rebuild();
}

void Neighborhood::Rebuild() {
  components_.Clear();
  const int32_t count = graph_.storage_capacity();
  for (StorageId s = 0; s < count; ++s) {
    const Storage& storage = graph_.storage(s);
    if (storage.component == kNone && storage.evicted_neighbors == 0) continue;
    Storage& record = graph_.MutableStorage(s);
    record.component = kNone;
    record.evicted_neighbors = 0;
    record.neighbor_components = 0;
  }
  // Each joins those before it, which have told it.
  for (StorageId s = 0; s < count; ++s) {
    if (graph_.storage(s).state != StorageState::kEvicted) continue;
    if (mode_ == NeighborhoodMode::kUnionFind) AddNode(s);
    TellNeighbors(s, 1);
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
  // The search asks this of every block: few evicted neighbours are the rule, and the walk stops
  // at the last of them.
  constexpr int kFew = 8;
  int32_t left = graph_.storage(storage).evicted_neighbors;
  if (left == 1) return components_[Root(graph_.storage(storage).neighbor_components)].cost;
  std::array<ComponentId, kFew> roots;
  int count = 0;
  Fixed cost = 0;
  if (left > kFew) BeginVisits(components_.count());
  const bool few = left <= kFew;
  const auto visit = [&](StorageId neighbor) {
    const ComponentId component = graph_.storage(neighbor).component;
    if (component == kNone) return true;
    const ComponentId root = Root(component);
    bool first = true;
    if (few) {
      for (int i = 0; i < count; ++i) first &= roots[static_cast<size_t>(i)] != root;
      if (first) roots[static_cast<size_t>(count++)] = root;
    } else {
      first = FirstVisit(root);
    }
    if (first) cost += components_[root].cost;
    return --left > 0;
  };
  if (left > 0) ForEachNeighbor(storage, visit);
  return cost;
}

Fixed Neighborhood::WalkedCost(StorageId storage, NeighborhoodMode mode) const {
  BeginVisits(graph_.operation_capacity());
  Fixed cost = 0;
  int left = mode == NeighborhoodMode::kExact ? INT_MAX : kMostWalked;
  const auto is_evicted = [&](StorageId s) {
    return s != kNone && graph_.storage(s).state == StorageState::kEvicted;
  };
  stack_.assign(1, storage);
  while (!stack_.empty() && left > 0) {  // ancestors
    const OperationId producer = graph_.storage(stack_.back()).producer;
    stack_.pop_back();
    if (producer == kNone) continue;
    for (EdgeId e = graph_.operation(producer).first_edge; e != kNone;
         e = graph_.edge(e).next_in_operation) {
      const StorageId input = graph_.edge(e).storage;
      if (!is_evicted(input) || !FirstVisit(graph_.storage(input).producer)) continue;
      cost += ToFixed(graph_.storage(input).cost_seconds);
      --left;
      stack_.push_back(input);
    }
  }
  if (mode == NeighborhoodMode::kAncestors) return cost;
  stack_.assign(1, storage);
  while (!stack_.empty() && left > 0) {  // descendants
    const StorageId from = stack_.back();
    stack_.pop_back();
    for (EdgeId e = graph_.storage(from).first_consumer; e != kNone;
         e = graph_.edge(e).next_in_storage) {
      const OperationId consumer = graph_.edge(e).operation;
      if (mode == NeighborhoodMode::kAwaited && graph_.operation(consumer).missing_outputs == 0) {
        continue;
      }
      if (!FirstVisit(consumer)) continue;
      bool any = false;
      for (OutputId o = graph_.operation(consumer).first_output; o != kNone;
           o = graph_.output(o).next) {
        if (!is_evicted(graph_.output(o).storage)) continue;
        any = true;
        stack_.push_back(graph_.output(o).storage);
      }
      if (!any) continue;
      cost += ToFixed(graph_.operation(consumer).cost_seconds);
      --left;
    }
  }
  return cost;
}

void Neighborhood::Validate() const {
  if (!awake_) return;
  int32_t evicted_count = 0;
  std::vector<Fixed> costs(static_cast<size_t>(components_.count()), 0);
  for (StorageId s = 0; s < graph_.storage_capacity(); ++s) {
    const Storage& storage = graph_.storage(s);
    if (storage.state == StorageState::kDead) continue;
    int32_t evicted_neighbors = 0;
    ComponentId components = 0;
    ForEachNeighbor(s, [&](StorageId neighbor) {
      if (graph_.storage(neighbor).state != StorageState::kEvicted) return true;
      ++evicted_neighbors;
      components ^= graph_.storage(neighbor).component;
      return true;
    });
    Check(evicted_neighbors == storage.evicted_neighbors,
          "evicted_neighbors counts the evicted neighbours");
    Check(components == storage.neighbor_components,
          "neighbor_components combines those of the evicted neighbours");
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
  hash = HashValues(hash, evicted_count_, components_.count(), awake_);
  for (ComponentId c = 0; c < components_.count(); ++c) {
    const Component& component = components_[c];
    hash =
        HashValues(hash, component.cost, component.cost >> 64, component.parent, component.nodes);
  }
  return hash;
}

}  // namespace coop
