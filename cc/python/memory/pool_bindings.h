// Python bindings of pool memory: Pool and SlotSpec.
//
// Purpose: DLPack capsules over pool memory. The import itself is called from Python: of the 2.9 us
//   of a slot and its import, 2.7 are spent inside JAX's importer, whoever calls it.
// Model: Pool owns one reference of a PoolMemory; capsules own theirs, so a Pool may go first.
// Invariants: a capsule that nobody imported frees its slot; an imported one is left to its taker.
// Thread rule: entered with the interpreter lock. Owners of foreign memory are let go of by a
//   pending call, since the last slot may die on a thread that holds no lock, or inside XLA.
// Source: DLPack protocol for Python.

#ifndef COOP_PYTHON_MEMORY_POOL_BINDINGS_H_
#define COOP_PYTHON_MEMORY_POOL_BINDINGS_H_

#include <nanobind/nanobind.h>

#include "cc/python/memory/pool_memory.h"

namespace coop::python {

void BindPool(nanobind::module_& module);
// The memory behind a Python Pool; valid while that lives. Throws nanobind::cast_error for others.
[[nodiscard]] PoolMemory& MemoryOf(nanobind::handle pool);
// A capsule that owns the tensor until somebody imports it.
[[nodiscard]] nanobind::object MakeCapsule(DLManagedTensor* tensor);

}  // namespace coop::python

#endif  // COOP_PYTHON_MEMORY_POOL_BINDINGS_H_
