#include "cc/core/engine/engine.h"

#include <cmath>

#include "cc/core/base/check.h"
#include "cc/core/engine/engine_impl.h"

namespace coop {
namespace {

// Beyond this, adding one cost to another loses the other.
constexpr double kMaxCostSeconds = 1e12;

double ClampCost(double cost_seconds) {
  if (!(cost_seconds > 0)) return 0;  // also not-a-number
  return std::min(cost_seconds, kMaxCostSeconds);
}

EngineOptions Checked(EngineOptions options) {
  Require(options.capacity_bytes >= 0, "capacity_bytes must not be negative");
  Require(
      options.alignment_bytes > 0 && (options.alignment_bytes & (options.alignment_bytes - 1)) == 0,
      "alignment_bytes must be a power of two");
  Require(options.max_recompute >= 0, "max_recompute must not be negative");
  if (std::isnan(options.expensive_seconds_per_byte)) options.expensive_seconds_per_byte = 0;
  return options;
}

// In checked builds, after every mutation.
void AfterMutation(const Engine& engine) {
#if COOP_CHECKED
  engine.Validate();
#else
  (void)engine;
#endif
}

const Storage& Known(const Residency& memory, StorageId storage) {
  Require(memory.graph().IsStorage(storage), "no such storage");
  return memory.graph().storage(storage);
}

}  // namespace

Engine::Engine(const EngineOptions& options) : impl_(std::make_unique<Impl>(Checked(options))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;

StorageId Engine::AddForeign(int64_t offset, int64_t bytes, bool donated) {
  Residency& memory = impl_->memory;
  memory.Commit();
  Require(bytes >= 0, "bytes must not be negative");
  Require(offset % memory.options().alignment_bytes == 0, "a foreign block must be aligned");
  const BlockId block = memory.TakeAt(offset, memory.blocks().RoundUp(bytes), kScratchBlock);
  Require(block != kNone, "a foreign block must lie in a free part of the pool");
  const StorageId storage = memory.AddStorage({.bytes = bytes,
                                               .refs = 1,
                                               .block = block,
                                               .state = StorageState::kResident,
                                               .may_overwrite = donated});
  AfterMutation(*this);
  return storage;
}

StorageId Engine::AddOutside(int64_t bytes) {
  Residency& memory = impl_->memory;
  memory.Commit();
  Require(bytes >= 0, "bytes must not be negative");
  const StorageId storage = memory.AddStorage(
      {.bytes = bytes, .refs = 1, .state = StorageState::kResident, .outside = true});
  AfterMutation(*this);
  return storage;
}

StorageId Engine::AddAdopted(int64_t bytes) {
  impl_->memory.Commit();
  Require(bytes >= 0, "bytes must not be negative");
  const StorageId storage = impl_->AddAdopted(bytes);
  AfterMutation(*this);
  return storage;
}

bool Engine::Reserve(int64_t bytes) {
  impl_->memory.Commit();
  Require(bytes >= 0, "bytes must not be negative");
  const bool done = impl_->Reserve(bytes);
  AfterMutation(*this);
  return done;
}

void Engine::Unreserve() {
  impl_->memory.Commit();
  impl_->memory.Unreserve();
  AfterMutation(*this);
}

std::vector<Range> Engine::ReservedBlocks() const {
  const BlockList& blocks = impl_->memory.blocks();
  std::vector<Range> reserved;
  for (BlockId b = blocks.first(); b != kNone; b = blocks[b].next) {
    if (blocks[b].holder == kReservedBlock) reserved.push_back({blocks[b].offset, blocks[b].bytes});
  }
  return reserved;
}

OperationId Engine::AddOperation(std::span<const StorageId> inputs,
                                 std::span<const OutputSpec> outputs, double cost_seconds,
                                 bool recomputable) {
  Residency& memory = impl_->memory;
  memory.Commit();
  for (const StorageId input : inputs) {
    const Storage& storage = Known(memory, input);
    Require(storage.refs > 0 && storage.state != StorageState::kConsumed,
            "inputs of an operation must be held, and not overwritten");
  }
  for (const OutputSpec& output : outputs) {
    Require(output.bytes >= 0, "bytes must not be negative");
    Require(output.in_place_input >= kNone &&
                output.in_place_input < static_cast<int64_t>(inputs.size()),
            "in_place_input must be the position of an input");
    Require(output.place >= kNone &&
                (output.place == kNone || output.place % memory.options().alignment_bytes == 0),
            "a place must be an aligned offset");
  }
  const OperationId operation =
      memory.AddOperation(inputs, outputs, ClampCost(cost_seconds), recomputable);
  AfterMutation(*this);
  return operation;
}

void Engine::OutputsOf(OperationId operation, std::vector<StorageId>* outputs) const {
  const Graph& graph = impl_->memory.graph();
  Require(graph.IsOperation(operation), "no such operation");
  outputs->clear();
  for (OutputId o = graph.operation(operation).first_output; o != kNone; o = graph.output(o).next) {
    outputs->push_back(graph.output(o).storage);
  }
}

bool Engine::Run(OperationId operation) {
  const Graph& graph = impl_->memory.graph();
  impl_->memory.Commit();
  Require(graph.IsOperation(operation) && !graph.operation(operation).executed,
          "Run needs an operation that has not run");
  for (EdgeId e = graph.operation(operation).first_edge; e != kNone;
       e = graph.edge(e).next_in_operation) {
    const StorageState state = graph.storage(graph.edge(e).storage).state;
    Require(state == StorageState::kResident || state == StorageState::kEvicted,
            "the inputs of an operation must exist when it runs");
  }
  const bool done = impl_->Run(operation);
  AfterMutation(*this);
  return done;
}

bool Engine::RunDirectly(std::span<const StorageId> inputs, const OutputSpec& output,
                         double cost_seconds, bool recomputable, DirectRun* run) {
  Residency& memory = impl_->memory;
  memory.Commit();
  if (memory.options().policy.evict_always || output.bytes < 0 || output.in_place_input != kNone ||
      output.side != SideHint::kByPolicy) {
    return false;
  }
  const bool done = memory.RunDirectly(inputs, output, ClampCost(cost_seconds), recomputable, run);
  AfterMutation(*this);
  return done;
}

void Engine::TakeBack(const DirectRun& run) {
  impl_->memory.Commit();
  Require(impl_->memory.graph().IsStorage(run.output), "no such storage");
  impl_->memory.TakeBack(run.output);
  AfterMutation(*this);
}

void Engine::Forget(OperationId operation) {
  const Graph& graph = impl_->memory.graph();
  impl_->memory.Commit();
  Require(graph.IsOperation(operation) && !graph.operation(operation).executed,
          "only operations that have not run can be forgotten");
  for (OutputId o = graph.operation(operation).first_output; o != kNone; o = graph.output(o).next) {
    const StorageId output = graph.output(o).storage;
    Require(output == kNone || graph.storage(output).needed_by == 0,
            "the outputs of a forgotten operation must not be inputs of another");
  }
  impl_->memory.Forget(operation);
  AfterMutation(*this);
}

bool Engine::Materialize(StorageId storage) {
  impl_->memory.Commit();
  const StorageState state = Known(impl_->memory, storage).state;
  Require(state == StorageState::kResident || state == StorageState::kEvicted,
          "only a storage that has been computed can be materialized");
  const bool done = impl_->Materialize(storage);
  AfterMutation(*this);
  return done;
}

void Engine::EvictAll() {
  impl_->memory.Commit();
  impl_->EvictAll();
  AfterMutation(*this);
}

bool Engine::Discard(StorageId storage) {
  impl_->memory.Commit();
  const bool evictable = IsEvictable(storage);
  if (evictable) impl_->memory.Discard(storage);
  AfterMutation(*this);
  return evictable;
}

size_t Engine::Abort(size_t actions_done) {
  const size_t done = impl_->memory.Abort(actions_done);
  AfterMutation(*this);
  return done;
}

const std::vector<Action>& Engine::actions() const { return impl_->memory.actions; }
const std::vector<Placement>& Engine::placements() const { return impl_->memory.placements; }
const Failure& Engine::failure() const { return impl_->failure; }
Failure Engine::Describe() const {
  Failure failure;
  impl_->memory.Describe(&failure);
  return failure;
}

void Engine::MakePermanent(StorageId storage) {
  impl_->memory.Commit();
  Require(Known(impl_->memory, storage).state == StorageState::kResident,
          "only a resident storage can be made permanent");
  impl_->memory.MakePermanent(storage);
  AfterMutation(*this);
}

void Engine::Retain(StorageId storage) {
  impl_->memory.Commit();
  Require(Known(impl_->memory, storage).state != StorageState::kConsumed,
          "a storage that was overwritten cannot be held");
  impl_->memory.Retain(storage);
  AfterMutation(*this);
}

void Engine::Release(StorageId storage) {
  impl_->memory.Commit();
  Require(Known(impl_->memory, storage).refs > 0, "only held storages can be released");
  impl_->memory.Release(storage);
  AfterMutation(*this);
}

void Engine::SetNow(double program_seconds) {
  Require(program_seconds >= 0, "a program's time is not negative");
  impl_->memory.SetNow(program_seconds);
}

void Engine::SetNextRead(StorageId storage, double at_seconds) {
  Known(impl_->memory, storage);
  Require(at_seconds >= 0, "a program's time is not negative");
  impl_->memory.SetNextRead(storage, at_seconds);
}

void Engine::SetWorth(StorageId storage, double factor) {
  Known(impl_->memory, storage);
  Require(factor >= 0 && factor <= kMostWorth, "a worth is a number from 0 to kMostWorth");
  impl_->memory.SetWorth(storage, factor);
}

void Engine::Treasure(StorageId storage) {
  Known(impl_->memory, storage);
  impl_->memory.Treasure(storage);
}

bool Engine::IsTreasured(StorageId storage) const {
  Known(impl_->memory, storage);
  return impl_->memory.WasTreasured(storage);
}

void Engine::ForgetFuture() { impl_->memory.ForgetFuture(); }

const std::vector<StorageId>& Engine::freed() const { return impl_->memory.freed; }
const std::vector<OperationId>& Engine::retired() const { return impl_->memory.retired; }

void Engine::ClearFreed() {
  impl_->memory.freed.clear();
  impl_->memory.retired.clear();
}

StorageState Engine::StateOf(StorageId storage) const {
  const Graph& graph = impl_->memory.graph();
  return graph.IsStorage(storage) ? graph.storage(storage).state : StorageState::kDead;
}

int64_t Engine::OffsetOf(StorageId storage) const {
  const BlockId block = Known(impl_->memory, storage).block;
  return block == kNone ? -1 : impl_->memory.blocks()[block].offset;
}

int64_t Engine::BytesOf(StorageId storage) const { return Known(impl_->memory, storage).bytes; }
int32_t Engine::RefsOf(StorageId storage) const { return Known(impl_->memory, storage).refs; }

bool Engine::IsPermanent(StorageId storage) const {
  return Known(impl_->memory, storage).permanent;
}

bool Engine::IsEvictable(StorageId storage) const {
  return impl_->memory.IsEvictable(Known(impl_->memory, storage));
}

double Engine::ProjectedCost(StorageId storage) const {
  return ProjectedCost(storage, impl_->memory.options().policy.neighborhood);
}

double Engine::ProjectedCost(StorageId storage, NeighborhoodMode mode) const {
  const Neighborhood& neighborhood = impl_->memory.neighborhood();
  Require(mode != NeighborhoodMode::kUnionFind || mode == neighborhood.mode(),
          "union-find costs are known only under a policy that keeps them");
  impl_->memory.BeginSearch();
  return Known(impl_->memory, storage).cost_seconds + neighborhood.CostAround(storage, mode);
}

double Engine::ScoreOf(StorageId storage) const {
  Require(Known(impl_->memory, storage).block != kNone,
          "only storages resident in the pool have a score");
  impl_->memory.BeginSearch();
  return impl_->memory.Score(storage);
}

int64_t Engine::largest_free_block_bytes() const {
  return impl_->memory.blocks().LargestFreeBytes();
}

int64_t Engine::live_storages() const { return impl_->memory.graph().live_storages(); }
int64_t Engine::live_operations() const { return impl_->memory.graph().live_operations(); }
double Engine::clock_seconds() const { return impl_->memory.clock_seconds(); }
int64_t Engine::tried_recomputations() const { return impl_->tried_recomputations(); }
void Engine::ResetPeak() {
  impl_->memory.Commit();
  impl_->memory.ResetPeak();
}
const EngineStats& Engine::stats() const { return impl_->memory.stats(); }
const EngineOptions& Engine::options() const { return impl_->memory.options(); }

bool Engine::SearchOnly(int64_t bytes) const {
  return impl_->evictor->Choose(impl_->memory, impl_->memory.blocks().RoundUp(bytes), Side::kLeft);
}

void Engine::Validate() const { impl_->memory.Validate(); }
uint64_t Engine::Fingerprint() const { return impl_->memory.Fingerprint(); }

}  // namespace coop
