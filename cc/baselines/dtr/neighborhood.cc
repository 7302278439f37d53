#include "cc/baselines/dtr/neighborhood.h"

#include <algorithm>
#include <utility>

namespace coop {
namespace {

size_t At(int32_t id) { return static_cast<size_t>(id); }

void SortUnique(std::vector<int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

FungibleGraph::FungibleGraph(const FungibleProgram& program, FungibleHeuristic heuristic)
    : program_(program),
      has_regions_(heuristic == FungibleHeuristic::kDtr || heuristic == FungibleHeuristic::kMsps),
      has_components_(heuristic == FungibleHeuristic::kUnionFind),
      counts_down_(heuristic == FungibleHeuristic::kDtr),
      tensors_(program.result_bytes.size()) {}

std::span<const int32_t> FungibleGraph::ArgsOf(int32_t operation) const {
  const auto begin = program_.op_arg_begin[At(operation)];
  const auto end = program_.op_arg_begin[At(operation) + 1];
  return {program_.op_args.data() + begin, static_cast<size_t>(end - begin)};
}

int32_t FungibleGraph::FirstResultOf(int32_t operation) const {
  return program_.op_result_begin[At(operation)];
}

int32_t FungibleGraph::EndResultOf(int32_t operation) const {
  return program_.op_result_begin[At(operation) + 1];
}

void FungibleGraph::AddResults(int32_t operation) {
  const auto args = ArgsOf(operation);
  for (int32_t t = FirstResultOf(operation); t < EndResultOf(operation); ++t) {
    const int32_t alias = program_.result_alias[At(t)];
    int32_t id = static_cast<int32_t>(storages_.size());
    if (alias == kNone) {
      storages_.emplace_back().bytes = program_.result_bytes[At(t)];
      for (auto& regions : regions_) {
        if (has_regions_) regions.emplace_back();
      }
      for (auto& next : next_) next.emplace_back();
      if (has_components_) component_of_.push_back(NewComponent(0));
    } else {
      id = tensor(args[At(alias)]).storage;
    }
    FungibleStorage& record = storage(id);
    // Tensors of one operation come one after another, so this counts each operation once.
    if (record.tensors.empty() || tensor(record.tensors.back()).operation != operation) {
      record.cost_ns += program_.op_cost_ns[At(operation)];
    }
    record.tensors.push_back(t);
    ++record.references;
    tensor(t).storage = id;
    tensor(t).operation = operation;
  }
  for (int32_t t = FirstResultOf(operation); t < EndResultOf(operation); ++t) {
    for (const int32_t arg : args) AddEdge(tensor(arg).storage, tensor(t).storage);
  }
}

void FungibleGraph::AddEdge(int32_t from, int32_t to) {
  if (from == to) return;
  auto& down = next_[kDown][At(from)];
  auto& up = next_[kUp][At(to)];
  if (down.empty() || down.back() != to) down.push_back(to);
  if (up.empty() || up.back() != from) up.push_back(from);
}

template <typename Visit>
void FungibleGraph::ForEachMissingNeighbor(int32_t from, Visit visit) const {
  for (const Direction direction : {kUp, kDown}) {
    for (const int32_t s : next_[direction][At(from)]) {
      if (!storages_[At(s)].resident) visit(s);
    }
  }
}

void FungibleGraph::BeginVisits(size_t count) {
  if (seen_.size() < count) seen_.resize(count + count / 2, 0);
  if (++visit_ == 0) {
    std::fill(seen_.begin(), seen_.end(), 0);
    visit_ = 1;
  }
}

bool FungibleGraph::FirstVisit(int32_t id) {
  if (seen_[At(id)] == visit_) return false;
  seen_[At(id)] = visit_;
  return true;
}

void FungibleGraph::Rebuild(int32_t base, Direction direction) {
  Region& rebuilt = region(base, direction);
  rebuilt = {};
  BeginVisits(storages_.size());
  (void)FirstVisit(base);
  stack_.assign(1, base);
  while (!stack_.empty()) {
    const int32_t from = stack_.back();
    stack_.pop_back();
    for (const int32_t s : next_[direction][At(from)]) {
      if (!FirstVisit(s)) continue;
      if (storages_[At(s)].resident) {
        rebuilt.frontier.push_back(s);
        continue;
      }
      rebuilt.interior.push_back(s);
      rebuilt.cost_ns += storages_[At(s)].cost_ns;
      stack_.push_back(s);
    }
  }
}

void FungibleGraph::Absorb(int32_t into, int32_t evicted, Direction direction) {
  Region& grown = region(into, direction);
  const Region& joined = region(evicted, direction);
  const auto place = std::find(grown.frontier.begin(), grown.frontier.end(), evicted);
  if (place == grown.frontier.end()) {
    // An alias with further arguments added an edge that no increment told of; the authors'
    // simulator stops here.
    Rebuild(into, direction);
    return;
  }
  grown.frontier.erase(place);
  BeginVisits(storages_.size());
  for (const int32_t s : grown.frontier) (void)FirstVisit(s);
  for (const int32_t s : joined.frontier) {
    if (FirstVisit(s)) grown.frontier.push_back(s);
  }
  BeginVisits(storages_.size());
  for (const int32_t s : grown.interior) (void)FirstVisit(s);
  const auto take = [&](int32_t s) {
    if (!FirstVisit(s)) return;
    grown.cost_ns += storage(s).cost_ns;
    grown.interior.push_back(s);
  };
  for (const int32_t s : joined.interior) take(s);
  take(evicted);
}

int32_t FungibleGraph::NewComponent(int64_t cost_ns) {
  components_.push_back({.cost_ns = cost_ns});
  return static_cast<int32_t>(components_.size()) - 1;
}

int32_t FungibleGraph::Root(int32_t component) {
  int32_t root = component;
  while (components_[At(root)].parent != kNone) root = components_[At(root)].parent;
  while (component != root) {
    component = std::exchange(components_[At(component)].parent, root);
  }
  return root;
}

void FungibleGraph::OnEvicted(int32_t evicted) {
  if (has_regions_) {
    for (const Direction direction : {kDown, kUp}) {
      // The region the other way ends at those whose region this way ends here.
      const auto around = region(evicted, direction == kDown ? kUp : kDown).frontier;
      for (const int32_t s : around) Absorb(s, evicted, direction);
    }
    region(evicted, kDown) = {};
    region(evicted, kUp) = {};
  }
  if (has_components_) {
    const int32_t node = NewComponent(storage(evicted).cost_ns);
    component_of_[At(evicted)] = node;
    ForEachMissingNeighbor(evicted, [&](int32_t s) {
      const int32_t joined = Root(component_of_[At(s)]);
      const int32_t root = Root(node);
      if (joined == root) return;
      components_[At(joined)].parent = root;
      components_[At(root)].cost_ns += components_[At(joined)].cost_ns;
    });
  }
}

void FungibleGraph::OnComputed(std::span<const int32_t> computed) {
  if (has_regions_) {
    std::vector<int32_t> affected[2];
    for (const int32_t s : computed) {
      for (const Direction direction : {kDown, kUp}) {
        Rebuild(s, direction);
        const auto& frontier = region(s, direction).frontier;
        // Those below see this storage when they look up, and the other way round.
        auto& list = affected[direction == kDown ? kUp : kDown];
        list.insert(list.end(), frontier.begin(), frontier.end());
      }
    }
    for (const Direction direction : {kDown, kUp}) {
      SortUnique(affected[direction]);
      for (const int32_t s : affected[direction]) Rebuild(s, direction);
    }
  }
  if (has_components_) {
    for (const int32_t s : computed) {
      const int32_t node = std::exchange(component_of_[At(s)], kNone);
      components_[At(Root(node))].cost_ns -= storage(s).cost_ns;
    }
  }
}

int64_t FungibleGraph::CostAround(int32_t from) {
  if (has_regions_) {
    return region(from, kUp).cost_ns + (counts_down_ ? region(from, kDown).cost_ns : 0);
  }
  int64_t cost_ns = 0;
  if (has_components_) {
    BeginVisits(components_.size());
    ForEachMissingNeighbor(from, [&](int32_t s) {
      const int32_t root = Root(component_of_[At(s)]);
      if (FirstVisit(root)) cost_ns += components_[At(root)].cost_ns;
    });
  }
  return cost_ns;
}

}  // namespace coop
