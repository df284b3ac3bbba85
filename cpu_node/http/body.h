#ifndef REFRACT_CPU_NODE_HTTP_BODY_H_
#define REFRACT_CPU_NODE_HTTP_BODY_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/process/byte_budget.h"

namespace refract::cpu_node {

// A body of unknown length, in one buffer. The buffer grows with the received
// bytes, not with the announced length, and its memory is taken from a budget
// before it is allocated. Move-only.
class HttpBody {
 public:
  // `budget` must outlive this body. `expected`: bytes that will come, if
  // known; only a hint.
  HttpBody(base::ByteBudget& budget, size_t max_bytes, size_t expected = 0);

  // Returns memory for further bytes, at least one. OutOfRange: the body has
  // `max_bytes` already. ResourceExhausted: budget or memory is used up.
  absl::StatusOr<absl::Span<char>> Room();
  // Call after writing `bytes` bytes into Room().
  void Commit(size_t bytes) { size_ += bytes; }

  size_t size() const { return size_; }
  absl::string_view view() const { return {data_.get(), size_}; }

 private:
  base::ByteBudget* budget_;
  size_t max_bytes_;
  size_t expected_;
  std::unique_ptr<char[]> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
  base::ByteBudget::Hold hold_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_BODY_H_
