#include "cc/python/guard/signal_stack.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstddef>

namespace coop::python {
namespace {

constexpr size_t kStackBytes = size_t{1} << 16;

class SignalStack {
 public:
  SignalStack() {
    stack_t now{};
    if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
    void* const memory =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    now = {};
    now.ss_sp = memory;
    now.ss_size = kStackBytes;
    if (sigaltstack(&now, nullptr) == 0) {
      memory_ = memory;
    } else {
      munmap(memory, kStackBytes);
    }
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  ~SignalStack() {
    if (memory_ == nullptr) return;
    stack_t now{};
    if (sigaltstack(nullptr, &now) != 0) return;
    if ((now.ss_flags & SS_DISABLE) == 0 && now.ss_sp == memory_) {
      now = {};
      now.ss_flags = SS_DISABLE;
      if (sigaltstack(&now, nullptr) != 0) return;
    }
    // Whoever has taken another one since (faulthandler) may go back to this at its end: it stays
    // mapped then.
    if (now.ss_flags == SS_DISABLE) munmap(memory_, kStackBytes);
  }

 private:
  void* memory_ = nullptr;
};

}  // namespace

void EnsureSignalStack() { [[maybe_unused]] thread_local const SignalStack stack; }

void BindSignalStack(nanobind::module_& module) {
  module.def("ensure_signal_stack", &EnsureSignalStack,
             "Gives this thread a stack of its own for signal handlers, unless it has one.");
}

}  // namespace coop::python
