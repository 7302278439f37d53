#include <algorithm>
#include <utility>

#include "cc/core/check.h"
#include "cc/core/engine_impl.h"

namespace coop {

bool Engine::Impl::Prepare(OperationId operation) {
  const Residency::MarkPoint start = memory.Mark();
  recomputations_left_ = 1024 + 16 * int64_t{memory.graph().live_operations()};
  if (memory.options().policy.evict_always && !memory.graph().operation(operation).executed) {
    EvictEverything();
  }
  // What the requested operation already has in memory stays while the rest is brought back: to
  // lose it would often mean to begin again. Where that leaves too little room it may go, too.
  // At last everything goes: an empty pool is not in pieces.
  const int64_t bound = recomputations_left_;
  const Residency::MarkPoint attempt = memory.Mark();
  for (const int number : {1, 2, 3}) {
    keep_requested_inputs_ = number == 1;
    recomputations_left_ = bound;
    if (number == 3) EvictEverything();
    PushFrame(operation);
    if (RunFramesAbove(0)) return true;
    Undo(attempt, 0);
  }
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
    if (blocks[b].holder >= 0 && memory.IsEvictableNow(blocks[b].holder)) {
      walk_.push_back(blocks[b].holder);
    }
  }
  for (const StorageId storage : walk_) memory.Evict(storage);
}

bool Engine::Impl::Reserve(int64_t bytes) {
  memory.Begin();
  const Residency::MarkPoint start = memory.Mark();
  const BlockList& blocks = memory.blocks();
  int64_t missing = bytes - memory.stats().reserved_bytes;
  while (missing > 0) {
    int64_t part = blocks.RoundUp(missing);
    BlockId room = RoomAtRightEnd(part);
    if (room == kNone) room = FindRoom(part, Side::kRight);
    if (room == kNone) {  // in several blocks, the largest first
      part = memory.LargestWindowBytes();
      if (part > 0) room = FindRoom(part, Side::kRight);
    }
    if (room == kNone) {
      Fail(FailureReason::kNoSpace, missing);
      Undo(start, 0);
      memory.Commit();
      return false;
    }
    memory.Reserve(room, part);
    missing -= part;
  }
  memory.SyncMarks();
  return true;
}

BlockId Engine::Impl::RoomAtRightEnd(int64_t bytes) {
  // A reservation stays to the end: in the middle it would cut the pool in two.
  const BlockList& blocks = memory.blocks();
  walk_.clear();
  for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) walk_.push_back(b);
  while (!walk_.empty() && blocks[walk_.back()].holder == kReservedBlock) walk_.pop_back();
  int64_t found = 0;
  size_t left = walk_.size();
  while (left > 0 && found < bytes) {
    const Block& block = blocks[walk_[left - 1]];
    if (!block.is_free() && (block.holder < 0 || !memory.IsEvictableNow(block.holder))) break;
    found += block.bytes;
    --left;
  }
  if (found < bytes) return kNone;
  const int64_t end = blocks[walk_.back()].offset + blocks[walk_.back()].bytes;
  BlockId block = walk_[left];
  while (true) {
    if (!blocks[block].is_free()) block = memory.Evict(blocks[block].holder);
    if (blocks[block].offset + blocks[block].bytes >= end) return block;
    block = blocks[block].next;
  }
}

StorageId Engine::Impl::AddAdopted(int64_t bytes) {
  const Side side = memory.AdoptionSide();
  const int64_t rounded = memory.blocks().RoundUp(bytes);
  const BlockId room = memory.blocks().FindFree(rounded, side);
  if (room == kNone) {
    Fail(FailureReason::kNoSpace, bytes);
    return kNone;
  }
  memory.CountAdopted(rounded, side);
  const BlockId block = memory.Take(room, rounded, side, kScratchBlock);
  return memory.AddStorage(
      {.bytes = bytes, .refs = 1, .block = block, .state = StorageState::kResident});
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
}

void Engine::Impl::PinTop() {
  Frame& frame = frames_.back();
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
  for (size_t i = 0; i < missing_.size(); ++i) add_producers(missing_[i]);
  for (const OperationId id : missing_) seen_[static_cast<size_t>(id)] = 0;
  std::sort(missing_.begin(), missing_.end(), [&](OperationId a, OperationId b) {
    return graph.operation(a).sequence > graph.operation(b).sequence;
  });
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
    recomputations_left_ -= static_cast<int64_t>(missing_.size());
    if (recomputations_left_ < 0) {  // the report names what would have come back next
      return Fail(FailureReason::kThrashing, OutputBytes(missing_.back()));
    }
  }
  return true;
}

bool Engine::Impl::RunTop() {
  PinTop();
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
  if (storage.block == kNone || !storage.may_overwrite ||
      memory.blocks()[storage.block].bytes != memory.blocks().RoundUp(output.bytes) ||
      memory.pins(input) != EdgesBetween(id, input) || memory.protects(input) != 0) {
    return;
  }
  for (const PlacedOutput& other : placed_) {
    if (other.in_place == input) return;
  }
  if (recompute) {
    // Nobody promised anything about this use: only what nobody reads and can come back.
    if (storage.refs != 0 || !storage.has_recipe()) return;
  } else {
    if (storage.refs != 1) return;
    if (!storage.has_recipe() && !Settle(id, input)) return;
  }
  placed_[index].in_place = input;
  placed_[index].in_place_input = output.in_place_input;
}

