#include "tests/core/checked_engine.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace coop::testing {

void Require(bool condition, const std::string& what, int32_t id) {
  if (!condition)
    throw std::logic_error("checked engine: " + what + " (" + std::to_string(id) + ")");
}

CheckedEngine::CheckedEngine(const EngineOptions& options)
    : options_(options),
      engine_(options),
      memory_(options.capacity_bytes, options.alignment_bytes) {}

OperationId CheckedEngine::Add(std::span<const StorageId> inputs, std::span<const OutputSpec> specs,
                               double cost_seconds, bool recomputable) {
  Recipe recipe{.seed = next_seed_++,
                .cost_seconds = cost_seconds,
                .recomputable = recomputable,
                .inputs = {inputs.begin(), inputs.end()},
                .outputs = {},
                .specs = {specs.begin(), specs.end()}};
  uint64_t content = recipe.seed;
  for (const StorageId input : inputs) content = Mix(content, memory_.ContentOf(input));
  const OperationId op = engine_.AddOperation(inputs, specs, cost_seconds, recomputable);
  engine_.OutputsOf(op, &recipe.outputs);
  Require(recipe.outputs.size() == specs.size(), "OutputsOf does not name each output", op);
  for (size_t k = 0; k < specs.size(); ++k) {
    const StorageId output = recipe.outputs[k];
    max_storage_ = std::max(max_storage_, output);
    Require(!held_.contains(output), "a new storage has the id of a held one", output);
    memory_.Define(output, specs[k].bytes, specs[k].outside, Mix(content, k));
  }
  Require(!recipes_.contains(op), "a new operation has the id of a live one", op);
  recipes_[op] = std::move(recipe);
  return op;
}

bool CheckedEngine::Run(OperationId operation, std::optional<size_t> abort_at) {
  const uint64_t before = engine_.Fingerprint();
  const Recipe recipe = recipes_.at(operation);  // a copy: it may be retired by its own run
  if (!engine_.Run(operation)) {
    Require(engine_.Fingerprint() == before, "a failed Run changed the state", operation);
    Require(engine_.freed().empty(), "a failed Run freed memory", operation);
    Require(engine_.retired().empty(), "a failed Run retired operations", operation);
    Require(engine_.failure().reason != FailureReason::kNoFailure, "a failure without a reason");
    ++counters_.failed_runs;
    return false;
  }
  if (!Execute(operation, abort_at)) {
    Require(abort_at.has_value(), "Run did not run the operation", operation);
    for (const StorageId output : recipe.outputs) {
      Require(engine_.StateOf(output) == StorageState::kUnborn, "an aborted output is not unborn",
              output);
    }
    ++counters_.aborted_runs;
    TakeFreedAndRetired();
    return false;
  }
  ++counters_.runs;
  for (size_t k = 0; k < recipe.outputs.size(); ++k) {
    held_[recipe.outputs[k]] =
        Known{.outside = recipe.specs[k].outside, .recomputable = recipe.recomputable};
  }
  TakeFreedAndRetired();
  return true;
}

void CheckedEngine::Forget(OperationId operation) {
  engine_.Forget(operation);
  recipes_.erase(operation);
  TakeFreedAndRetired();
}

std::optional<std::vector<StorageId>> CheckedEngine::Submit(std::span<const StorageId> inputs,
                                                            std::span<const OutputSpec> specs,
                                                            double cost_seconds,
                                                            bool recomputable) {
  const OperationId op = Add(inputs, specs, cost_seconds, recomputable);
  const std::vector<StorageId> outputs = recipes_.at(op).outputs;
  if (!Run(op)) {
    Forget(op);
    return std::nullopt;
  }
  std::set<StorageId> offered;
  for (const OutputSpec& spec : specs) {
    if (spec.in_place_input != kNone) offered.insert(inputs[spec.in_place_input]);
  }
  for (const StorageId input : offered) Release(input);
  return outputs;
}

