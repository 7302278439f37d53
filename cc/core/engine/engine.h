// The engine: a deterministic planner of placement, eviction and recomputation.
//
// Model. It knows only metadata: sizes, costs, a logical clock, references. It is told of storages
// and operations and answers with ordered actions (drop this memory, run that operation with its
// outputs there); an executor carries them out, a simulator does not. No I/O, no JAX, no threads.
//
//   refs(s)       references held by the front end
//   needed_by(s)  input edges of operations that may still be replayed ("live" ones)
//   wanted(s)   = refs(s) > 0 or needed_by(s) > 0; a storage that is not wanted is dead
//   live(op)    = not yet run, or recomputable and at least one output is wanted, not permanent and
//                 not outside. An operation that stops being live drops its input edges; that is
//                 what collects recipes nothing can need any more.
//   evictable(s)= resident in the pool, not permanent, has a live recipe, not pinned now
//
// Invariants (Validate): blocks tile the pool and no two free ones touch; a resident storage and
// its block name each other; refs and edges agree; every evicted storage that is wanted can be
// recomputed from what is resident; byte counters agree.
//
// Failure. Run, Materialize, Reserve and EvictAll are transactions: where they return false the
// state is what it was before, Fingerprint() included. After one that succeeded, Abort(n) goes back
// to the state in which only its first n actions were carried out. The next mutating call commits.
//
// Actions. actions() and placements() are those of the last transaction. A storage whose memory
// goes during a transaction shows up as a kEvict or kDrop action, in order; a run that takes its
// input's block in place names it in the placement instead. Memory that goes in any other call is
// listed in freed().
//
// Thread rule: one thread at a time. Complexity: O(inputs + outputs + log free blocks) for an
// operation without pressure; a search is O(blocks).
// Source: paper sections 3.2 to 3.5.
#ifndef COOP_CORE_ENGINE_ENGINE_H_
#define COOP_CORE_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cc/core/base/types.h"

namespace coop {

enum class StorageState : uint8_t {
  kDead,      // the id is free
  kUnborn,    // its operation has not run
  kResident,  // has memory, in the pool or outside
  kEvicted,   // has a recipe
  kConsumed,  // a source whose block an in-place output took; only Release may follow
};

class Engine {
 public:
  // Throws std::invalid_argument for a negative capacity or an alignment that is no power of two.
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  // --- Sources: storages without a recipe, never evicted. Each starts with one reference. ---

  // A block at a fixed, aligned place. `donated`: an in-place output may overwrite it. Throws
  // std::invalid_argument where it is outside the pool or not free.
  StorageId AddForeign(int64_t offset, int64_t bytes, bool donated);
  // An input that lives outside the pool; only counted.
  StorageId AddOutside(int64_t bytes);
  // A source that the executor copies into the pool, at the end of it with fewer adopted bytes.
  // Counts as donated. Evicts nothing; kNone where no free block is large enough (see failure()).
  [[nodiscard]] StorageId AddAdopted(int64_t bytes);

  // --- Workspace ---

  // Keeps blocks of together at least `bytes` from everybody, at the right end where possible,
  // evicting if it must, several where one does not fit. Grows only. A transaction.
  [[nodiscard]] bool Reserve(int64_t bytes);
  // Gives all of them back.
  void Unreserve();
  [[nodiscard]] std::vector<Range> ReservedBlocks() const;  // in address order

  // --- Operations ---

  // Adds an operation that has not run. Every input must be held by the caller (refs > 0) until
  // its Run. Each output starts unborn with one reference; OutputsOf lists them.
  OperationId AddOperation(std::span<const StorageId> inputs, std::span<const OutputSpec> outputs,
                           double cost_seconds, bool recomputable);
  // The outputs of an operation that is live, in order; kNone for dead ones. Valid until the next
  // call that adds or removes a storage.
  void OutputsOf(OperationId operation, std::vector<StorageId>* outputs) const;

  // Brings in the inputs, places the outputs, runs. The operation's own run is the last action
  // (but for kDrop of inputs that the caller let go of before).
  // False: see failure(); nothing has changed, the caller may Forget the operation.
  // Afterwards the id stays valid only while the operation is live (see retired()).
  [[nodiscard]] bool Run(OperationId operation);
  // What AddOperation and Run do with an operation that has one output, where its inputs are
  // resident and a block is free: the short way of nearly every operation, in a few hundred
  // instructions. No transaction. A place that is asked for is taken where that is free. False:
  // nothing has changed, and AddOperation and Run say what has to happen, or what is wrong.
  struct DirectRun {
    OperationId operation = kNone;  // kNone: nothing will ever run it again
    StorageId output = kNone;
    int64_t offset = -1;  // -1: outside the pool
  };
  [[nodiscard]] bool RunDirectly(std::span<const StorageId> inputs, const OutputSpec& output,
                                 double cost_seconds, bool recomputable, DirectRun* run);
  // The last RunDirectly did not come about: its output goes, all references to it included.
  void TakeBack(const DirectRun& run);
  // Drops an operation that has not run, with its outputs (all their references).
  void Forget(OperationId operation);
  // Brings a storage back, if it is evicted, and nothing else. A transaction.
  [[nodiscard]] bool Materialize(StorageId storage);
  // Evicts everything evictable. A transaction.
  void EvictAll();
  // Goes back to the state in which only the first `actions_done` actions of the last transaction
  // were carried out. kDrop actions directly after those belong to them; returns the number of
  // actions that count as done (the executor drops what is between). If the operation's own run is
  // not among them its outputs are unborn again, and the caller may Run it again or Forget it.
  size_t Abort(size_t actions_done);

