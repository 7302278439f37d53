// How long the engine takes, beside what it may take.
//
// Measured: the engine's own work for an operation that fits (add, run, release), a plan per
// operation, one window search with its scoring, and an operation under pressure.
// What the numbers do not mean: no operation is executed and nothing is copied; the pools are full
// of equal blocks, which is what makes searches longest, and everything is in cache.
//
// Run: coop_bench [google-benchmark's flags]. Thread rule: one thread.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/core/engine/engine.h"
#include "cc/core/planner/plan.h"

#ifdef COOP_GOOGLE_BENCHMARK
#include <benchmark/benchmark.h>
#endif

namespace coop {
namespace {

constexpr int64_t kBlockBytes = 4096;
constexpr int kStepOperations = 256;

struct Case {
  std::string name;
  double target_us = 0;  // 0: for information
  int items = 1;         // what one call does; times are per item
  int calls = 1000;
  std::function<void()> call;
};

EngineOptions Options(int64_t blocks) {
  EngineOptions options;
  options.capacity_bytes = blocks * kBlockBytes;
  options.alignment_bytes = 256;
  options.expensive_seconds_per_byte = 1e-9;
  return options;
}

StorageId Compute(Engine& engine, std::vector<StorageId> inputs, double cost_seconds) {
  const OutputSpec spec{.bytes = kBlockBytes};
  const OperationId op = engine.AddOperation(inputs, {&spec, 1}, cost_seconds, true);
  std::vector<StorageId> outputs;
  engine.OutputsOf(op, &outputs);
  if (!engine.Run(op)) std::abort();
  return outputs[0];
}

// A step of a training program: each value reads the last two; half of the values are held to the
// end, as a forward pass holds them, the others are released at their last use.
class Step {
 public:
  explicit Step(int64_t blocks) : engine_(Options(blocks)) {
    outputs_.reserve(4);
    held_.reserve(kStepOperations);
  }

  void operator()() {
    StorageId last[2] = {Compute(engine_, {}, 1e-6), Compute(engine_, {}, 1e-6)};
    bool kept[2] = {true, true};
    held_ = {last[0], last[1]};
    const OutputSpec spec{.bytes = kBlockBytes};
    for (int i = 2; i < kStepOperations; ++i) {
      const double cost_seconds = 1e-6 * (1 + i % 13);
      const OperationId op = engine_.AddOperation(last, {&spec, 1}, cost_seconds, true);
      engine_.OutputsOf(op, &outputs_);
      if (!engine_.Run(op)) std::abort();
      if (!kept[0]) engine_.Release(last[0]);
      last[0] = last[1];
      kept[0] = kept[1];
      last[1] = outputs_[0];
      kept[1] = i % 2 == 0;
      if (kept[1]) held_.push_back(last[1]);
      engine_.ClearFreed();
    }
    for (int k = 0; k < 2; ++k) {
      if (!kept[k]) engine_.Release(last[k]);
    }
    for (const StorageId storage : held_) engine_.Release(storage);
    engine_.ClearFreed();
  }

 private:
  Engine engine_;
  std::vector<StorageId> outputs_;
  std::vector<StorageId> held_;
};

// A full pool of one chain, of which a fifth is evicted, so that scores add neighbourhoods.
Engine FullPool(int blocks) {
  Engine engine(Options(blocks));
  StorageId last = Compute(engine, {}, 1e-6);
  for (int i = 1; i < blocks + blocks / 4; ++i) {
    last = Compute(engine, {last}, 1e-6 * (1 + (i * 7919) % 101));
  }
  return engine;
}

Program ChainProgram(int operations) {
  Program program;
  program.op_input_begin = {0};
  program.op_output_begin = {0};
  program.release_begin = {0};
  for (int i = 0; i < operations; ++i) {
    for (int k = 1; k <= 2 && i >= k; ++k) program.op_inputs.push_back(i - k);
    program.op_input_begin.push_back(static_cast<int32_t>(program.op_inputs.size()));
    program.storage_bytes.push_back(kBlockBytes);
    program.storage_outside.push_back(0);
    program.op_outputs.push_back(i);
    program.op_output_begin.push_back(i + 1);
    program.op_in_place.push_back(kNone);
    program.op_cost_seconds.push_back(1e-6 * (1 + i % 13));
    program.op_recomputable.push_back(1);
    if (i >= 2) program.releases.push_back(i - 2);
    program.release_begin.push_back(static_cast<int32_t>(program.releases.size()));
  }
  program.outputs = {operations - 1};
  return program;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  cases.push_back({.name = "operation/no_pressure",
                   .target_us = 2,
                   .items = kStepOperations,
                   .calls = 400,
                   .call = [step = std::make_shared<Step>(1 << 20)] { (*step)(); }});
  PlanOptions options;
  options.engine = Options(1 << 20);
  cases.push_back({.name = "plan/no_pressure/10000_operations",
                   .target_us = 2,
                   .items = 10000,
                   .calls = 10,
                   .call = [program = ChainProgram(10000), options] {
                     if (!MakePlan(program, options).feasible) std::abort();
                   }});
  for (const int blocks : {1000, 10000}) {
    auto engine = std::make_shared<Engine>(FullPool(blocks));
    cases.push_back({.name = "search/" + std::to_string(blocks) + "_blocks",
                     .target_us = blocks == 1000 ? 20.0 : 200.0,
                     .calls = 2'000'000 / blocks,
                     .call = [engine] {
                       if (!engine->SearchOnly(8 * kBlockBytes)) std::abort();
                     }});
  }
  cases.push_back({.name = "operation/half_of_the_memory",
                   .items = kStepOperations,
                   .calls = 50,
                   .call = [step = std::make_shared<Step>(kStepOperations / 4)] { (*step)(); }});
  return cases;
}

std::string TargetOf(const Case& measured) {
  if (measured.target_us == 0) return "no target";
  char text[32];
  std::snprintf(text, sizeof(text), "target <= %g us", measured.target_us);
  return text;
}

double SecondsPerItem(const Case& measured) {
  const auto begin = std::chrono::steady_clock::now();
  measured.call();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / measured.items;
}

}  // namespace
}  // namespace coop

int main([[maybe_unused]] int argc, [[maybe_unused]] char** argv) {
  const std::vector<coop::Case> cases = coop::Cases();
#ifdef COOP_GOOGLE_BENCHMARK
  for (const coop::Case& measured : cases) {
    benchmark::RegisterBenchmark(measured.name.c_str(),
                                 [measured](benchmark::State& state) {
                                   for ([[maybe_unused]] auto _ : state) {
                                     state.SetIterationTime(coop::SecondsPerItem(measured));
                                   }
                                   state.SetLabel(coop::TargetOf(measured));
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(measured.calls);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
#else
  for (const coop::Case& measured : cases) {
    double seconds = 0;
    for (int i = 0; i < measured.calls; ++i) seconds += coop::SecondsPerItem(measured);
    std::printf("%-36s %10.3f us  %s\n", measured.name.c_str(), seconds / measured.calls * 1e6,
                coop::TargetOf(measured).c_str());
  }
#endif
  return 0;
}