bool CheckedEngine::RunDirectly(std::span<const StorageId> inputs, const OutputSpec& spec,
                                double cost_seconds, bool recomputable, bool take_back) {
  const uint64_t before = engine_.Fingerprint();
  Engine::DirectRun run;
  if (!engine_.RunDirectly(inputs, spec, cost_seconds, recomputable, &run)) {
    Require(engine_.Fingerprint() == before, "a refused RunDirectly changed the state");
    return false;
  }
  ++counters_.direct;
  const uint64_t seed = next_seed_++;
  uint64_t content = seed;
  for (const StorageId input : inputs) content = Mix(content, memory_.ContentOf(input));
  max_storage_ = std::max(max_storage_, run.output);
  Require(!held_.contains(run.output), "a new storage has the id of a held one", run.output);
  Require(spec.outside == (run.offset < 0), "an output lies where it was not asked to", run.output);
  Require((run.operation != kNone) == (recomputable && !spec.outside),
          "exactly what can be recomputed has a recipe", run.output);
  memory_.Define(run.output, spec.bytes, spec.outside, Mix(content, 0));
  if (run.operation != kNone) {
    Require(!recipes_.contains(run.operation), "a new operation has the id of a live one",
            run.operation);
    recipes_[run.operation] = {.seed = seed,
                               .cost_seconds = cost_seconds,
                               .recomputable = true,
                               .inputs = {inputs.begin(), inputs.end()},
                               .outputs = {run.output},
                               .specs = {spec}};
  }
  const std::vector<FakePlacement> places{{run.output, run.offset, kNone}};
  memory_.Run(seed, std::vector(inputs.begin(), inputs.end()), std::vector{run.output},
              std::vector{spec.bytes}, places);
  if (take_back) {
    const int64_t operations = engine_.stats().operations;
    engine_.TakeBack(run);
    Require(engine_.stats().operations == operations - 1, "what was taken back did not run");
    ++counters_.taken_back;
  } else {
    ++counters_.runs;
    held_[run.output] = Known{.outside = spec.outside, .recomputable = recomputable};
  }
  TakeFreedAndRetired();
  return true;
}

std::optional<StorageId> CheckedEngine::AddForeign(int64_t offset, int64_t bytes, bool donated) {
  const uint64_t before = engine_.Fingerprint();
  const bool free = memory_.Free(offset, bytes);
  StorageId storage = kNone;
  try {
    storage = engine_.AddForeign(offset, bytes, donated);
  } catch (const std::invalid_argument&) {
    Require(!free, "refused a foreign block where there was room");
    Require(engine_.Fingerprint() == before, "a refused foreign block changed the state");
    return std::nullopt;
  }
  Require(free, "took a foreign block where there was no room", storage);
  Hold(storage, Known{.source = true, .donated = donated}, bytes, offset);
  return storage;
}

std::optional<StorageId> CheckedEngine::AddAdopted(int64_t bytes) {
  const uint64_t before = engine_.Fingerprint();
  const StorageId storage = engine_.AddAdopted(bytes);
  if (storage == kNone) {
    Require(engine_.Fingerprint() == before, "a refused adoption changed the state");
    return std::nullopt;
  }
  Hold(storage, Known{.source = true, .donated = true}, bytes, engine_.OffsetOf(storage));
  return storage;
}

StorageId CheckedEngine::AddOutside(int64_t bytes) {
  const StorageId storage = engine_.AddOutside(bytes);
  Hold(storage, Known{.source = true, .outside = true}, bytes, -1);
  return storage;
}

void CheckedEngine::Hold(StorageId storage, const Known& known, int64_t bytes, int64_t offset) {
  Require(!held_.contains(storage), "a new storage has the id of a held one", storage);
  max_storage_ = std::max(max_storage_, storage);
  memory_.Define(storage, bytes, known.outside, next_seed_++);
  memory_.Put(storage, offset);
  held_[storage] = known;
}