int64_t Engine::Impl::OutputBytes(OperationId operation) const {
  const Graph& graph = memory.graph();
  int64_t bytes = 0;
  for (OutputId o = graph.operation(operation).first_output; o != kNone; o = graph.output(o).next) {
    if (!graph.output(o).outside) bytes += graph.output(o).bytes;
  }
  return bytes;
}

Side Engine::Impl::SideOf(OperationId operation) const {
  const EngineOptions& options = memory.options();
  if (!options.policy.cheap_partitioning) return Side::kLeft;
  const Graph& graph = memory.graph();
  const double bytes = static_cast<double>(OutputBytes(operation));
  const double cost_seconds = graph.operation(operation).cost_seconds;
  return cost_seconds >= options.expensive_seconds_per_byte * bytes ? Side::kLeft : Side::kRight;
}

void Engine::Impl::PinInputs(OperationId operation, int32_t change) {
  const Graph& graph = memory.graph();
  for (EdgeId e = graph.operation(operation).first_edge; e != kNone;
       e = graph.edge(e).next_in_operation) {
    memory.Pin(graph.edge(e).storage, change);
  }
}

BlockId Engine::Impl::FindRoom(int64_t bytes, Side side) {
  const BlockId block = memory.blocks().FindFree(bytes, side);
  if (block != kNone) return block;
  memory.CountSearch(memory.Fragmentation());
  const auto& timer = memory.options().timer;
  const double begin = timer ? timer() : 0;
  BlockId room = kNone;
  if (keep_requested_inputs_ && frames_.size() > 1 && !frames_.front().pinned) {
    PinInputs(frames_.front().operation, 1);
    room = evictor->MakeRoom(memory, bytes, side);
    PinInputs(frames_.front().operation, -1);
  }
  if (room == kNone) room = evictor->MakeRoom(memory, bytes, side);
  if (timer) memory.CountSearchSeconds(timer() - begin);
  return room;
}

bool Engine::Impl::PlaceOutputs() {
  const Graph& graph = memory.graph();
  const BlockList& blocks = memory.blocks();
  const auto rounded = [&](size_t i) {
    return blocks.RoundUp(graph.output(placed_[i].output).bytes);
  };
  order_.clear();
  for (size_t i = 0; i < placed_.size(); ++i) {
    if (!graph.output(placed_[i].output).outside && placed_[i].in_place == kNone) {
      order_.push_back(i);
    }
  }
  if (order_.empty()) return true;
  // The largest first: it is the hardest to find room for.
  std::stable_sort(order_.begin(), order_.end(),
                   [&](size_t a, size_t b) { return rounded(a) > rounded(b); });
  const Side side = SideOf(frames_.back().operation);
  for (size_t n = 0; n < order_.size(); ++n) {
    const BlockId room = FindRoom(rounded(order_[n]), side);
    if (room != kNone) {
      placed_[order_[n]].block = memory.Take(room, rounded(order_[n]), side, kScratchBlock);
      continue;
    }
    const Failure earlier_failure = failure;
    Fail(FailureReason::kNoSpace, graph.output(placed_[order_[n]].output).bytes);
    if (n == 0 || !PlaceTogether(n, side)) return false;
    failure = earlier_failure;
    return true;
  }
  return true;
}

bool Engine::Impl::PlaceTogether(size_t placed_count, Side side) {
  // The first outputs cut the only window that was large enough for all: take it as one.
  const Graph& graph = memory.graph();
  int64_t bytes = 0;
  for (size_t n = 0; n < order_.size(); ++n) {
    PlacedOutput& placed = placed_[order_[n]];
    bytes += memory.blocks().RoundUp(graph.output(placed.output).bytes);
    if (n < placed_count) memory.FreeScratch(placed.block);
    placed.block = kNone;
  }
  const BlockId room = FindRoom(bytes, side);
  if (room == kNone) return false;
  for (const size_t i : order_) {
    const int64_t part = memory.blocks().RoundUp(graph.output(placed_[i].output).bytes);
    placed_[i].block = memory.Take(room, part, side, kScratchBlock);
  }
  return true;
}

bool Engine::Impl::Fail(FailureReason reason, int64_t requested_bytes) {
  const BlockList& blocks = memory.blocks();
  failure = {.reason = reason,
             .requested_bytes = requested_bytes,
             .capacity_bytes = blocks.capacity_bytes(),
             .in_use_bytes = blocks.held_bytes(),
             .pinned_bytes = blocks.held_bytes() - memory.EvictableBytesNow(),
             .largest_free_block_bytes = blocks.LargestFreeBytes(),
             .largest_window_bytes = memory.LargestWindowBytes(),
             .operation = frames_.empty() ? kNone : frames_.back().operation};
  return false;
}

}  // namespace coop
