// What is learned of a call, and what the next one makes of it.

#include "cc/core/planner/call_history.h"

#include <gtest/gtest.h>

#include <span>
#include <stdexcept>
#include <vector>

#include "cc/core/engine/engine.h"
#include "cc/core/engine/next_use.h"
#include "cc/core/planner/plan.h"
#include "small_pool.h"

namespace coop::testing {
namespace {

// A front end: an engine, and a history that sees what it does.
class Call {
 public:
  explicit Call(History* history, const EngineOptions& options, bool follow = true)
      : engine(options), history_(history) {
    history->Begin(follow);
  }

  StorageId Source() {
    const StorageId storage = engine.AddOutside(kBlock);
    history_->NewSource(storage, false);
    return storage;
  }

  StorageId Run(uint64_t what, const std::vector<StorageId>& inputs = {}, int64_t blocks = 1) {
    ReleaseDue();
    std::vector<OutputSpec> specs{{.bytes = blocks * kBlock}};
    history_->Expect(&engine, what, inputs, &specs);
    const OperationId op = engine.AddOperation(inputs, specs, 1e-3, true);
    std::vector<StorageId> outputs;
    engine.OutputsOf(op, &outputs);
    history_->Added(&engine, what, inputs, outputs, specs, 1e-3, true);
    EXPECT_TRUE(engine.Run(op));
    engine.Validate();
    return outputs.front();
  }

  void Release(StorageId storage) {
    ReleaseDue();
    if (!history_->Released(storage)) engine.Release(storage);
  }

  // Hands a storage out; false where there is no room for it.
  bool Take(StorageId storage) {
    history_->Read(&engine, storage);
    if (!engine.Materialize(storage)) return false;
    history_->Taken(storage);
    engine.MakePermanent(storage);
    engine.Validate();
    return true;
  }

  void ReleaseDue() {
    if (!history_->HasDue()) return;
    for (const StorageId storage : history_->TakeDue()) engine.Release(storage);
  }

  void Read(StorageId storage) {
    ReleaseDue();
    history_->Read(&engine, storage);
    ASSERT_TRUE(engine.Materialize(storage));
  }

  [[nodiscard]] bool Evicted(StorageId storage) const {
    return engine.StateOf(storage) == StorageState::kEvicted;
  }

  Engine engine;

