#ifndef REFRACT_BASE_PROCESS_BYTE_BUDGET_H_
#define REFRACT_BASE_PROCESS_BYTE_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::base {

// The option of both nodes for their budget (request_memory_flag.h).
inline constexpr char kRequestMemoryFlag[] = "--request-memory";

// Bounds the memory that all requests of a node hold together. Code that
// allocates memory of a size that a client or peer chose first takes a Hold of
// that many bytes. Lock-free and thread-safe.
class ByteBudget {
 public:
  // `flag` is the command-line option that sets `bytes`; refusals name it.
  ByteBudget(size_t bytes, absl::string_view flag)
      : bytes_(bytes), flag_(flag) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Bytes taken from a budget, returned on destruction. Must not outlive the
  // budget. Move-only; each Hold belongs to one thread at a time.
  class Hold {
   public:
    Hold() = default;  // of 0 bytes
    Hold(Hold&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { Reset(); }

    size_t bytes() const { return bytes_; }
    void Reset() { Shrink(0); }
    // Returns all but `bytes`; no effect if it holds fewer.
    void Shrink(size_t bytes);

   private:
    friend class ByteBudget;
    Hold(ByteBudget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {}
    ByteBudget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

  // ResourceExhausted, with the numbers and the flag, if fewer are free.
  absl::StatusOr<Hold> Take(size_t bytes);
  // Succeeds also if fewer are free; Take() then fails until enough are
  // returned. For answers: their work is done, so a refusal would free nothing.
  Hold TakeAnyway(size_t bytes);

  size_t bytes() const { return bytes_; }
  size_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  const size_t bytes_;
  const std::string flag_;
  std::atomic<size_t> held_ = 0;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_BYTE_BUDGET_H_
