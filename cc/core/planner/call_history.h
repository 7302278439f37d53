// What a front end did in its last call, for the next one: it may do the same again.
//
// Model. A call is a list of operations, of reads by the front end itself (operations without
// outputs that cost nothing), of last references and memory that go, and of results.
// Storages are numbered as they come up, so that two calls that do the same have the same numbers
// whatever ids the engine gives them. What is recorded is a Program, which can be planned (see
// plan.h); `Advise` says what its plan told the engine. It has all that a plan must do as the call
// will, to find room where that does: reads, results that are permanent from the moment they are
// handed out, values outside the pool as the budget counts them.
// While a call does what the last one did, the engine is told the rest of it: when each storage is
// read next, what it is worth, to which side it goes. At the first difference all of it is taken
// back, and the engine goes on with what it knows itself.
// Invariants: knowledge is the engine's to use; no result depends on it. A call that is not
// finished (an error) is forgotten, what was recorded before stays.
// Thread rule: one thread at a time. Complexity: O(inputs + outputs) an operation.
// Source: ours; the paper's evictions know the past alone.
#ifndef COOP_CORE_PLANNER_CALL_HISTORY_H_
#define COOP_CORE_PLANNER_CALL_HISTORY_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cc/core/engine/engine.h"
#include "cc/core/planner/next_uses.h"
#include "cc/core/planner/plan.h"

namespace coop {

// One call. Sources are the inputs of the program, where the engine had them.
struct CallRecord {
  Program program;
  std::vector<uint64_t> what;    // by operation: what it is; 0 for a read
  std::vector<int32_t> made_by;  // by storage: the operation; kNone for a source

  friend bool operator==(const CallRecord& a, const CallRecord& b);
};

class History {
 public:
  // --- The front end, in a call. Engine ids of one engine, which is told if `follow`. ---

  void Begin(bool follow);
  // The id is that of a new source.
  void NewSource(StorageId storage, bool donated);
  // An operation that is about to be added: says where its outputs go.
  void Expect(Engine* engine, uint64_t what, std::span<const StorageId> inputs,
              std::vector<OutputSpec>* outputs);
  // It was added, and is about to run. `what` is not 0.
  void Added(Engine* engine, uint64_t what, std::span<const StorageId> inputs,
             std::span<const StorageId> outputs, std::span<const OutputSpec> specs,
             double cost_seconds, bool recomputable);
  // The front end itself is about to read a storage.
  void Read(Engine* engine, StorageId storage);
  // The last reference to a storage is about to go. True if it is to stay all the same, for what is
  // made from it again: then TakeDue names it later.
  [[nodiscard]] bool Released(StorageId storage);
  // Storages whose references go now, after those that stayed had their time, or because nothing is
  // followed any more. In the order in which they were released.
  [[nodiscard]] bool HasDue() const {
    return !held_.empty() && (!follows_ || held_until_ < Rows());
  }
  [[nodiscard]] std::vector<StorageId> TakeDue();
  // The front end has given up the memory of a storage, not the storage.
  void Discarded(StorageId storage);
  // The storage is a result of the call.
  void Taken(StorageId storage);
  // There was no room by what was expected. False if nothing was followed.
  bool GiveUp(Engine* engine);
  // An operation or a read has failed: nothing of this call is recorded any more.
  void Break(Engine* engine);
  // The call is complete. What it did is what the next one is expected to do. False if it was
  // broken: then nothing is known of it.
  bool Finish();

  // --- Between calls ---

  // Whether anything is recorded.
  [[nodiscard]] bool empty() const { return record_.what.empty(); }
  [[nodiscard]] const CallRecord& record() const { return record_; }
  // Whether the call does what is recorded, so far.
  [[nodiscard]] bool follows() const { return follows_; }
  // Whether the last call gave up.
  [[nodiscard]] bool gave_up() const { return gave_up_; }
  // Calls in a row that did what the one before did, to the end.
  [[nodiscard]] int64_t repetitions() const { return repetitions_; }
  // What to tell of the recorded storages: factors of their scores, sides, places; each empty for
  // nothing, and what they are held for (see PlanOptions). Throws std::invalid_argument where there
  // are not as many, or no such operations. Taken back by a Finish of a call that did something
  // else.
  void Advise(std::vector<double> worth, std::vector<SideHint> sides, std::vector<int64_t> places,
              std::vector<int32_t> held_for);

 private:
  // Operations and reads so far.
  [[nodiscard]] int32_t Rows() const { return static_cast<int32_t>(now_.what.size()); }
  int32_t NumberOf(const Engine& engine, StorageId storage);
  [[nodiscard]] int32_t Known(StorageId storage) const;
  void SetNumber(StorageId storage, int32_t number);
  // Whether the next operation is the one recorded.
  bool Matches(const Engine& engine, uint64_t what, std::span<const StorageId> inputs);
  // Nothing is followed any more.
  bool Leave(Engine* engine);
  void Tell(Engine* engine, std::span<const StorageId> inputs, std::span<const StorageId> outputs);

  CallRecord record_;  // of the last complete call
  Reads reads_;        // of it
  std::vector<double> worth_;
  std::vector<SideHint> sides_;
  std::vector<int64_t> places_;
  std::vector<int32_t> held_for_;
  int64_t repetitions_ = 0;

  CallRecord now_;       // of this call
  bool agrees_ = false;  // with record_ so far
  bool follows_ = false;
  bool gave_up_ = false;
  bool broken_ = false;
  std::vector<int32_t> numbers_;  // by engine id; kNone: none yet
  std::vector<uint8_t> donated_;  // by engine id, of sources
  // Released and still held: until which operation, in the order of the releases.
  std::vector<std::pair<int32_t, StorageId>> held_;
  int32_t held_until_ = 0;  // the first of those operations
};

}  // namespace coop

#endif  // COOP_CORE_PLANNER_CALL_HISTORY_H_
