#include "cc/ffi/copy.h"

#include <cstring>
#include <exception>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace coop::ffi {
namespace {

namespace xf = ::xla::ffi;

xf::Error Copy(const xf::AnyBuffer& source, const xf::AnyBuffer& target) {
  try {
    if (source.size_bytes() != target.size_bytes()) {
      return xf::Error::InvalidArgument("coop_jax: source and slot differ in bytes");
    }
    const void* const from = source.untyped_data();
    void* const to = target.untyped_data();
    if (from != to && source.size_bytes() > 0) std::memcpy(to, from, source.size_bytes());
    return xf::Error::Success();
  } catch (const std::exception& error) {
    return xf::Error::Internal(error.what());
  }
}

xf::Error CopyCpu(xf::AnyBuffer source, xf::AnyBuffer /*slot*/, xf::Result<xf::AnyBuffer> out) {
  return Copy(source, *out);
}

xf::Error StoreCpu(xf::AnyBuffer source, xf::AnyBuffer slot, xf::Result<xf::AnyBuffer> done) {
  if (done->size_bytes() > 0) std::memset(done->untyped_data(), 0, done->size_bytes());
  return Copy(source, slot);
}

XLA_FFI_DEFINE_HANDLER(
    kCopyCpu, CopyCpu,
    xf::Ffi::Bind().Arg<xf::AnyBuffer>().Arg<xf::AnyBuffer>().Ret<xf::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER(
    kStoreCpu, StoreCpu,
    xf::Ffi::Bind().Arg<xf::AnyBuffer>().Arg<xf::AnyBuffer>().Ret<xf::AnyBuffer>());

}  // namespace

std::pair<int, int> FfiVersion() { return {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR}; }

Handler CopyCpuHandler() { return kCopyCpu; }
Handler StoreCpuHandler() { return kStoreCpu; }

#ifndef COOP_FFI_CUDA
Handler CopyCudaHandler() { return nullptr; }
Handler StoreCudaHandler() { return nullptr; }
#endif

}  // namespace coop::ffi
