// The XLA custom calls "coop_copy" and "coop_store": put an array into a slot of the pool.
//
// Purpose: the fallbacks where XLA did not write an operation's output into its slot.
// Model: coop_copy(source, slot) -> out, where the caller aliases `slot` (donated) with `out`. The
//   bytes of `source` go to `out`; where both are the same memory nothing is done. Element type
//   and shape do not matter, the byte counts must agree.
//   coop_store(source, slot) -> done is for versions of XLA that must not be given memory of
//   somebody else to own: nothing is donated, the bytes of `source` go to the memory of the *input*
//   `slot`. XLA takes inputs for constant while it runs, so `slot` must be read by nothing else in
//   the program that calls it, and by nobody before `done` is ready. The content of `done` means
//   nothing.
// Invariants: source and target are equal or disjoint; no exception leaves the handlers.
// Thread rule: stateless. On CUDA the copy is enqueued on XLA's own stream, so it is ordered with
//   the operations around it; coop_copy may be recorded in a CUDA graph.
// Complexity: one memory copy.
// Source: XLA FFI.

#ifndef COOP_FFI_COPY_H_
#define COOP_FFI_COPY_H_

#include <utility>

extern "C" {
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;
}

namespace coop::ffi {

using Handler = XLA_FFI_Error* (*)(XLA_FFI_CallFrame*);

// XLA's FFI interface that these were compiled for (major, minor); a jaxlib with an older one
// refuses them.
[[nodiscard]] std::pair<int, int> FfiVersion();

[[nodiscard]] Handler CopyCpuHandler();
[[nodiscard]] Handler StoreCpuHandler();
// Null where this build has no CUDA copy.
[[nodiscard]] Handler CopyCudaHandler();
[[nodiscard]] Handler StoreCudaHandler();

}  // namespace coop::ffi

#endif  // COOP_FFI_COPY_H_
