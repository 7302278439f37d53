// coop_copy and coop_store on CUDA, through the driver's API.
//
// Purpose and thread rule: see copy.h.
// Model: libcuda is already in the process where XLA runs on a GPU; it is opened, never linked.

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "cc/ffi/copy.h"
#include "xla/ffi/api/ffi.h"

namespace coop::ffi {
namespace {

namespace xf = ::xla::ffi;

// The driver's own types are opaque here: CUstream is a pointer, CUdeviceptr an unsigned integer of
// the size of one, CUresult an int with 0 for success.
using Stream = void*;
using MemcpyDeviceToDevice = int (*)(uint64_t to, uint64_t from, size_t bytes, Stream stream);

MemcpyDeviceToDevice FindMemcpy() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  // Version 2 is the 64-bit one; cuda.h renames the plain name to it.
  return driver == nullptr
             ? nullptr
             : reinterpret_cast<MemcpyDeviceToDevice>(dlsym(driver, "cuMemcpyDtoDAsync_v2"));
}

xf::Error Copy(Stream stream, const xf::AnyBuffer& source, const xf::AnyBuffer& target) {
  try {
    if (source.size_bytes() != target.size_bytes()) {
      return xf::Error::InvalidArgument("coop_jax: source and slot differ in bytes");
    }
    const auto from = reinterpret_cast<uint64_t>(source.untyped_data());
    const auto to = reinterpret_cast<uint64_t>(target.untyped_data());
    if (from == to || source.size_bytes() == 0) return xf::Error::Success();
    static const MemcpyDeviceToDevice memcpy_async = FindMemcpy();
    if (memcpy_async == nullptr) {
      return xf::Error::Internal("coop_jax: libcuda.so.1 has no cuMemcpyDtoDAsync_v2");
    }
    if (const int status = memcpy_async(to, from, source.size_bytes(), stream); status != 0) {
      return xf::Error::Internal("coop_jax: cuMemcpyDtoDAsync failed with CUresult " +
                                 std::to_string(status));
    }
    return xf::Error::Success();
  } catch (const std::exception& error) {
    return xf::Error::Internal(error.what());
  }
}

xf::Error CopyCuda(Stream stream, xf::AnyBuffer source, xf::AnyBuffer /*slot*/,
                   xf::Result<xf::AnyBuffer> out) {
  return Copy(stream, source, *out);
}

xf::Error StoreCuda(Stream stream, xf::AnyBuffer source, xf::AnyBuffer slot,
                    xf::Result<xf::AnyBuffer> /*done*/) {
  return Copy(stream, source, slot);
}

XLA_FFI_DEFINE_HANDLER(kCopyCuda, CopyCuda,
                       xf::Ffi::Bind()
                           .Ctx<xf::PlatformStream<Stream>>()
                           .Arg<xf::AnyBuffer>()
                           .Arg<xf::AnyBuffer>()
                           .Ret<xf::AnyBuffer>(),
                       {xf::Traits::kCmdBufferCompatible});
// Not for CUDA graphs: a graph keeps the addresses of the buffers it was told it writes.
XLA_FFI_DEFINE_HANDLER(kStoreCuda, StoreCuda,
                       xf::Ffi::Bind()
                           .Ctx<xf::PlatformStream<Stream>>()
                           .Arg<xf::AnyBuffer>()
                           .Arg<xf::AnyBuffer>()
                           .Ret<xf::AnyBuffer>());

}  // namespace

Handler CopyCudaHandler() { return kCopyCuda; }
Handler StoreCudaHandler() { return kStoreCuda; }

}  // namespace coop::ffi
