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

// Bytes of unknown number as they come, in one piece. Its memory follows the
// bytes that are there, not the number that a client has announced, and is
// taken from a budget before it is allocated. Move-only.
class HttpBody {
 public:
  // `budget` must outlive this body. `expected`: bytes that will come, if
  // known; only a hint.
  HttpBody(base::ByteBudget& budget, size_t max_bytes, size_t expected = 0);

  // Memory for the next bytes, at least one. OutOfRange: `max_bytes` are there
  // already. ResourceExhausted: not in the budget, or no memory.
  absl::StatusOr<absl::Span<char>> Room();
  // `bytes` bytes have been written into Room().
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
