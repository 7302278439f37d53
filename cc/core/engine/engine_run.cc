// Bringing inputs in and running: attempts, frames, which output goes where.
#include <algorithm>
#include <array>
#include <utility>

#include "cc/core/base/check.h"
#include "cc/core/engine/engine_impl.h"

namespace coop {

namespace {

// A way to bring back what a requested operation reads.
struct Attempt {
  bool keep_requested_inputs = false;
  bool from_nothing = false;
  bool one_by_one = false;
  bool treasures_go = false;  // like anything else
};

constexpr std::array<Attempt, 7> kAttempts = {{
    // What the requested operation already has in memory stays while the rest is brought back: to
    // lose it would often mean to begin again.
    {.keep_requested_inputs = true},
    // Where that leaves too little room it may go, too.
    {},
    // Everything goes: an empty pool is not in pieces.
    {.from_nothing = true},
    // At last what was brought back stays until it is read, so that it is not lost again and again
    // for what else waits. Less is in memory at once, more is made several times.
    {.one_by_one = true},
    {.from_nothing = true, .one_by_one = true},
    // Where treasures leave too little beside them there is no other way than to make them again.
    {.keep_requested_inputs = true, .treasures_go = true},
    {.from_nothing = true, .treasures_go = true},
}};

}  // namespace

bool Engine::Impl::Prepare(OperationId operation) {
  const Residency::MarkPoint start = memory.Mark();
  if (memory.options().policy.evict_always && !memory.graph().operation(operation).executed) {
    EvictEverything();
  }
  const Residency::MarkPoint begin = memory.Mark();
  Failure reported;
  for (const Attempt& attempt : kAttempts) {
    if (attempt.treasures_go && !memory.AnyTreasured()) break;
    keep_requested_inputs_ = attempt.keep_requested_inputs;
    one_by_one_ = attempt.one_by_one;
    recomputations_left_ = 1024 + 16 * int64_t{memory.graph().live_operations()};
    memory.set_treasuring(!attempt.treasures_go);
    if (attempt.from_nothing) EvictEverything();
    PushFrame(operation);
    const bool done = RunFramesAbove(0);
    memory.set_treasuring(true);
    if (done) return true;
    Undo(begin, 0);
    // One by one all that waits is pinned: that says less of what would do.
    if (!attempt.one_by_one) std::swap(reported, failure);
  }
  failure = std::move(reported);
  Undo(start, 0);
  memory.Commit();
  return false;
}

bool Engine::Impl::Run(OperationId operation) {
  memory.Begin();
  return Prepare(operation);
}

bool Engine::Impl::Materialize(StorageId storage) {
  memory.Begin();
  const Storage& record = memory.graph().storage(storage);
  return record.state != StorageState::kEvicted || Prepare(record.producer);
}

void Engine::Impl::EvictAll() {
  memory.Begin();
  EvictEverything();
}

void Engine::Impl::EvictEverything() {
  walk_.clear();
  const BlockList& blocks = memory.blocks();
  for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
    if (blocks[b].holder >= 0 && memory.IsEvictableNow(blocks[b].holder) &&
        (memory.options().policy.evict_always || !memory.IsTreasured(blocks[b].holder))) {
      walk_.push_back(blocks[b].holder);
    }
  }
  for (const StorageId storage : walk_) memory.Evict(storage);
}

// --- Frames ---

void Engine::Impl::PushFrame(OperationId operation) {
  const Graph& graph = memory.graph();
  const double pending_seconds = memory.pending_seconds() + graph.operation(operation).cost_seconds;
  for (EdgeId e = graph.operation(operation).first_edge; e != kNone;
       e = graph.edge(e).next_in_operation) {
    const StorageId input = graph.edge(e).storage;
    memory.Protect(input, 1);
    // It runs before the frames below it: it is the next to read its inputs.
    later_readers_.push_back({input, memory.ReadAt(input, pending_seconds)});
  }
  frames_.push_back({operation, memory.pending_seconds(), false});
  memory.set_pending_seconds(pending_seconds);
  if (one_by_one_) PinTop();
}

void Engine::Impl::PinTop() {
  Frame& frame = frames_.back();
  if (frame.pinned) return;
  const Graph& graph = memory.graph();
  for (EdgeId e = graph.operation(frame.operation).first_edge; e != kNone;
       e = graph.edge(e).next_in_operation) {
    memory.Protect(graph.edge(e).storage, -1);
    memory.Pin(graph.edge(e).storage, 1);
  }
  frame.pinned = true;
}