bool CheckedEngine::Materialize(StorageId storage, std::optional<size_t> abort_at) {
  const uint64_t before = engine_.Fingerprint();
  if (!engine_.Materialize(storage)) {
    Require(engine_.Fingerprint() == before, "a failed Materialize changed the state", storage);
    return false;
  }
  if (!engine_.actions().empty()) ++counters_.materialized;
  Execute(kNone, abort_at);
  if (!abort_at) memory_.Read(storage);
  TakeFreedAndRetired();
  return true;
}

bool CheckedEngine::Reserve(int64_t bytes, std::optional<size_t> abort_at) {
  const uint64_t before = engine_.Fingerprint();
  if (!engine_.Reserve(bytes)) {
    Require(engine_.Fingerprint() == before, "a failed Reserve changed the state");
    return false;
  }
  Execute(kNone, abort_at);
  ++counters_.reservations;
  BlockReservations();
  TakeFreedAndRetired();
  if (!abort_at) Require(reserved_bytes() >= bytes, "reserved too little");
  return true;
}

// What the engine says is reserved must be free in memory, and stays untouched from now on.
void CheckedEngine::BlockReservations() {
  for (const Range& range : reserved_) memory_.Unblock(range.offset);
  reserved_ = engine_.ReservedBlocks();
  for (const Range& range : reserved_) memory_.Block(range.offset, range.bytes);
}

int64_t CheckedEngine::reserved_bytes() const {
  int64_t bytes = 0;
  for (const Range& range : reserved_) bytes += range.bytes;
  return bytes;
}

void CheckedEngine::EvictAll(std::optional<size_t> abort_at) {
  engine_.EvictAll();
  Execute(kNone, abort_at);
  TakeFreedAndRetired();
}

void CheckedEngine::MakePermanent(StorageId storage) {
  engine_.MakePermanent(storage);
  held_.at(storage).permanent = true;
  TakeFreedAndRetired();
}

void CheckedEngine::Retain(StorageId storage) {
  engine_.Retain(storage);
  ++held_.at(storage).refs;
}

void CheckedEngine::Release(StorageId storage) {
  const auto known = held_.find(storage);
  if (--known->second.refs == 0) held_.erase(known);
  engine_.Release(storage);
  TakeFreedAndRetired();
}

bool CheckedEngine::Discard(StorageId storage) {
  const bool evictable = engine_.IsEvictable(storage);
  const bool discarded = engine_.Discard(storage);
  Require(discarded == evictable, "exactly what is evictable is discarded", storage);
  TakeFreedAndRetired();
  Require(!discarded || !memory_.Held(storage), "discarded but still there", storage);
  return discarded;
}

bool CheckedEngine::Execute(OperationId own, std::optional<size_t> abort_at) {
  const std::vector<Action> actions = engine_.actions();  // copies: Abort may shorten them
  const std::vector<Placement> placements = engine_.placements();
  size_t done = actions.size();
  if (abort_at) {
    done = engine_.Abort(std::min(*abort_at, actions.size()));
    Require(done <= actions.size() && done >= std::min(*abort_at, actions.size()),
            "Abort counts actions that were not asked for");
    ++counters_.aborts;
  }
  bool ran = false;
  for (size_t a = 0; a < done; ++a) {
    const Action& action = actions[a];
    log_ = Mix(Mix(log_, static_cast<uint64_t>(action.kind)), static_cast<uint64_t>(action.id));
    if (action.kind == ActionKind::kEvict) {
      ++counters_.evictions;
      memory_.Drop(action.id);
    } else if (action.kind == ActionKind::kDrop) {
      ++counters_.drops;
      memory_.Kill(action.id);
    } else {
      const bool is_own = action.id == own && !ran;
      ran |= is_own;
      ExecuteRun(action,
                 std::span(placements).subspan(action.first_placement, action.placement_count),
                 is_own);
    }
  }
  return ran;
}

