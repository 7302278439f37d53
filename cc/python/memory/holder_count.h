// Who else holds the memory of an array: NumPy views, DLPack tensors, the buffer protocol.
//
// Purpose: what a call gives away may be overwritten only if nobody else reads it. XLA counts such
//   references and looks at the count when it is told to take a buffer over; then it is too late,
//   and nothing of JAX's interface says it before.
// Model: the count is found from an array by two pointers, at distances that the caller has found
//   out by looking at what changes as references come and go (coop_jax/_src/compat/holders.py).
//   Each object on the way begins with the address of its class's virtual functions, which tells
//   its type; where another one is there, the count is not known.
// Invariant: only memory of live objects of the types that were seen is read.
// Thread rule: under the interpreter lock. Complexity: five reads.
// Source: ours.

#ifndef COOP_PYTHON_MEMORY_HOLDER_COUNT_H_
#define COOP_PYTHON_MEMORY_HOLDER_COUNT_H_

#include <Python.h>

#include <cstdint>
#include <cstring>

namespace coop::python {

struct HolderCount {
  int64_t array_at = 0;      // in the Python object: the pointer to the array's own object
  uint64_t array_type = 0;   // what that begins with
  int64_t buffer_at = 0;     // in that: the pointer to the buffer
  uint64_t buffer_type = 0;  // what that begins with
  int64_t count_at = 0;      // in that: the count, 32 bits

  // References to the memory of an array that is not deleted, besides its own; -1: not known.
  [[nodiscard]] int64_t Of(const PyObject* array) const {
    const auto* const own = Follow(reinterpret_cast<const char*>(array), array_at, array_type);
    if (own == nullptr) return -1;
    const auto* const buffer = Follow(own, buffer_at, buffer_type);
    if (buffer == nullptr) return -1;
    const auto count = Read<int32_t>(buffer + count_at);
    return count < 0 ? -1 : count;
  }

 private:
  template <typename T>
  [[nodiscard]] static T Read(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  // The object that is pointed to, null if it is of another type.
  [[nodiscard]] static const char* Follow(const char* from, int64_t at, uint64_t type) {
    const auto* const to = Read<const char*>(from + at);
    if (to == nullptr || reinterpret_cast<uintptr_t>(to) % alignof(void*) != 0) return nullptr;
    return Read<uint64_t>(to) == type ? to : nullptr;
  }
};

}  // namespace coop::python

#endif  // COOP_PYTHON_MEMORY_HOLDER_COUNT_H_
