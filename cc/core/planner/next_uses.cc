#include "cc/core/planner/next_uses.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cc/core/engine/next_use.h"

namespace coop {
Reads FindReads(const Program& program, const std::vector<int32_t>& held_for) {
  Reads reads;
  const int32_t operations = program.operation_count();
  reads.begins_at.assign(1, 0.0);
  for (const double seconds : program.op_cost_seconds) {
    reads.begins_at.push_back(reads.begins_at.back() + seconds);
  }
  reads.input_again.resize(program.op_inputs.size());
  reads.output_first.resize(program.op_outputs.size());
  const double end = reads.begins_at.back();
  std::vector<double> next(program.storage_bytes.size(), Upcoming::kNever);
  const auto at = [](auto& values, int64_t i) -> auto& { return values[static_cast<size_t>(i)]; };
  for (const int32_t output : program.outputs) at(next, output) = end;
  // Held storages, by the operation that they are held for.
  std::vector<std::pair<int32_t, int32_t>> held;
  for (size_t s = 0; s < held_for.size(); ++s) {
    if (held_for[s] != kNone) held.emplace_back(held_for[s], static_cast<int32_t>(s));
  }
  std::sort(held.begin(), held.end());
  // One pass from the end.
  for (int32_t i = operations - 1; i >= 0; --i) {
    for (int32_t k = at(program.op_output_begin, i); k < at(program.op_output_begin, i + 1); ++k) {
      at(reads.output_first, k) = at(next, at(program.op_outputs, k));
    }
    const int32_t first = at(program.op_input_begin, i);
    for (; !held.empty() && held.back().first == i; held.pop_back()) {
      at(next, held.back().second) = at(reads.begins_at, i);
    }
    const int32_t last = at(program.op_input_begin, i + 1);
    for (int32_t k = first; k < last; ++k) {
      at(reads.input_again, k) = at(next, at(program.op_inputs, k));
    }
    for (int32_t k = first; k < last; ++k) {
      at(next, at(program.op_inputs, k)) = at(reads.begins_at, i);
    }
  }
  return reads;
}

}  // namespace coop
