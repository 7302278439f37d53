// Settling: before a source is overwritten in place, everything that may still be recomputed from
// it is made resident and permanent, so that no recipe can ever read the overwritten data.
#include <utility>

#include "cc/core/base/check.h"
#include "cc/core/engine/engine_impl.h"

namespace coop {

bool Engine::Impl::FindDependents(OperationId operation, StorageId source) {
  const Graph& graph = memory.graph();
  seen_.resize(static_cast<size_t>(graph.storage_capacity()), 0);
  const auto first_visit = [&](StorageId s) { return std::exchange(seen_[size_t(s)], 1) == 0; };
  dependents_.clear();
  walk_.assign(1, source);
  bool overwritable = true;
  for (size_t i = 0; i < walk_.size(); ++i) {
    const StorageId read = walk_[i];
    bool awaited = false;
    for (EdgeId e = graph.storage(read).first_consumer; e != kNone;
         e = graph.edge(e).next_in_storage) {
      const OperationId consumer = graph.edge(e).operation;
      if (consumer == operation) continue;  // about to run; its outputs become permanent
      if (!graph.operation(consumer).executed) {
        awaited = true;
        continue;
      }
      for (OutputId o = graph.operation(consumer).first_output; o != kNone;
           o = graph.output(o).next) {
        const StorageId output = graph.output(o).storage;
        if (output == kNone || !graph.storage(output).has_recipe()) continue;
        if (!first_visit(output)) continue;
        // Held by the front end: it has to stay. Otherwise only recomputations read it: whether it
        // matters depends on those.
        (graph.storage(output).refs > 0 ? dependents_ : walk_).push_back(output);
      }
    }
    if (!awaited) continue;
    // An operation that has not run yet reads this.
    if (read == source) {
      overwritable = false;
    } else {
      dependents_.push_back(read);
    }
  }
  for (const StorageId s : walk_) seen_[size_t(s)] = 0;
  for (const StorageId s : dependents_) seen_[size_t(s)] = 0;
  return overwritable;
}

bool Engine::Impl::Settle(OperationId operation, StorageId source) {
  if (!FindDependents(operation, source)) return false;
  const Graph& graph = memory.graph();
  const auto is_settled = [&] {
    return graph.storage(source).needed_by == EdgesBetween(operation, source);
  };
  if (dependents_.empty()) return is_settled();

  const Residency::MarkPoint before = memory.Mark();
  const size_t floor = frames_.size();
  const int64_t recomputations_left = recomputations_left_;
  Failure earlier_failure = std::move(failure);
  std::vector<PlacedOutput> placed = std::move(placed_);  // recomputations use it
  bool settled = true;
  for (const StorageId dependent : dependents_) {
    if (graph.storage(dependent).state == StorageState::kEvicted) {
      if (--recomputations_left_ >= 0) {
        PushFrame(graph.storage(dependent).producer);
        settled = RunFramesAbove(floor);
      } else {
        settled = false;
      }
      if (!settled) break;
    }
    memory.MakePermanent(dependent);
    memory.SyncMarks();
  }
  placed_ = std::move(placed);
  if (settled && is_settled()) {
    ++permanents_made_;
    failure = std::move(earlier_failure);
    return true;
  }
  // No room for all of them: the output gets a fresh block instead, and the source stays.
  Undo(before, floor);
  recomputations_left_ = recomputations_left;
  failure = std::move(earlier_failure);
  return false;
}

}  // namespace coop
