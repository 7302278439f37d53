// The inside of the engine: preparing runs.
//
// Model: to run an operation, its inputs must be resident. Frames on an explicit stack stand for
// operations that wait: the lowest is the requested one, above it lie the recomputations that it
// needs, all the way up to what is resident, in program order with the first one on top. So a value
// that several of them share is recomputed once, and the peak is that of the program itself.
// A frame whose inputs are all resident pins them, places its outputs and runs. Inputs of waiting
// frames may be evicted; their score is by the time until they are read, which is known (they come
// back then; a bound on the number of recomputations ends this where it would go on for ever). Then
// frames are pushed for one input at a time, and pin what they have while they wait: nothing is
// lost twice, and what several frames share is made for each.
//
// In place: an output takes its input's block if nothing else will read the input there. Where the
// input has no recipe it is settled first: whatever may still be recomputed from it is recomputed
// now and made permanent, so that no recipe reads overwritten data. Where that finds no room the
// output gets a fresh block (copy-on-write) and the source stays.
//
// Invariants: pins and protection are zero between transactions.
// Thread rule and complexity: as engine.h. Source: paper sections 3.2, 3.4, 3.5.
#ifndef COOP_CORE_ENGINE_ENGINE_IMPL_H_
#define COOP_CORE_ENGINE_ENGINE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cc/core/base/types.h"
#include "cc/core/engine/engine.h"
#include "cc/core/engine/evictor.h"
#include "cc/core/engine/residency.h"

namespace coop {

class Engine::Impl {
 public:
  explicit Impl(const EngineOptions& options)
      : memory(options), evictor(MakeEvictor(options.policy)) {}

  [[nodiscard]] bool Run(OperationId operation);
  [[nodiscard]] bool Materialize(StorageId storage);
  [[nodiscard]] bool Reserve(int64_t bytes);
  void EvictAll();
  StorageId AddAdopted(int64_t bytes);
  [[nodiscard]] int64_t tried_recomputations() const { return tried_recomputations_; }

  Residency memory;
  std::unique_ptr<Evictor> evictor;
  Failure failure;

 private:
  using PlacedOutput = Residency::PlacedOutput;

  struct Frame {
    OperationId operation = kNone;
    double seconds_below = 0;  // cost of the frames below it
    bool pinned = false;       // inputs are pinned instead of protected
  };
  // What ReadAt said of a frame's input before that frame: once for each of its input edges.
  struct LaterReader {
    StorageId storage = kNone;
    double at_seconds = 0;
  };

  bool Prepare(OperationId operation);
  // What is treasured stays, but where everything is evicted always.
  void EvictEverything();
  void PushFrame(OperationId operation);
  void PopFrame();
  void PinTop();
  void PinInputs(OperationId operation, int32_t change);
  bool RunFramesAbove(size_t floor);
  // Pushes frames for everything that must be recomputed before the operation can run; false if
  // nothing must.
  bool PushMissing(OperationId operation);
  // False for a recomputation that a frame above it has carried out in the meantime.
  [[nodiscard]] bool IsWaitedFor(OperationId operation) const;
  // As many as EngineOptions allows were made, or tried.
  [[nodiscard]] bool MayRecomputeNoMore() const;
  // By EngineOptions::max_recompute; a large number where that is 0.
  [[nodiscard]] int64_t MostRecomputations() const;
  [[nodiscard]] bool IsAtLimit() const;
  bool RunTop();
  void ChooseOutputs();
  void DecideInPlace(size_t index);
  // False: the source must not be overwritten; nothing has changed.
  bool Settle(OperationId operation, StorageId source);
  // Fills dependents_. False: an operation that is yet to run reads the source.
  bool FindDependents(OperationId operation, StorageId source);
  bool PlaceOutputs();
  // At the place that was asked for; false if that is not free, or none was.
  bool PlaceAsAsked(PlacedOutput* placed);
  bool PlaceTogether(size_t placed_count, Side side);
  BlockId RoomAtRightEnd(int64_t bytes);
  // `apart`: for a large treasure, which is to lie where nothing is brought back around it.
  BlockId FindRoom(int64_t bytes, Side side, bool apart = false);
  BlockId MakeRoom(int64_t bytes, Side side, bool apart);
  // The rightmost run without treasures that may be evicted.
  BlockId RightmostRoom(int64_t bytes);
  bool Fail(FailureReason reason, int64_t requested_bytes);
  [[nodiscard]] Side SideOf(OperationId operation) const;
  [[nodiscard]] Side SideOf(OutputId output, Side by_policy) const;
  [[nodiscard]] int64_t OutputBytes(OperationId operation) const;
  [[nodiscard]] int32_t EdgesBetween(OperationId operation, StorageId storage) const;
  void Undo(const Residency::MarkPoint& mark, size_t floor);

  std::vector<Frame> frames_;
  std::vector<LaterReader> later_readers_;  // a stack, as frames_
  std::vector<PlacedOutput> placed_;        // of the frame that is about to run
  std::vector<size_t> order_;
  std::vector<StorageId> dependents_;  // of Settle
  std::vector<StorageId> walk_;
  std::vector<uint8_t> seen_;
  std::vector<OperationId> missing_;  // of PushMissing
  size_t permanents_made_ = 0;        // how often settling changed something
  int64_t recomputations_left_ = 0;
  int64_t tried_recomputations_ = 0;  // those that were undone, too
  // Of this attempt, see Prepare.
  bool keep_requested_inputs_ = true;
  bool one_by_one_ = false;  // frames pin what they have from the beginning on
};

}  // namespace coop

#endif  // COOP_CORE_ENGINE_ENGINE_IMPL_H_
