// The extension module coop_jax._core.
//
// Purpose: puts the pool, the engine and the FFI targets into one module.
// Thread rule: initialised once, under the import lock.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "cc/ffi/copy.h"
#include "cc/python/argument_reader.h"
#include "cc/python/engine_bindings.h"
#include "cc/python/pool_bindings.h"
#include "cc/python/replay.h"
#include "cc/python/session_core.h"

namespace nb = nanobind;

namespace {

nb::dict FfiTargets(const std::string& name) {
  const bool store = name == "coop_store";
  if (!store && name != "coop_copy") {
    throw nb::value_error(("no XLA custom call is named '" + name + "'").c_str());
  }
  nb::dict targets;
  const auto add = [&](const char* platform, coop::ffi::Handler handler) {
    if (handler != nullptr) targets[platform] = nb::capsule(reinterpret_cast<const void*>(handler));
  };
  add("cpu", store ? coop::ffi::StoreCpuHandler() : coop::ffi::CopyCpuHandler());
  add("CUDA", store ? coop::ffi::StoreCudaHandler() : coop::ffi::CopyCudaHandler());
  return targets;
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "The engine and the pool of coop_jax.";
  // Objects that the interpreter never frees at exit (a runtime in a global) are not our leaks.
  nb::set_leak_warnings(false);
  coop::python::BindPool(module);
  coop::python::BindEngine(module);
  coop::python::BindSession(module);
  coop::python::BindReplay(module);
  coop::python::BindArgumentReader(module);
  module.def("ffi_targets", &FfiTargets, nb::arg("name") = "coop_copy",
             "Capsules of the XLA custom call 'coop_copy' or 'coop_store', by platform name.");
}
