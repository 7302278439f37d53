// The XLA custom call "coop_scratch": memory of the caller's for a program's own intermediates.
//
// Purpose: what XLA hands on inside an executable comes from its own allocator, out of the pool's
//   sight. Blocks of the pool can stand in for it.
// Model: coop_scratch(results...) -> blocks... does nothing at all; the contents of the blocks mean
//   nothing. The caller donates an argument for each block that the program does not read, so the
//   block's memory is free from the program's beginning to this call, which takes all results of
//   the program and so comes last. XLA's buffer assignment puts there what fits and lives in
//   between.
// Invariants: reads and writes nothing.
// Thread rule: stateless. Complexity: constant.
// Source: XLA FFI; XLA's buffer assignment reuses aliased parameters
// (service/buffer_assignment.cc).

#ifndef COOP_FFI_SCRATCH_H_
#define COOP_FFI_SCRATCH_H_

#include "cc/ffi/copy.h"

namespace coop::ffi {

// Of any platform: it touches no memory.
[[nodiscard]] Handler ScratchHandler();

}  // namespace coop::ffi

#endif  // COOP_FFI_SCRATCH_H_
