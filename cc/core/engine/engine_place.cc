// Finding room: for outputs, adopted inputs and reservations.
#include <algorithm>
#include <utility>
#include <vector>

#include "cc/core/engine/engine_impl.h"

namespace coop {
namespace {

// What takes so much of the pool or more, 1 / this, is hard to move.
constexpr int64_t kLarge = 32;

}  // namespace

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

int64_t Engine::Impl::OutputBytes(OperationId operation) const {
  const Graph& graph = memory.graph();
  int64_t bytes = 0;
  for (OutputId o = graph.operation(operation).first_output; o != kNone; o = graph.output(o).next) {
    if (!graph.output(o).outside) bytes += graph.output(o).bytes;
  }
  return bytes;
}

Side Engine::Impl::SideOf(OperationId operation) const {
  return memory.SideOf(memory.graph().operation(operation).cost_seconds, OutputBytes(operation));
}

Side Engine::Impl::SideOf(OutputId output, Side by_policy) const {
  const SideHint hint = memory.graph().output(output).side;
  if (hint == SideHint::kByPolicy) return by_policy;
  return hint == SideHint::kLeft ? Side::kLeft : Side::kRight;
}

void Engine::Impl::PinInputs(OperationId operation, int32_t change) {
  const Graph& graph = memory.graph();
  for (EdgeId e = graph.operation(operation).first_edge; e != kNone;
       e = graph.edge(e).next_in_operation) {
    memory.Pin(graph.edge(e).storage, change);
  }
}

BlockId Engine::Impl::RightmostRoom(int64_t bytes) {
  const BlockList& blocks = memory.blocks();
  walk_.clear();
  for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) walk_.push_back(b);
  int64_t found = 0;
  int64_t end = 0;
  for (size_t n = walk_.size(); n-- > 0;) {
    const Block& block = blocks[walk_[n]];
    const bool usable =
        block.is_free() || (block.holder >= 0 && memory.IsEvictableNow(block.holder) &&
                            !memory.IsTreasured(block.holder));
    if (!usable) {
      found = 0;
      continue;
    }
    if (found == 0) end = block.offset + block.bytes;
    found += block.bytes;
    if (found < bytes) continue;
    BlockId at = walk_[n];
    while (true) {
      if (!blocks[at].is_free()) at = memory.Evict(blocks[at].holder);
      if (blocks[at].offset + blocks[at].bytes >= end) return at;
      at = blocks[at].next;
    }
  }
  return kNone;
}

BlockId Engine::Impl::MakeRoom(int64_t bytes, Side side, bool apart) {
  const BlockId room = apart ? RightmostRoom(bytes) : kNone;
  return room != kNone ? room : evictor->MakeRoom(memory, bytes, side);
}

BlockId Engine::Impl::FindRoom(int64_t bytes, Side side, bool apart) {
  const BlockId block = memory.blocks().FindFree(bytes, side);
  if (block != kNone) return block;
  memory.BeginSearch();
  memory.CountSearch(memory.Fragmentation());
  const auto& timer = memory.options().timer;
  const double begin = timer ? timer() : 0;
  BlockId room = kNone;
  if (keep_requested_inputs_ && frames_.size() > 1 && !frames_.front().pinned) {
    PinInputs(frames_.front().operation, 1);
    room = MakeRoom(bytes, side, apart);
    PinInputs(frames_.front().operation, -1);
  }
  if (room == kNone) room = MakeRoom(bytes, side, apart);
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
  std::erase_if(order_, [&](size_t i) { return PlaceAsAsked(&placed_[i]); });
  if (order_.empty()) return true;
  if (order_.size() > 1) {  // the sort allocates, and most operations have one output
    // The largest first: it is the hardest to find room for.
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return rounded(a) > rounded(b); });
  }
  const Side by_policy = SideOf(frames_.back().operation);
  for (size_t n = 0; n < order_.size(); ++n) {
    Side side = SideOf(placed_[order_[n]].output, by_policy);
    const StorageId storage = placed_[order_[n]].storage;
    const bool apart = storage != kNone && memory.IsTreasured(storage) &&
                       rounded(order_[n]) >= blocks.capacity_bytes() / kLarge;
    if (apart) side = Side::kRight;
    const BlockId room = FindRoom(rounded(order_[n]), side, apart);
    if (room != kNone) {
      placed_[order_[n]].block = memory.Take(room, rounded(order_[n]), side, kScratchBlock);
      continue;
    }
    Failure earlier_failure = std::move(failure);
    Fail(FailureReason::kNoSpace, graph.output(placed_[order_[n]].output).bytes);
    if (n == 0 || !PlaceTogether(n, by_policy)) return false;
    failure = std::move(earlier_failure);
    return true;
  }
  return true;
}

bool Engine::Impl::PlaceAsAsked(PlacedOutput* placed) {
  const Output& output = memory.graph().output(placed->output);
  if (output.place == kNone || placed->storage == kNone) return false;
  const BlockList& blocks = memory.blocks();
  const int64_t bytes = blocks.RoundUp(output.bytes);
  walk_.clear();
  BlockId block = blocks.first();
  while (block != kNone && blocks[block].offset + blocks[block].bytes <= output.place) {
    block = blocks[block].next;
  }
  for (; block != kNone && blocks[block].offset < output.place + bytes;
       block = blocks[block].next) {
    if (blocks[block].is_free()) continue;
    const StorageId holder = blocks[block].holder;
    if (holder < 0 || !memory.IsOfNoUse(holder)) return false;
    walk_.push_back(holder);
  }
  for (const StorageId holder : walk_) memory.Evict(holder);
  placed->block = memory.TakeAt(output.place, bytes, kScratchBlock);
  return placed->block != kNone;
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
  memory.Describe(&failure);
  failure.reason = reason;
  failure.requested_bytes = requested_bytes;
  failure.operation = frames_.empty() ? kNone : frames_.back().operation;
  return false;
}

}  // namespace coop
