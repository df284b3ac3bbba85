#include "tests/runtime/cuda/testing/emulated_kernels.h"

#include <variant>

#include "runtime/cuda/kernels/dispatch.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda::testing {

class EmulatedKernels::Launcher : public EmulatedLauncher {
 public:
  using EmulatedLauncher::EmulatedLauncher;
};

EmulatedKernels::EmulatedKernels(unsigned seed)
    : launcher_(std::make_unique<Launcher>(seed)) {}

EmulatedKernels::~EmulatedKernels() = default;

bool EmulatedKernels::Run(const Call& call,
                          const std::function<void()>& previous) {
  EmulatedLauncher& launcher = *launcher_;
  return std::visit(
      [&](const auto& kernel) {
        if (previous != nullptr) {
          return launcher.DispatchEarly(kernel, previous);
        }
        Dispatch(kernel, launcher);
        return true;
      },
      call);
}

void EmulatedKernels::ForgetWaits(int64_t every) {
  launcher_->ForgetWaits(every);
}

bool HasBlocks(const Call& call) {
  return std::visit([](const auto& kernel) { return cuda::HasBlocks(kernel); },
                    call);
}

}  // namespace refract::runtime::cuda::testing
