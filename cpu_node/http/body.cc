#include "cpu_node/http/body.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"

namespace refract::cpu_node {
namespace {

// Size of the first allocation. Most requests fit, and a client that announces
// a long body but sends nothing holds no more.
constexpr size_t kFirstBytes = size_t{64} << 10;

}  // namespace

HttpBody::HttpBody(base::ByteBudget& budget, size_t max_bytes, size_t expected)
    : budget_(&budget), max_bytes_(max_bytes), expected_(expected) {}

absl::StatusOr<absl::Span<char>> HttpBody::Room() {
  if (size_ == capacity_) {
    if (size_ == max_bytes_) {
      return absl::OutOfRangeError(
          absl::StrCat("the request is longer than the ", max_bytes_,
                       " bytes of --http-max-input-size"));
    }
    size_t capacity = 2 * capacity_;
    if (capacity == 0) {
      capacity = expected_ > 0 ? std::min(expected_, kFirstBytes) : kFirstBytes;
    }
    capacity = std::min(capacity, max_bytes_);
    // During the copy both buffers count.
    REFRACT_ASSIGN_OR_RETURN(base::ByteBudget::Hold hold,
                             budget_->Take(capacity));
    REFRACT_RETURN_IF_ERROR(base::WithinMemory([&] {
      // new[] without (): make_unique would write zeros.
      std::unique_ptr<char[]> data(new char[capacity]);
      if (size_ > 0) std::memcpy(data.get(), data_.get(), size_);
      data_ = std::move(data);
      return absl::OkStatus();
    }));
    hold_ = std::move(hold);
    capacity_ = capacity;
  }
  return absl::MakeSpan(data_.get() + size_, capacity_ - size_);
}

}  // namespace refract::cpu_node
