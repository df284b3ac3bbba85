#include "tests/runtime/cuda/testing/emulated_kernels.h"

#include <type_traits>
#include <variant>

#include "runtime/cuda/kernels/dispatch.h"
#include "tests/runtime/cuda/testing/plain_product.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda::testing {

class EmulatedKernels::Launcher : public EmulatedLauncher {
 public:
  using EmulatedLauncher::EmulatedLauncher;
};

EmulatedKernels::EmulatedKernels(unsigned seed)
    : launcher_(std::make_unique<Launcher>(seed)) {}

EmulatedKernels::~EmulatedKernels() = default;

void EmulatedKernels::Run(const Call& call) {
  EmulatedLauncher& launcher = *launcher_;
  std::visit(
      [&](const auto& one) {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, GemmCall>) {
          MultiplyPlainly(one);
        } else {
          Dispatch(one, launcher);
        }
      },
      call);
}

}  // namespace refract::runtime::cuda::testing
