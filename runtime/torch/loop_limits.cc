#include "runtime/torch/loop_limits.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::runtime::aten {
namespace {

thread_local const ScopedLoopCheck* innermost = nullptr;

}  // namespace

ScopedLoopCheck::ScopedLoopCheck(std::function<absl::Status()> check,
                                 int64_t max_rounds)
    : check_(std::move(check)), max_rounds_(max_rounds), outer_(innermost) {
  innermost = this;
}

ScopedLoopCheck::~ScopedLoopCheck() { innermost = outer_; }

absl::Status CheckLoopRound(int64_t round) {
  int64_t most = kMaxLoopRounds;
  if (innermost != nullptr) {
    REFRACT_RETURN_IF_ERROR(innermost->check_());
    most = innermost->max_rounds_;
  }
  if (round >= most) {
    return absl::InvalidArgumentError(
        absl::StrCat("a loop has not ended after ", most, " rounds"));
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime::aten
