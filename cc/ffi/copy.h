// The XLA custom call "coop_copy": puts an array into a slot of the pool.
//
// Purpose: the fallback where XLA did not write an operation's output into its slot.
// Model: coop_copy(source, slot) -> out, where the caller aliases `slot` (donated) with `out`. The
//   bytes of `source` go to `out`; where both are the same memory nothing is done. Element type
//   and shape do not matter, the byte counts must agree.
// Invariants: source and out are equal or disjoint; no exception leaves the handler.
// Thread rule: stateless. On CUDA the copy is enqueued on XLA's own stream, so it is ordered with
//   the operations around it, and may be recorded in a CUDA graph.
// Complexity: one memory copy.
// Source: XLA FFI.

#ifndef COOP_FFI_COPY_H_
#define COOP_FFI_COPY_H_

extern "C" {
struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;
}

namespace coop::ffi {

using Handler = XLA_FFI_Error* (*)(XLA_FFI_CallFrame*);

[[nodiscard]] Handler CopyCpuHandler();
// Null where this build has no CUDA copy.
[[nodiscard]] Handler CopyCudaHandler();

}  // namespace coop::ffi

#endif  // COOP_FFI_COPY_H_
