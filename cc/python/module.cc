// The extension module coop_jax._core.
//
// Purpose: puts the pool, the engine and the FFI targets into one module.
// Thread rule: initialised once, under the import lock.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>

#include "cc/ffi/copy.h"
#include "cc/ffi/scratch.h"
#include "cc/python/engine/engine_bindings.h"
#include "cc/python/guard/call_guard.h"
#include "cc/python/guard/entered.h"
#include "cc/python/guard/signal_stack.h"
#include "cc/python/memory/pool_bindings.h"
#include "cc/python/replay/argument_reader.h"
#include "cc/python/replay/call_recognizer.h"
#include "cc/python/replay/plan_replay.h"
#include "cc/python/replay/tree_structure.h"
#include "cc/python/session/session_core.h"

namespace nb = nanobind;

namespace {

nb::dict FfiTargets(const std::string& name) {
  nb::dict targets;
  const auto add = [&](const char* platform, coop::ffi::Handler handler) {
    if (handler != nullptr) targets[platform] = nb::capsule(reinterpret_cast<const void*>(handler));
  };
  if (name == "coop_copy") {
    add("cpu", coop::ffi::CopyCpuHandler());
    add("CUDA", coop::ffi::CopyCudaHandler());
  } else if (name == "coop_store") {
    add("cpu", coop::ffi::StoreCpuHandler());
    add("CUDA", coop::ffi::StoreCudaHandler());
  } else if (name == "coop_scratch") {
    add("cpu", coop::ffi::ScratchHandler());
    add("CUDA", coop::ffi::ScratchHandler());
  } else {
    throw nb::value_error(("no XLA custom call is named '" + name + "'").c_str());
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
  coop::python::BindOperationKey(module);
  coop::python::BindSession(module);
  coop::python::BindReplay(module);
  coop::python::BindArgumentReader(module);
  coop::python::BindCallRecognizer(module);
  coop::python::BindTreeStructure(module);
  coop::python::BindCallGuard(module);
  coop::python::BindEntered(module);
  coop::python::BindSignalStack(module);
  module.def(
      "ffi_targets", &FfiTargets, nb::arg("name") = "coop_copy",
      "Capsules of the XLA custom call 'coop_copy', 'coop_store' or 'coop_scratch', by platform "
      "name.");
  module.def("ffi_version", &coop::ffi::FfiVersion,
             "XLA's FFI interface that the custom calls were compiled for: (major, minor).");
}
