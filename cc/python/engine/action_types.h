// Actions as Python objects: one immutable class a kind, with fields by name.
//
// Purpose: plans and the engine's answers read the same, and no kind is told by a tuple's length.
// Model: Run(operation, recompute, placements), Evict(storage), Drop(storage), and
//   Placement(storage, offset, in_place_input). Equal, hashed, copied, pickled and matched by their
//   fields.
// Thread rule: under the interpreter lock. Complexity: linear in what is converted.

#ifndef COOP_PYTHON_ENGINE_ACTION_TYPES_H_
#define COOP_PYTHON_ENGINE_ACTION_TYPES_H_

#include <nanobind/nanobind.h>

#include <span>

#include "cc/core/base/types.h"

namespace coop::python {

void BindActions(nanobind::module_& module);

// Placements are where Action::first_placement points into. Throws std::logic_error for a move:
// only sessions move storages, and their actions stay in C++.
[[nodiscard]] nanobind::list ActionList(std::span<const Action> actions,
                                        std::span<const Placement> placements);

}  // namespace coop::python

#endif  // COOP_PYTHON_ENGINE_ACTION_TYPES_H_
