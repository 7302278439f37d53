// What is in the pool, what is not, and the elementary changes between the two.
//
// Model: ties together the blocks, the graph and the evicted neighbourhood, and keeps the action
// list, the logical clock and the statistics. Policies (evictor.h) read it and evict through it;
// the engine places, runs and releases through it.
//
// Transactions: Begin starts recording and an empty action list; SyncMarks, called whenever the
// state is consistent, says "this is the state after the actions so far". RollbackTo undoes.
// Memory that goes while recording becomes an action, otherwise an entry of freed.
//
// Pins live only inside one transaction and are not recorded: `pins` are hard; `protects` counts
// the waiting operations that read a storage. That is no ban: the score uses the time until the
// next of those reads instead of the staleness, so what is read soon goes last.
//
// Invariants: those of engine.h. Thread rule: one thread at a time.
// Complexity: O(edges of the storage) to evict or bring back; O(1) amortised to release.
// Source: paper sections 3.1 to 3.3.
#ifndef COOP_CORE_ENGINE_RESIDENCY_H_
#define COOP_CORE_ENGINE_RESIDENCY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/base/types.h"
#include "cc/core/engine/demand.h"
#include "cc/core/engine/engine.h"
#include "cc/core/engine/graph.h"
#include "cc/core/engine/neighborhood.h"
#include "cc/core/engine/next_use.h"
#include "cc/core/pool/block_list.h"

namespace coop {

class Residency {
 public:
  explicit Residency(const EngineOptions& options);

  // --- Reading ---
  [[nodiscard]] const EngineOptions& options() const { return options_; }
  [[nodiscard]] const Graph& graph() const { return graph_; }
  [[nodiscard]] const BlockList& blocks() const { return blocks_; }
  [[nodiscard]] const Neighborhood& neighborhood() const { return neighborhood_; }
  [[nodiscard]] const EngineStats& stats() const { return scalars_.stats; }
  [[nodiscard]] double clock_seconds() const { return scalars_.clock_seconds; }

  // Could be evicted, pins aside.
  [[nodiscard]] bool IsEvictable(const Storage& storage) const {
    return storage.state == StorageState::kResident && storage.has_recipe();
  }
  [[nodiscard]] bool IsEvictableNow(StorageId id) const {
    const Hold& hold = holds_[static_cast<size_t>(id)];
    return hold.pins == 0 && IsEvictable(graph_.storage(id));
  }
  [[nodiscard]] double ProjectedCost(StorageId id) const {
    const Storage& storage = graph_.storage(id);
    if (storage.evicted_neighbors == 0) return storage.cost_seconds;
    return storage.cost_seconds + neighborhood_.CostAround(id);
  }
  // Something evicted will be made from it, and the policy cares. `besides`: edges to operations
  // that are about to run and do not count.
  [[nodiscard]] bool IsWorthKeeping(StorageId id, int32_t besides = 0) const {
    return options_.policy.keep_demanded && demand_.IsDemanded(id, besides);
  }
  // What evicting a resident storage costs, by the policy and what it is worth to the front end.
  // Never not-a-number. Inline: the window search asks it of every block.
  [[nodiscard]] double Score(StorageId id) const {
    return IsTreasured(id) ? TreasureScore(id) : upcoming_.Worth(id) * PolicyScore(id);
  }
  // Held, and said to be out of proportion to make again, and that counts now.
  [[nodiscard]] bool IsTreasured(StorageId id) const {
    return upcoming_.IsTreasured(id) && treasuring_ && graph_.storage(id).refs > 0;
  }
  [[nodiscard]] bool WasTreasured(StorageId id) const { return upcoming_.IsTreasured(id); }
  [[nodiscard]] bool AnyTreasured() const { return upcoming_.any_treasured(); }
  [[nodiscard]] double PolicyScore(StorageId id) const {
    return PolicyScore(id, [&] { return ProjectedCost(id); });
  }
  // Not above its score, which is that if it is not dear: what is evicted around it is not looked
  // at. (All steps from a cost to a score are monotone.)
  [[nodiscard]] double ScoreAtLeast(StorageId id) const {
    if (IsTreasured(id)) return TreasureScore(id);
    return upcoming_.Worth(id) * PolicyScore(id, [&] { return graph_.storage(id).cost_seconds; });
  }
  // Its projected cost takes a walk; at all; for this storage.
  [[nodiscard]] bool ScoresAreDear() const {
    return neighborhood_.mode() != NeighborhoodMode::kUnionFind;
  }
  [[nodiscard]] bool IsScoreDear(StorageId id) const {
    return ScoresAreDear() && graph_.storage(id).evicted_neighbors > 0 && !IsTreasured(id);
  }
  template <typename Cost>
  [[nodiscard]] double PolicyScore(StorageId id, Cost cost) const {
    const Storage& storage = graph_.storage(id);
    const Hold& hold = holds_[static_cast<size_t>(id)];
    // Nothing will read it but recomputations, and none of those under way: it goes first.
    if (storage.refs == 0 && hold.protects == 0 && options_.policy.unheld_first &&
        !demand_.IsKept(id)) {
      return 0;
    }
    const double cost_seconds = cost();
    // Staleness guesses when it is read next; for what waiting operations read that is known.
    double staleness_seconds = hold.protects > 0 ? pending_seconds_ - hold.read_at_seconds
                               : looks_ahead_    ? SecondsUntilRead(id)
                                                 : scalars_.clock_seconds - storage.last_access;
    staleness_seconds = std::max(staleness_seconds, kMinStalenessSeconds);
    if (!scores_by_size_) return cost_seconds / staleness_seconds;
    const Block& block = blocks_[storage.block];
    int64_t bytes = block.bytes;
    // Without the window nothing else accounts for sizes, so Coop scores as DTE (appendix B).
    if (options_.policy.heuristic != Heuristic::kDtr) {
      bytes += blocks_.AdjacentFreeBytes(storage.block);
    }
    return cost_seconds / (static_cast<double>(bytes) * staleness_seconds);
  }
  // Until the program reads it, or something that is made from it and is not there. Staleness where
  // nothing is known.
  [[nodiscard]] double SecondsUntilRead(StorageId id) const;
  // Nobody waits for it, and the front end will not read it.
  [[nodiscard]] bool IsOfNoUse(StorageId id) const {
    return IsEvictableNow(id) && protects(id) == 0 && upcoming_.IsReadNever(id);
  }
  // From where an operation that makes so many bytes takes its memory, by the policy.
  [[nodiscard]] Side SideOf(double cost_seconds, int64_t bytes) const {
    if (!options_.policy.cheap_partitioning) return Side::kLeft;
    const double least = options_.expensive_seconds_per_byte * static_cast<double>(bytes);
    return cost_seconds >= least ? Side::kLeft : Side::kRight;
  }
  // Bytes of the largest run of neighbours that are free or evictable now.
  [[nodiscard]] int64_t LargestWindowBytes() const;
  [[nodiscard]] int64_t EvictableBytesNow() const;
  // What a failure says of the pool: every size but that of the request, and all held blocks.
  void Describe(Failure* failure) const;
  // Free bytes / pool bytes.
  [[nodiscard]] double Fragmentation() const;

