#include "cc/ffi/copy.h"

#include <cstring>
#include <exception>

#include "xla/ffi/api/ffi.h"

namespace coop::ffi {
namespace {

namespace xf = ::xla::ffi;

xf::Error CopyCpu(xf::AnyBuffer source, xf::AnyBuffer /*slot*/, xf::Result<xf::AnyBuffer> out) {
  try {
    if (source.size_bytes() != out->size_bytes()) {
      return xf::Error::InvalidArgument("coop_copy: source and slot differ in bytes");
    }
    const void* const from = source.untyped_data();
    void* const to = out->untyped_data();
    if (from != to && source.size_bytes() > 0) std::memcpy(to, from, source.size_bytes());
    return xf::Error::Success();
  } catch (const std::exception& error) {
    return xf::Error::Internal(error.what());
  }
}

XLA_FFI_DEFINE_HANDLER(
    kCopyCpu, CopyCpu,
    xf::Ffi::Bind().Arg<xf::AnyBuffer>().Arg<xf::AnyBuffer>().Ret<xf::AnyBuffer>());

}  // namespace

Handler CopyCpuHandler() { return kCopyCpu; }

#ifndef COOP_FFI_CUDA
Handler CopyCudaHandler() { return nullptr; }
#endif

}  // namespace coop::ffi
