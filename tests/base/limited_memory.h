#ifndef REFRACT_TESTS_BASE_LIMITED_MEMORY_H_
#define REFRACT_TESTS_BASE_LIMITED_MEMORY_H_

// Limited memory, for tests of code that cannot get more.

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace refract::base {

// During its life, the process gets no more than `room` bytes of address space
// in addition to its present ones. Holds for large blocks only: malloc() may
// serve small ones from memory that it kept.
class LimitedMemory {
 public:
  // Sanitizers map address space as they like and end the process when an
  // allocation fails.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool kWorks = false;
#else
  static constexpr bool kWorks = true;
#endif

  explicit LimitedMemory(size_t room) {
    getrlimit(RLIMIT_AS, &before_);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limited = before_;
    limited.rlim_cur = pages * static_cast<size_t>(getpagesize()) + room;
    setrlimit(RLIMIT_AS, &limited);
  }
  ~LimitedMemory() { setrlimit(RLIMIT_AS, &before_); }
  LimitedMemory(const LimitedMemory&) = delete;
  LimitedMemory& operator=(const LimitedMemory&) = delete;

 private:
  rlimit before_;
};

}  // namespace refract::base

#endif  // REFRACT_TESTS_BASE_LIMITED_MEMORY_H_