void CheckedEngine::ExecuteRun(const Action& action, std::span<const Placement> placements,
                               bool is_own) {
  const auto found = recipes_.find(action.id);
  Require(found != recipes_.end(), "ran an operation that was retired", action.id);
  const Recipe& recipe = found->second;
  Require(action.recompute == !is_own, "recompute is said of the wrong run", action.id);
  Require(is_own || recipe.recomputable, "replayed an impure operation", action.id);
  if (!is_own) ++counters_.recomputations;
  std::vector<FakePlacement> places;
  std::vector<int64_t> bytes;
  for (const OutputSpec& spec : recipe.specs) bytes.push_back(spec.bytes);
  for (const Placement& place : placements) {
    places.push_back({place.storage, place.offset, place.in_place_input});
    if (place.storage == kNone && place.offset >= 0) ++counters_.scratch;
    if (place.in_place_input == kNone) continue;
    Require(options_.policy.in_place, "in place though switched off", action.id);
    ++counters_.in_place;
    const auto input = held_.find(recipe.inputs[place.in_place_input]);
    if (input == held_.end()) continue;
    // Its one reference is the offer. A recomputation overwrites only what nobody holds.
    Require(is_own && input->second.refs == 1, "a held value was overwritten", input->first);
    Require(!input->second.source || input->second.donated, "overwrote what is not donated",
            input->first);
    if (input->second.source) ++counters_.in_place_sources;
  }
  memory_.Run(recipe.seed, recipe.inputs, recipe.outputs, bytes, places);
}

void CheckedEngine::TakeFreedAndRetired() {
  for (const StorageId storage : engine_.freed()) {
    if (engine_.StateOf(storage) == StorageState::kEvicted) {
      memory_.Drop(storage);
    } else {
      memory_.Kill(storage);
    }
  }
  for (const OperationId op : engine_.retired()) {
    Require(recipes_.erase(op) == 1, "retired an operation that is not live", op);
  }
  engine_.ClearFreed();
}

void CheckedEngine::Check() const {
  engine_.Validate();
  for (StorageId s = 0; s <= max_storage_; ++s) {
    const bool resident = engine_.StateOf(s) == StorageState::kResident;
    Require(resident == memory_.Held(s),
            resident ? "resident but not in memory" : "in memory but not resident", s);
    if (!resident) continue;
    Require(engine_.OffsetOf(s) == memory_.OffsetOf(s), "the engine has it elsewhere", s);
    memory_.Read(s);
  }
  for (const auto& [storage, known] : held_) {
    const StorageState state = engine_.StateOf(storage);
    const bool there = state == StorageState::kResident;
    Require(there || state == StorageState::kEvicted, "a held storage is gone", storage);
    const bool has_no_recipe =
        known.source || known.permanent || known.outside || !known.recomputable;
    Require(there || !has_no_recipe, "evicted what has no recipe", storage);
    Require(engine_.RefsOf(storage) == known.refs, "references differ", storage);
    Require(engine_.BytesOf(storage) == memory_.BytesOf(storage), "bytes differ", storage);
  }
  const EngineStats& stats = engine_.stats();
  Require(stats.operations == counters_.runs, "operations are miscounted");
  Require(stats.recomputations == counters_.recomputations, "recomputations are miscounted");
  Require(stats.evictions == counters_.evictions, "evictions are miscounted");
  Require(stats.in_use_bytes == memory_.held_bytes(), "bytes in use differ");
  Require(stats.outside_bytes == memory_.outside_bytes(), "bytes outside differ");
  Require(stats.reserved_bytes == reserved_bytes(), "bytes reserved differ");
  Require(stats.peak_in_use_bytes >= memory_.peak_bytes(), "the peak is too low");
  Require(memory_.held_bytes() + reserved_bytes() <= options_.capacity_bytes, "over the capacity");
}

void CheckedEngine::Finish() {
  while (!held_.empty()) {
    const StorageId storage = held_.begin()->first;
    Materialize(storage);
    while (held_.contains(storage)) Release(storage);
    Check();
  }
  Require(engine_.live_storages() == 0, "storages are left over");
  Require(engine_.live_operations() == 0, "operations are left over");
  Require(engine_.stats().in_use_bytes == 0, "bytes in use are left over");
  Require(engine_.stats().outside_bytes == 0, "bytes outside are left over");
  Require(recipes_.empty(), "recipes were not retired");
}

}  // namespace coop::testing