void Engine::Impl::PopFrame() {
  const Frame& frame = frames_.back();
  const Graph& graph = memory.graph();
  for (EdgeId e = graph.operation(frame.operation).first_edge; e != kNone;
       e = graph.edge(e).next_in_operation) {
    const StorageId input = graph.edge(e).storage;
    if (frame.pinned) {
      memory.Pin(input, -1);
    } else {
      memory.Protect(input, -1);
    }
    // In the reverse order of PushFrame, for inputs that occur twice.
    const LaterReader& later = later_readers_.back();
    memory.ReadAt(later.storage, later.at_seconds);
    later_readers_.pop_back();
  }
  memory.set_pending_seconds(frame.seconds_below);
  frames_.pop_back();
}

void Engine::Impl::Undo(const Residency::MarkPoint& mark, size_t floor) {
  memory.RollbackTo(mark);
  while (frames_.size() > floor) PopFrame();
}

bool Engine::Impl::PushMissing(OperationId operation) {
  const Graph& graph = memory.graph();
  seen_.resize(static_cast<size_t>(std::max(graph.storage_capacity(), graph.operation_capacity())),
               0);
  missing_.clear();
  const auto add_producers = [&](OperationId reader) {
    for (EdgeId e = graph.operation(reader).first_edge; e != kNone;
         e = graph.edge(e).next_in_operation) {
      const Storage& input = graph.storage(graph.edge(e).storage);
      if (input.state == StorageState::kResident) continue;
      Check(input.state == StorageState::kEvicted && input.has_recipe(),
            "an input that is not resident can be recomputed");
      if (std::exchange(seen_[static_cast<size_t>(input.producer)], 1) == 0) {
        missing_.push_back(input.producer);
      }
    }
  };
  add_producers(operation);
  for (size_t i = 0; !one_by_one_ && i < missing_.size(); ++i) add_producers(missing_[i]);
  for (const OperationId id : missing_) seen_[static_cast<size_t>(id)] = 0;
  std::sort(missing_.begin(), missing_.end(), [&](OperationId a, OperationId b) {
    return graph.operation(a).sequence > graph.operation(b).sequence;
  });
  // The latest first: as a rule it takes most to make that, and nothing is pinned beside it then.
  if (one_by_one_ && missing_.size() > 1) missing_.erase(missing_.begin() + 1, missing_.end());
  for (const OperationId id : missing_) PushFrame(id);
  return !missing_.empty();
}

bool Engine::Impl::IsWaitedFor(OperationId operation) const {
  const Graph& graph = memory.graph();
  if (!graph.operation(operation).executed) return true;
  for (OutputId o = graph.operation(operation).first_output; o != kNone; o = graph.output(o).next) {
    const StorageId output = graph.output(o).storage;
    if (output != kNone && graph.storage(output).state == StorageState::kEvicted) return true;
  }
  return false;
}

bool Engine::Impl::RunFramesAbove(size_t floor) {
  while (frames_.size() > floor) {
    const OperationId operation = frames_.back().operation;
    if (!IsWaitedFor(operation)) {
      PopFrame();
      continue;
    }
    if (!PushMissing(operation)) {
      if (!RunTop()) return false;
      continue;
    }
    const auto more = static_cast<int64_t>(missing_.size());
    recomputations_left_ -= more;
    // The report names what would have come back next.
    if (memory.stats().recomputations + more > MostRecomputations()) {
      return Fail(FailureReason::kLimit, OutputBytes(missing_.back()));
    }
    if (recomputations_left_ < 0) {
      return Fail(FailureReason::kThrashing, OutputBytes(missing_.back()));
    }
  }
  return true;
}

bool Engine::Impl::MayRecomputeNoMore() const {
  const EngineOptions& options = memory.options();
  return (options.max_recomputations > 0 &&
          memory.stats().recomputations >= options.max_recomputations) ||
         (options.max_tried_recomputations > 0 &&
          tried_recomputations_ >= options.max_tried_recomputations);
}

int64_t Engine::Impl::MostRecomputations() const {
  const double factor = memory.options().max_recompute;
  if (factor == 0) return int64_t{1} << 48;
  const double most = factor * static_cast<double>(memory.stats().operations);
  return static_cast<int64_t>(std::min(most, 0x1p48)) + EngineOptions::kRecomputeAllowance;
}

