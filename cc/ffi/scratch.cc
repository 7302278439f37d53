#include "cc/ffi/scratch.h"

#include "xla/ffi/api/ffi.h"

namespace coop::ffi {
namespace {

namespace xf = ::xla::ffi;

xf::Error Nothing(xf::RemainingArgs /*results*/, xf::RemainingRets /*blocks*/) {
  return xf::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kScratch, Nothing, xf::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace

Handler ScratchHandler() { return kScratch; }

}  // namespace coop::ffi
