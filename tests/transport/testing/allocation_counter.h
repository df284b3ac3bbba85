#ifndef REFRACT_TESTS_TRANSPORT_TESTING_ALLOCATION_COUNTER_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_ALLOCATION_COUNTER_H_

// Counts what global operator new gives out, on the threads that ask for it.
// Replaces it for the whole program, so one file of a program may include this.
// Sanitizers have an operator new of their own: nothing is counted then.

#include <execinfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <sstream>
#include <string>

namespace refract::transport {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsAllocations = false;
#else
inline constexpr bool kCountsAllocations = true;
#endif

struct AllocationTrace {
  size_t bytes = 0;
  int depth = 0;
  std::array<void*, 12> frames = {};
};

// Static, as operator new is.
class AllocationCounter {
 public:
  // This thread's allocations count from now on. Polling threads of transports
  // are reached from handlers and callbacks; others, which accept and shake
  // hands, have no part in messages and end whenever they like.
  static void CountThisThread() { counted_ = true; }
  static void Start() {
    // Loads what it needs, which allocates.
    std::array<void*, 2> unused;
    backtrace(unused.data(), static_cast<int>(unused.size()));
    count_.store(0);
    counting_.store(true);
  }
  // Returns how many there were since Start.
  static uint64_t Stop() {
    counting_.store(false);
    return count_.load();
  }
  // While it exists, allocations of this thread are the test's own.
  class Pause {
   public:
    Pause() { ++paused_; }
    ~Pause() { --paused_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;
  };

  // Stacks of the first allocations, as text for addr2line.
  static std::string Traces() {
    std::ostringstream text;
    for (size_t i = 0; i < std::min<uint64_t>(count_, traces_.size()); ++i) {
      AllocationTrace& trace = traces_[i];
      char** const names = backtrace_symbols(trace.frames.data(), trace.depth);
      text << trace.bytes << " B at\n";
      for (int frame = 0; frame < trace.depth; ++frame) {
        text << "  " << names[frame] << "\n";
      }
      std::free(names);
    }
    return text.str();
  }

  static void Note(size_t bytes) {
    if (!counted_ || paused_ > 0) return;
    if (!counting_.load(std::memory_order_relaxed)) return;
    const uint64_t index = count_.fetch_add(1);
    if (index >= traces_.size()) return;
    ++paused_;
    AllocationTrace& trace = traces_[index];
    trace.bytes = bytes;
    trace.depth =
        backtrace(trace.frames.data(), static_cast<int>(trace.frames.size()));
    --paused_;
  }

 private:
  static inline std::atomic<bool> counting_ = false;
  static inline std::atomic<uint64_t> count_ = 0;
  static inline std::array<AllocationTrace, 8> traces_;
  static inline thread_local bool counted_ = false;
  static inline thread_local int paused_ = 0;
};

// Skips tests of programs whose allocations are not counted.
#define REFRACT_NEEDS_ALLOCATION_COUNTS()                           \
  if (!kCountsAllocations)                                          \
  GTEST_SKIP() << "sanitizers bring an operator new of their own, " \
                  "so allocations are not counted"

}  // namespace refract::transport

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

inline void* RefractCountedNew(std::size_t bytes, std::size_t align) {
  refract::transport::AllocationCounter::Note(bytes);
  // aligned_alloc wants a multiple, and neither may return null for nothing.
  const std::size_t whole = (bytes + align - 1) / align * align;
  void* const block =
      align <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
          ? std::malloc(bytes == 0 ? 1 : bytes)
          : std::aligned_alloc(align, whole == 0 ? align : whole);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

// The forms for arrays and for std::nothrow call these.
void* operator new(std::size_t bytes) { return RefractCountedNew(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) {
  return RefractCountedNew(bytes, static_cast<std::size_t>(align));
}
// Not inlined, or GCC would warn of free() on memory from new.
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::align_val_t) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t,
                                       std::align_val_t) noexcept {
  std::free(block);
}

#endif

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_ALLOCATION_COUNTER_H_