bool Engine::Impl::IsAtLimit() const {
  const int64_t most = MostRecomputations();
  return memory.stats().recomputations >= most ||
         tried_recomputations_ >= EngineOptions::kRecomputeTries * most;
}

bool Engine::Impl::RunTop() {
  PinTop();
  const OperationId top = frames_.back().operation;
  if (memory.graph().operation(top).executed) {
    if (MayRecomputeNoMore()) return Fail(FailureReason::kThrashing, OutputBytes(top));
    if (IsAtLimit()) return Fail(FailureReason::kLimit, OutputBytes(top));
    ++tried_recomputations_;
  }
  ChooseOutputs();
  if (!PlaceOutputs()) return false;
  const OperationId operation = frames_.back().operation;
  PopFrame();  // before the run: it may retire the operation
  memory.CommitRun(operation, placed_);
  return true;
}

// --- Outputs ---

int32_t Engine::Impl::EdgesBetween(OperationId operation, StorageId storage) const {
  const Graph& graph = memory.graph();
  int32_t count = 0;
  for (EdgeId e = graph.operation(operation).first_edge; e != kNone;
       e = graph.edge(e).next_in_operation) {
    if (graph.edge(e).storage == storage) ++count;
  }
  return count;
}

void Engine::Impl::ChooseOutputs() {
  const Graph& graph = memory.graph();
  const Operation& operation = graph.operation(frames_.back().operation);
  bool any_in_place = false;
  placed_.clear();
  for (OutputId o = operation.first_output; o != kNone; o = graph.output(o).next) {
    const Output& output = graph.output(o);
    PlacedOutput placed{.output = o, .storage = output.storage};
    // A recomputation serves the outputs that are evicted; the others go to scratch.
    if (operation.executed && output.storage != kNone &&
        graph.storage(output.storage).state != StorageState::kEvicted) {
      placed.storage = kNone;
    }
    placed_.push_back(placed);
    any_in_place |= output.in_place_input != kNone;
  }
  if (!any_in_place || !memory.options().policy.in_place) return;
  // Settling one source makes storages permanent, and what is permanent has to be settled itself
  // before it is overwritten. So until nothing changes:
  size_t permanents = 0;
  do {
    permanents = permanents_made_;
    for (PlacedOutput& placed : placed_) placed.in_place = placed.in_place_input = kNone;
    for (size_t i = 0; i < placed_.size(); ++i) DecideInPlace(i);
  } while (permanents != permanents_made_);
}

void Engine::Impl::DecideInPlace(size_t index) {
  const Graph& graph = memory.graph();
  const OperationId id = frames_.back().operation;
  const bool recompute = graph.operation(id).executed;
  const Output output = graph.output(placed_[index].output);
  if (output.in_place_input == kNone || output.outside || placed_[index].storage == kNone) return;
  EdgeId edge = graph.operation(id).first_edge;
  for (int32_t i = 0; i < output.in_place_input; ++i) edge = graph.edge(edge).next_in_operation;
  const StorageId input = graph.edge(edge).storage;
  const Storage& storage = graph.storage(input);
  // Where a temporary happens to lie is not the place that was asked for.
  if (output.place != kNone && storage.has_recipe()) return;
  if (storage.block == kNone || !storage.may_overwrite ||
      memory.blocks()[storage.block].bytes != memory.blocks().RoundUp(output.bytes) ||
      memory.pins(input) != EdgesBetween(id, input) || memory.protects(input) != 0) {
    return;
  }
  for (const PlacedOutput& other : placed_) {
    if (other.in_place == input) return;
  }
  if (recompute) {
    // Nobody promised anything about this use: only what nobody reads and can come back, and what
    // no other recomputation waits for, or it would come back for that at once.
    if (storage.refs != 0 || !storage.has_recipe() ||
        memory.IsWorthKeeping(input, EdgesBetween(id, input))) {
      return;
    }
  } else {
    if (storage.refs != 1) return;
    if (!storage.has_recipe()) {
      if (!Settle(id, input)) return;
    } else if (memory.IsWorthKeeping(input)) {
      return;
    }
  }
  placed_[index].in_place = input;
  placed_[index].in_place_input = output.in_place_input;
}

}  // namespace coop
