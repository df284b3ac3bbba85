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

// The option of both nodes that sets their budget (request_memory_flag.h).
inline constexpr char kRequestMemoryFlag[] = "--request-memory";

// Bounds the memory that the requests of a node hold together. Whoever is about
// to allocate memory whose size a client or peer chose takes a Hold of that
// many bytes first. Lock-free and thread-safe.
class ByteBudget {
 public:
  // `flag` is the command-line option that sets `bytes`; refusals name it.
  ByteBudget(size_t bytes, absl::string_view flag)
      : bytes_(bytes), flag_(flag) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Bytes taken from a budget; gives them back when it is destroyed. Must not
  // outlive the budget. Move-only; each Hold belongs to one thread at a time.
  class Hold {
   public:
    Hold() = default;  // of no bytes
    Hold(Hold&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)) {}
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { Reset(); }

    size_t bytes() const { return bytes_; }
    void Reset() { Shrink(0); }
    // Gives back all but `bytes`; no effect if it holds fewer.
    void Shrink(size_t bytes);

   private:
    friend class ByteBudget;
    Hold(ByteBudget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {}
    ByteBudget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

  // ResourceExhausted, with the numbers and the flag, if fewer are free.
  absl::StatusOr<Hold> Take(size_t bytes);
  // Also if fewer are free; Take() then fails until enough are given back. For
  // answers: their work is done, and refusing them would free nothing.
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
