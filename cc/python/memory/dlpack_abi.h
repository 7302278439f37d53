// DLPack's C structures (version 0.x, "dltensor" capsules), as its specification lays them out.
//
// Purpose: what pool_memory fills in and JAX reads. Only the layout matters; it is frozen by the
// protocol, so the definitions stand here instead of depending on a copy of its header.
// Invariant: layouts match the specification (checked by the assertions below).
// Source: DLPack, Python array API specification.

#ifndef COOP_PYTHON_MEMORY_DLPACK_ABI_H_
#define COOP_PYTHON_MEMORY_DLPACK_ABI_H_

#include <cstdint>

namespace coop::python {

inline constexpr int32_t kDLCpu = 1;
inline constexpr int32_t kDLCuda = 2;

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: row-major
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

static_assert(sizeof(void*) == 8 && sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64);

}  // namespace coop::python

#endif  // COOP_PYTHON_MEMORY_DLPACK_ABI_H_