 private:
  History* history_;
};

// Two values, of which the first is read first; a third one needs the room of one of them.
std::vector<bool> EvictedOfTwo(Call* call, uint64_t third = 3) {
  const StorageId first = call->Run(1);
  const StorageId second = call->Run(2);
  call->Run(third);
  std::vector<bool> evicted{call->Evicted(first), call->Evicted(second)};
  call->Run(8, {first});
  call->Run(9, {second});
  return evicted;
}

using Pair = std::vector<bool>;

TEST(HistoryTest, WhatIsReadLastGoesOnceThatIsKnown) {
  History history;
  for (int n = 0; n < 3; ++n) {
    Call call(&history, LookaheadOptions(2));
    EXPECT_EQ(EvictedOfTwo(&call), n == 0 ? Pair({true, false}) : Pair({false, true}));
    EXPECT_TRUE(history.Finish());
    EXPECT_EQ(history.repetitions(), n);
  }
}

TEST(HistoryTest, WhoDoesNotFollowOnlyRecords) {
  History history;
  for (int n = 0; n < 2; ++n) {
    Call call(&history, LookaheadOptions(2), /*follow=*/false);
    EXPECT_EQ(EvictedOfTwo(&call), Pair({true, false}));
    EXPECT_TRUE(history.Finish());
  }
  EXPECT_EQ(history.repetitions(), 1);
}

TEST(HistoryTest, AtTheFirstDifferenceWhatWasSaidIsTakenBack) {
  History history;
  {
    Call call(&history, LookaheadOptions(2));
    EvictedOfTwo(&call);
    EXPECT_TRUE(history.Finish());
  }
  Call call(&history, LookaheadOptions(2));
  EXPECT_EQ(EvictedOfTwo(&call, 4), Pair({true, false}));  // as where nothing is known
  EXPECT_TRUE(history.Finish());
  EXPECT_EQ(history.repetitions(), 0);
  EXPECT_EQ(history.record().what[2], 4u);  // and it is what is expected now
  Call again(&history, LookaheadOptions(2));
  EXPECT_EQ(EvictedOfTwo(&again, 4), Pair({false, true}));
}

// Three results, each made from a value of four blocks, and all evicted when they are handed out.
std::vector<StorageId> ThreeResults(Call* call) {
  std::vector<StorageId> results;
  for (const uint64_t n : {1, 2, 3}) {
    const StorageId large = call->Run(n, {}, 4);
    results.push_back(call->Run(10 + n, {large}));
    call->Release(large);
  }
  call->Release(call->Run(20, {}, 7));
  return results;
}

TEST(HistoryTest, WhatIsRecordedIsPlannedAsItHappened) {
  for (const int64_t blocks : {7, 8, 9}) {
    History history;
    const EngineOptions options = LookaheadOptions(blocks);
    for (int n = 0; n < 3; ++n) {
      Call call(&history, options);
      std::vector<int64_t> offsets;
      for (const StorageId result : ThreeResults(&call)) {
        ASSERT_TRUE(call.Take(result));
        offsets.push_back(call.engine.OffsetOf(result));
      }
      EXPECT_TRUE(history.Finish());
      EXPECT_EQ(history.record().program.kept, history.record().program.outputs);
      if (n == 0) continue;  // nothing was known
      PlanOptions as_it_went;
      as_it_went.engine = options;
      const Plan plan = MakePlan(history.record().program, as_it_went);
      ASSERT_TRUE(plan.feasible);
      EXPECT_EQ(plan.output_offsets, offsets);
      EXPECT_EQ(plan.stats.recomputations, call.engine.stats().recomputations);
      EXPECT_EQ(plan.stats.evictions, call.engine.stats().evictions);
      EXPECT_EQ(plan.stats.operations, call.engine.stats().operations);
    }
  }
}

TEST(HistoryTest, ValuesOutsideCountAsTheBudgetCountsThem) {
  History history;
  Call call(&history, LookaheadOptions(2));
  const StorageId source = call.engine.AddOutside(4);
  history.NewSource(source, false);
  call.Run(1, {source});
  EXPECT_TRUE(history.Finish());
  EXPECT_EQ(history.record().program.storage_bytes[0], RoundUpOutside(4));
}

TEST(HistoryTest, OtherOperandsAreADifference) {
  History history;
  for (const bool swapped : {false, true}) {
    Call call(&history, LookaheadOptions(8));
    const StorageId a = call.Run(1);
    const StorageId b = call.Run(1);
    call.Run(2, swapped ? std::vector{b, a} : std::vector{a, b});
    EXPECT_TRUE(history.Finish());
    EXPECT_EQ(history.repetitions(), 0);
  }
}

TEST(HistoryTest, IdsOfTheEngineDoNotMatter) {
  History history;
  for (int n = 0; n < 2; ++n) {
    Call call(&history, LookaheadOptions(8));
    if (n == 1) call.engine.AddOutside(kBlock);  // shifts all ids
    const StorageId source = call.Source();
    const StorageId a = call.Run(1, {source});
    const StorageId b = call.Run(2, {a});
    call.Release(a);
    call.Run(3, {b, source});
    EXPECT_TRUE(history.Finish());
    EXPECT_EQ(history.repetitions(), n);
  }
}

TEST(HistoryTest, WhatWasNotFinishedIsForgotten) {
  History history;
  {
    Call call(&history, LookaheadOptions(2));
    EvictedOfTwo(&call);
    EXPECT_TRUE(history.Finish());
  }
  const CallRecord before = history.record();
  {
    Call call(&history, LookaheadOptions(2));
    call.Run(7);  // an error ends it
  }
  {
    Call call(&history, LookaheadOptions(2));
    call.Run(1);
    history.Break(&call.engine);  // or it goes on after one
    call.Run(8);
    EXPECT_FALSE(history.Finish());
  }
  EXPECT_TRUE(history.record() == before);
  Call call(&history, LookaheadOptions(2));
  EXPECT_EQ(EvictedOfTwo(&call), Pair({false, true}));
}

TEST(HistoryTest, WhoHasNoRoomGivesUpWhatWasExpected) {
  History history;
  for (const bool gives_up : {false, true}) {
    Call call(&history, LookaheadOptions(2));
    const StorageId first = call.Run(1);
    EXPECT_EQ(history.GiveUp(&call.engine), gives_up);  // the first time nothing was expected
    call.Run(2);
    call.Run(3);
    EXPECT_TRUE(call.Evicted(first));
    call.Read(first);
    EXPECT_TRUE(history.Finish());
    EXPECT_EQ(history.gave_up(), gives_up);
  }
}

TEST(HistoryTest, AdviceIsToldAndGoesWithTheProgram) {
  History history;
  {
    Call call(&history, LookaheadOptions(4));
    EXPECT_EQ(call.engine.OffsetOf(call.Run(1)), 0);
    call.Run(2);
    EXPECT_TRUE(history.Finish());
  }
  EXPECT_THROW(history.Advise({1.0}, {}, {}, {}), std::invalid_argument);
  history.Advise({}, {}, {2 * kBlock, kNone}, {});
  Call call(&history, LookaheadOptions(4));
  EXPECT_EQ(call.engine.OffsetOf(call.Run(1)), 2 * kBlock);
  EXPECT_EQ(call.engine.OffsetOf(call.Run(9)), 0);
  EXPECT_TRUE(history.Finish());  // another program
  Call other(&history, LookaheadOptions(4));
  EXPECT_EQ(other.engine.OffsetOf(other.Run(1)), 0);
}

// Layers that a backward pass reads, each by way of a value that goes at once; what it did.
EngineStats ForthAndBack(History* history) {
  Call call(history, LookaheadOptions(6));
  const StorageId source = call.Source();
  StorageId x = source;
  std::vector<StorageId> layers;
  for (int layer = 0; layer < 8; ++layer) {
    const StorageId before = call.Run(4, {x});
    layers.push_back(call.Run(1, {before}));
    call.Release(before);
    x = layers.back();
  }
  StorageId gradient = call.Run(2, {layers.back()});
  for (int layer = 7; layer >= 0; --layer) {
    const StorageId next = call.Run(3, {gradient, layers[static_cast<size_t>(layer)]});
    call.Release(gradient);
    call.Release(layers[static_cast<size_t>(layer)]);
    gradient = next;
  }
  call.Read(gradient);
  history->Taken(gradient);
  call.engine.MakePermanent(gradient);
  EXPECT_TRUE(history->Finish());
  return call.engine.stats();
}

TEST(HistoryTest, WhatIsRecordedIsAProgramWhosePlanIsWhatHappens) {
  History history;
  ForthAndBack(&history);
  std::vector<int64_t> evictions;
  for (const bool hold : {false, true}) {
    PlanOptions options;
    options.engine = LookaheadOptions(6);
    if (hold) {
      // What the first, third and fifth layer are made from: until they are read, or nearly.
      options.held_for.assign(history.record().program.storage_bytes.size(), kNone);
      for (const size_t layer : {0u, 2u, 4u}) {
        options.held_for[1 + 2 * layer] = static_cast<int32_t>(24 - layer - layer / 3);
      }
      history.Advise({}, {}, {}, options.held_for);
    }
    const Plan plan = MakePlan(history.record().program, options);
    ASSERT_TRUE(plan.feasible);
    const EngineStats done = ForthAndBack(&history);
    EXPECT_GT(done.recomputations, 0);
    EXPECT_EQ(plan.stats.recomputations, done.recomputations);
    EXPECT_EQ(plan.stats.evictions, done.evictions);
    EXPECT_EQ(plan.stats.peak_in_use_bytes, done.peak_in_use_bytes);
    evictions.push_back(done.evictions);
  }
  EXPECT_NE(evictions[0], evictions[1]);  // it made a difference
}

TEST(HistoryTest, WhatIsHeldGoesWhenItsOperationHasRunOrNothingIsFollowed) {
  for (const uint64_t third : {3u, 9u}) {
    History history;
    for (int n = 0; n < 2; ++n) {
      Call call(&history, LookaheadOptions(8));
      const StorageId held = call.Run(1);
      const StorageId other = call.Run(2, {held});
      call.Release(held);
      EXPECT_EQ(call.engine.StateOf(held) == StorageState::kResident, n == 1);
      call.Run(n == 0 ? 3 : third, {other});
      call.ReleaseDue();
      // At the first difference it goes at once, else after the fourth.
      EXPECT_EQ(call.engine.StateOf(held) == StorageState::kResident, n == 1 && third == 3);
      if (third == 9 && n == 1) break;
      call.Run(4, {other});
      call.ReleaseDue();
      EXPECT_NE(call.engine.StateOf(held), StorageState::kResident);
      EXPECT_FALSE(history.HasDue());
      EXPECT_TRUE(history.Finish());
      EXPECT_THROW(history.Advise({}, {}, {}, {4, kNone, kNone, kNone}), std::invalid_argument);
      EXPECT_THROW(history.Advise({}, {}, {}, {1}), std::invalid_argument);
      history.Advise({}, {}, {}, {3, kNone, kNone, kNone});
    }
  }
}

TEST(HistoryTest, WhatIsDiscardedIsDiscardedInItsPlan) {
  History history;
  Call call(&history, LookaheadOptions(4));
  const StorageId first = call.Run(1);
  const StorageId second = call.Run(2, {first});
  history.Discarded(first);
  ASSERT_TRUE(call.engine.Discard(first));
  call.Run(3, {second});
  EXPECT_TRUE(history.Finish());
  PlanOptions options;
  options.engine = LookaheadOptions(4);
  const Plan plan = MakePlan(history.record().program, options);
  ASSERT_TRUE(plan.feasible);
  ASSERT_GE(plan.actions.size(), 3u);
  EXPECT_EQ(plan.actions[2].kind, ActionKind::kEvict);
  EXPECT_EQ(plan.actions[2].id, 0);
}

// --- Places (OutputSpec::place) ---

StorageId RunAt(Engine* engine, int64_t place, const std::vector<StorageId>& inputs = {}) {
  const OutputSpec spec{.bytes = kBlock, .place = place};
  const OperationId op = engine->AddOperation(inputs, std::span(&spec, 1), 1e-3, true);
  std::vector<StorageId> outputs;
  engine->OutputsOf(op, &outputs);
  EXPECT_TRUE(engine->Run(op));
  engine->Validate();
  return outputs.front();
}

TEST(PlaceTest, IsTakenWhereNothingOfUseLies) {
  Engine engine(LookaheadOptions(4));
  const StorageId first = RunAt(&engine, 2 * kBlock);
  EXPECT_EQ(engine.OffsetOf(first), 2 * kBlock);
  EXPECT_EQ(engine.OffsetOf(RunAt(&engine, 2 * kBlock)), 0);  // it is not known to be of no use
  engine.SetNextRead(first, 1.0);
  EXPECT_EQ(engine.OffsetOf(RunAt(&engine, 2 * kBlock)), kBlock);
  engine.SetNextRead(first, Upcoming::kNever);
  EXPECT_EQ(engine.OffsetOf(RunAt(&engine, 2 * kBlock)), 2 * kBlock);
  EXPECT_EQ(engine.StateOf(first), StorageState::kEvicted);
}

TEST(PlaceTest, WhatTheOperationReadsStays) {
  Engine engine(LookaheadOptions(4));
  const StorageId first = RunAt(&engine, 0);
  engine.SetNextRead(first, Upcoming::kNever);
  EXPECT_EQ(engine.OffsetOf(RunAt(&engine, 0, {first})), kBlock);
  EXPECT_EQ(engine.StateOf(first), StorageState::kResident);
}

TEST(PlaceTest, OutsideThePoolOrCrookedIsRefused) {
  Engine engine(LookaheadOptions(4));
  EXPECT_EQ(engine.OffsetOf(RunAt(&engine, 1000 * kBlock)), 0);  // no such place: anywhere
  for (const int64_t place : {int64_t{1}, int64_t{-64}}) {
    const OutputSpec spec{.bytes = kBlock, .place = place};
    EXPECT_THROW(static_cast<void>(engine.AddOperation({}, std::span(&spec, 1), 1e-3, true)),
                 std::invalid_argument);
  }
}

}  // namespace
}  // namespace coop::testing