  // --- Storages and operations ---
  StorageId AddStorage(const Storage& storage);
  OperationId AddOperation(std::span<const StorageId> inputs, std::span<const OutputSpec> outputs,
                           double cost_seconds, bool recomputable);
  void Retain(StorageId id) {
    ++graph_.MutableStorage(id).refs;
    demand_.Update(id);
  }
  void Release(StorageId id);
  void MakePermanent(StorageId id);
  void Forget(OperationId id);

  // --- Memory ---
  BlockId Take(BlockId free_block, int64_t bytes, Side side, int32_t holder);
  BlockId TakeAt(int64_t offset, int64_t bytes, int32_t holder);
  void FreeScratch(BlockId block);
  void Reserve(BlockId free_block, int64_t bytes);
  void Unreserve();
  // Drops the memory of an evictable storage; returns the free block that contains its block.
  BlockId Evict(StorageId id);
  // Takes a resident storage to a free part of the pool.
  void Move(StorageId id, int64_t offset);
  // Drops it as nobody's victim: listed in freed, not counted as an eviction.
  void Discard(StorageId id);
  void CountAdopted(int64_t bytes, Side side);
  [[nodiscard]] Side AdoptionSide() const;
  void ResetPeak() {
    scalars_.stats.peak_in_use_bytes = scalars_.stats.in_use_bytes + scalars_.stats.outside_bytes;
    scalars_.stats.peak_outside_bytes = scalars_.stats.outside_bytes;
    scalars_.stats.peak_pool_bytes = scalars_.stats.in_use_bytes;
  }
  // Before scores are asked for.
  void BeginSearch() { neighborhood_.Wake(); }
  void CountSearch(double fragmentation);
  void CountSearchSeconds(double seconds) { scalars_.stats.search_seconds += seconds; }

  // --- Running. The caller has placed the outputs in scratch blocks. ---
  struct PlacedOutput {
    OutputId output = kNone;
    BlockId block = kNone;       // kNone: outside, or in place
    StorageId storage = kNone;   // kNone: scratch
    StorageId in_place = kNone;  // the input whose block it takes
    int32_t in_place_input = kNone;
  };
  // Emits the kRun action and makes the books say that it was carried out.
  void CommitRun(OperationId id, std::span<const PlacedOutput> outputs);