  [[nodiscard]] const std::vector<Action>& actions() const;
  [[nodiscard]] const std::vector<Placement>& placements() const;
  // Why the last transaction that returned false did (or AddAdopted).
  [[nodiscard]] const Failure& failure() const;
  // What is in the pool now, as a failure would say it; without a reason or a request.
  [[nodiscard]] Failure Describe() const;

  // --- References ---

  // A resident storage that is never evicted again and whose recipe is given up.
  void MakePermanent(StorageId storage);
  void Retain(StorageId storage);
  // The last reference: the storage dies, or, if a recomputation may need it, is evicted at once
  // (and stays resident if it has no recipe, or if something evicted that is held will be made
  // from it: see demand.h and Policy::keep_demanded).
  void Release(StorageId storage);
  // Drops the memory of a storage that is evictable, without its being an eviction to make room:
  // the front end expects no further use, but keeps its references. False where it is not.
  bool Discard(StorageId storage);
  // Storages whose memory is gone since ClearFreed, except through actions. An id in it may already
  // be that of a new storage if storages were added in between: take it before adding.
  [[nodiscard]] const std::vector<StorageId>& freed() const;
  // Operations that will never run again since ClearFreed: their executables can be let go. (Take
  // it before adding operations, and after the transaction's actions were carried out.)
  [[nodiscard]] const std::vector<OperationId>& retired() const;
  void ClearFreed();

  // --- The future, where the front end knows it (for Heuristic::kLookahead; see next_use.h) ---

  // How far the program is, in seconds of its own operations. Not negative.
  void SetNow(double program_seconds);
  // When, on that clock, the front end will read the storage next. Not negative.
  void SetNextRead(StorageId storage, double at_seconds);
  // How much more (or less) than its score says a storage is worth keeping; 1 if nothing is said,
  // from 0 to kMostWorth. Of every heuristic's scores.
  static constexpr double kMostWorth = 1e6;
  void SetWorth(StorageId storage, double factor);
  // To make it again would take what nobody expects (most of the program, say): while it is held it
  // is moved, if that may be, rather than evicted, and goes only where nothing else helps.
  void Treasure(StorageId storage);
  [[nodiscard]] bool IsTreasured(StorageId storage) const;
  // Takes back what the first three above said: the front end was wrong.
  void ForgetFuture();

  // --- Looking ---

  [[nodiscard]] StorageState StateOf(StorageId storage) const;
  [[nodiscard]] int64_t OffsetOf(StorageId storage) const;  // -1: not in the pool now
  [[nodiscard]] int64_t BytesOf(StorageId storage) const;   // as asked
  [[nodiscard]] int32_t RefsOf(StorageId storage) const;
  [[nodiscard]] bool IsPermanent(StorageId storage) const;
  [[nodiscard]] bool IsEvictable(StorageId storage) const;
  // Cost to run the producer plus that of the evicted neighbourhood, by the policy's mode or by
  // the given one. kUnionFind may be asked for only where the policy uses it.
  [[nodiscard]] double ProjectedCost(StorageId storage) const;
  [[nodiscard]] double ProjectedCost(StorageId storage, NeighborhoodMode mode) const;
  // What the policy pays for evicting the storage now; 0 where refs are 0 (but see
  // Policy::unheld_first).
  [[nodiscard]] double ScoreOf(StorageId storage) const;
  [[nodiscard]] int64_t largest_free_block_bytes() const;
  [[nodiscard]] int64_t live_storages() const;
  [[nodiscard]] int64_t live_operations() const;
  [[nodiscard]] double clock_seconds() const;
  // Since the engine was made, those that were undone, too; not part of the state.
  [[nodiscard]] int64_t tried_recomputations() const;
  [[nodiscard]] const EngineStats& stats() const;
  // Lets peak_in_use_bytes begin anew from what is in use now.
  void ResetPeak();
  [[nodiscard]] const EngineOptions& options() const;
  // Evicts nothing; chooses a window as the next request of that many bytes would. For benchmarks.
  [[nodiscard]] bool SearchOnly(int64_t bytes) const;

  // Recomputes everything derived from scratch and compares. Throws std::logic_error naming the
  // broken invariant. O(storages + operations + edges + blocks).
  void Validate() const;
  // Hash of the whole state except failure() and the measured search time.
  [[nodiscard]] uint64_t Fingerprint() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coop

#endif  // COOP_CORE_ENGINE_ENGINE_H_
