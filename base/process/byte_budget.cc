#include "base/process/byte_budget.h"

#include "absl/strings/str_cat.h"

namespace refract::base {

ByteBudget::Hold& ByteBudget::Hold::operator=(Hold&& other) noexcept {
  if (this != &other) {
    Reset();
    budget_ = std::exchange(other.budget_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void ByteBudget::Hold::Shrink(size_t bytes) {
  if (budget_ == nullptr || bytes >= bytes_) return;
  budget_->held_.fetch_sub(bytes_ - bytes, std::memory_order_relaxed);
  bytes_ = bytes;
}

absl::StatusOr<ByteBudget::Hold> ByteBudget::Take(size_t bytes) {
  // Only the sum matters, not the order of memory accesses around it.
  size_t held = held_.load(std::memory_order_relaxed);
  do {
    // TakeAnyway() may have taken more than there is.
    const size_t left = held < bytes_ ? bytes_ - held : 0;
    if (bytes > left) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no memory for the request: it needs ", bytes, " bytes, and of the ",
          bytes_, " bytes of ", flag_, " ", left, " are free"));
    }
  } while (!held_.compare_exchange_weak(held, held + bytes,
                                        std::memory_order_relaxed));
  return Hold(this, bytes);
}

ByteBudget::Hold ByteBudget::TakeAnyway(size_t bytes) {
  held_.fetch_add(bytes, std::memory_order_relaxed);
  return Hold(this, bytes);
}

}  // namespace refract::base