  // The short way, and the way back from it: see the engine's functions of these names.
  bool RunDirectly(std::span<const StorageId> inputs, const OutputSpec& output, double cost_seconds,
                   bool recomputable, Engine::DirectRun* run);
  void TakeBack(StorageId output);

  // --- Pins ---
  void Pin(StorageId id, int32_t change) { HoldOf(id).pins += change; }
  void Protect(StorageId id, int32_t change) { HoldOf(id).protects += change; }
  // --- What is known of the future ---
  void SetNow(double program_seconds) { upcoming_.SetNow(program_seconds); }
  void SetNextRead(StorageId id, double at_seconds) { upcoming_.SetNextRead(id, at_seconds); }
  void SetWorth(StorageId id, double factor) { upcoming_.SetWorth(id, factor); }
  void Treasure(StorageId id) { upcoming_.Treasure(id); }
  // Whether treasures are any more than other storages.
  void set_treasuring(bool treasuring) { treasuring_ = treasuring; }
  void ForgetFuture() { upcoming_.Clear(); }

  [[nodiscard]] int32_t pins(StorageId id) const { return holds_[static_cast<size_t>(id)].pins; }
  [[nodiscard]] int32_t protects(StorageId id) const {
    return holds_[static_cast<size_t>(id)].protects;
  }
  // Waiting operations are a stack. Seconds count from its bottom: pending_seconds is the cost of
  // all of them, and what is read next by one of them is read once those above it have run.
  [[nodiscard]] double pending_seconds() const { return pending_seconds_; }
  void set_pending_seconds(double seconds) { pending_seconds_ = seconds; }
  // Says where in the stack the next reader is; returns what was said before.
  double ReadAt(StorageId id, double seconds) {
    return std::exchange(HoldOf(id).read_at_seconds, seconds);
  }
  void ClearPins() { holds_.assign(holds_.size(), {}); }

  // --- Transactions ---
  struct Scalars {
    EngineStats stats;
    double clock_seconds = 1.0;
    int64_t adopted_left_bytes = 0;
    int64_t adopted_right_bytes = 0;
  };
  struct MarkPoint {
    BlockList::MarkPoint blocks;
    Graph::MarkPoint graph;
    Neighborhood::MarkPoint neighborhood;
    size_t demand = 0;
    Scalars scalars;
    size_t actions = 0;
    size_t placements = 0;
    size_t retired = 0;
  };
  void Begin();
  void Commit();
  void SyncMarks();
  [[nodiscard]] MarkPoint Mark() const;
  void RollbackTo(const MarkPoint& mark);
  size_t Abort(size_t actions_done);
  // Changes whenever something that was resident may no longer be.
  [[nodiscard]] int64_t losses() const { return losses_; }

  std::vector<Action> actions;
  std::vector<Placement> placements;
  std::vector<StorageId> freed;
  std::vector<OperationId> retired;

  void Validate() const;
  [[nodiscard]] uint64_t Fingerprint() const;

 private:
  struct Hold {
    int32_t pins = 0;
    int32_t protects = 0;
    double read_at_seconds = 0;  // while protects > 0: pending_seconds up to its next reader
  };

  // Above the scores of all but what was read a moment ago: to lose that while an operation is
  // prepared is to bring it back for ever. The less has to be copied, the better.
  [[nodiscard]] double TreasureScore(StorageId id) const {
    return 1e6 + 1e3 * static_cast<double>(graph_.storage(id).bytes);
  }
  [[nodiscard]] Hold& HoldOf(StorageId id) { return holds_[static_cast<size_t>(id)]; }
  void UpdateUse();
  void Emit(const Action& action) { actions.push_back(action); }
  void ReportGone(StorageId id);
  BlockId MakeEvicted(StorageId id);
  void TakeInPlace(StorageId input);
  // Of a run that overwrote a source: that cannot come back, so what was made from it must not
  // need it.
  void MakeOutputsPermanent(OperationId id, std::span<const PlacedOutput> outputs);
  void LoseLiveOutput(OperationId id);
  void Retire(OperationId id);
  void Kill(StorageId id);
  void CollectUnwanted();

  // Keeps scores finite where nothing has run since the last access, or everything costs nothing.
  static constexpr double kMinStalenessSeconds = 1e-9;

  EngineOptions options_;
  bool scores_by_size_;
  bool looks_ahead_;
  BlockList blocks_;
  Graph graph_;
  Neighborhood neighborhood_;
  Demand demand_;
  Upcoming upcoming_;
  Scalars scalars_;
  std::vector<Hold> holds_;  // parallel to the storages
  double pending_seconds_ = 0;
  bool treasuring_ = true;
  bool recording_ = false;
  int64_t losses_ = 0;
  std::vector<StorageId> unwanted_;  // work list of CollectUnwanted
  std::vector<MarkPoint> marks_;     // [n]: after n actions
};

}  // namespace coop

#endif  // COOP_CORE_ENGINE_RESIDENCY_H_
