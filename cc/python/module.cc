// The extension module coop_jax._core.
//
// Purpose: puts the pool, the engine and the FFI targets into one module.
// Thread rule: initialised once, under the import lock.

#include <nanobind/nanobind.h>

#include "cc/ffi/copy.h"
#include "cc/python/engine_bindings.h"
#include "cc/python/pool_bindings.h"

namespace nb = nanobind;

namespace {

nb::dict FfiTargets() {
  nb::dict targets;
  targets["cpu"] = nb::capsule(reinterpret_cast<const void*>(coop::ffi::CopyCpuHandler()));
  if (coop::ffi::CopyCudaHandler() != nullptr) {
    targets["CUDA"] = nb::capsule(reinterpret_cast<const void*>(coop::ffi::CopyCudaHandler()));
  }
  return targets;
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The engine and the pool of coop_jax.";
  // Objects that the interpreter never frees at exit (a runtime in a global) are not our leaks.
  nb::set_leak_warnings(false);
  coop::python::BindPool(module);
  coop::python::BindEngine(module);
  module.def("ffi_targets", &FfiTargets,
             "Capsules of the XLA custom call 'coop_copy', by platform name.");
}
