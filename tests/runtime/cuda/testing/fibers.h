#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_FIBERS_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_FIBERS_H_

// The threads of an emulated GPU's block (simt.h).

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "runtime/cuda/kernels/dispatch.h"

namespace refract::runtime::cuda::testing {

// The fibers of one block, kept for the blocks after it. Not thread-safe.
//
// A fiber is entered through its context once. From then on it is left and
// resumed by jumps, which touch no signal mask: swapcontext() makes a system
// call each time, and kernels with barriers do little else here.
class Fibers {
 public:
  enum class State : uint8_t { kReady, kAtWarp, kAtBlock, kDone };

  explicit Fibers(unsigned seed) : random_(seed) {}
  Fibers(const Fibers&) = delete;  // the fibers know their address
  Fibers& operator=(const Fibers&) = delete;

  // Runs `body(i)` for i < count. Aborts the program on a barrier that some
  // thread can never reach.
  void Run(int count, std::function<void(int)> body) {
    body_ = std::move(body);
    while (static_cast<int>(fibers_.size()) < count) {
      Prepare(*fibers_.emplace_back(std::make_unique<Fiber>()));
    }
    count_ = count;
    for (int i = 0; i < count; ++i) fiber(i).state = State::kReady;
    std::vector<int> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    while (true) {
      std::shuffle(order.begin(), order.end(), random_);
      bool ran = false;
      for (int i : order) {
        if (fiber(i).state != State::kReady) continue;
        ran = true;
        Resume(i);
      }
      if (!ran && !Release()) break;
    }
  }

  // Called by a fiber.
  void Wait(int i, State at) {
    fiber(i).state = at;
    Leave(fiber(i));
  }

  // The value of a thread in a shuffle of its warp.
  float& exchange(int i) { return fiber(i).exchange; }

 private:
  // The point where a fiber continues.
  struct Place {
    ucontext_t context = {};
    jmp_buf jump = {};
  };
  struct Fiber {
    Place place;
    bool entered = false;
    // The stack is not cleared: pages that are never touched take no memory.
    std::unique_ptr<char[]> stack{new char[kStackBytes]};
    State state = State::kDone;
    float exchange = 0;
  };

  static constexpr size_t kStackBytes = 256 * 1024;
  // AddressSanitizer follows contexts to other stacks, and no jumps. With
  // _FORTIFY_SOURCE, which some compilers and packagers set, a jump to another
  // stack ends the program.
#if defined(__SANITIZE_ADDRESS__) || \
    (defined(__USE_FORTIFY_LEVEL) && __USE_FORTIFY_LEVEL > 0)
  static constexpr bool kJumps = false;
#else
  static constexpr bool kJumps = true;
#endif

  Fiber& fiber(int i) { return *fibers_[static_cast<size_t>(i)]; }

  // Runs in a fiber: one body after the other; never returns.
  static void Enter() {
    Fibers& self = *resuming_;
    const int i = resuming_fiber_;
    while (true) {
      self.body_(i);
      self.Wait(i, State::kDone);
    }
  }

  static void Prepare(Fiber& f) {
    getcontext(&f.place.context);
    f.place.context.uc_stack.ss_sp = f.stack.get();
    f.place.context.uc_stack.ss_size = kStackBytes;
    makecontext(&f.place.context, &Fibers::Enter, 0);
  }

  // The functions that set a jump do nothing else.
  void Resume(int i) {
    resuming_ = this;
    resuming_fiber_ = i;
    Fiber& f = fiber(i);
    const bool entered = std::exchange(f.entered, true);
    if constexpr (!kJumps) {
      swapcontext(&main_.context, &f.place.context);
    } else if (entered) {
      Jump(main_.jump, f.place.jump);
    } else {
      Begin(main_.jump, f.place.context);
    }
  }
  void Leave(Fiber& f) {
    if constexpr (kJumps) {
      Jump(f.place.jump, main_.jump);
    } else {
      swapcontext(&f.place.context, &main_.context);
    }
  }
  static void Jump(jmp_buf& from, jmp_buf& to) {
    if (_setjmp(from) == 0) _longjmp(to, 1);
  }
  static void Begin(jmp_buf& from, const ucontext_t& to) {
    if (_setjmp(from) == 0) setcontext(&to);
  }

  // Opens barriers that all their threads have reached. False when all threads
  // are done.
  bool Release() {
    int done = 0;
    int at_block = 0;
    bool released = false;
    for (int first = 0; first < count_; first += kWarp) {
      const int end = std::min(first + kWarp, count_);
      int at_warp = 0;
      for (int i = first; i < end; ++i) {
        done += fiber(i).state == State::kDone;
        at_block += fiber(i).state == State::kAtBlock;
        at_warp += fiber(i).state == State::kAtWarp;
      }
      if (at_warp == end - first) {
        for (int i = first; i < end; ++i) fiber(i).state = State::kReady;
        released = true;
      }
    }
    if (released) return true;
    if (done == count_) return false;
    if (done + at_block != count_) {
      std::fprintf(stderr, "a barrier that not all threads of a warp reach\n");
      std::abort();
    }
    for (int i = 0; i < count_; ++i) {
      if (fiber(i).state == State::kAtBlock) fiber(i).state = State::kReady;
    }
    return true;
  }

  // How a fiber that begins learns which one it is.
  static inline thread_local Fibers* resuming_ = nullptr;
  static inline thread_local int resuming_fiber_ = 0;

  std::mt19937 random_;
  std::function<void(int)> body_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  int count_ = 0;
  Place main_;
};

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_FIBERS_H_
