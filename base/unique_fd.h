#ifndef REFRACT_BASE_UNIQUE_FD_H_
#define REFRACT_BASE_UNIQUE_FD_H_

#include <utility>

namespace refract::base {

// Owns a file descriptor: closes it at the end. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(-1); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd);

 private:
  int fd_ = -1;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_UNIQUE_FD_H_
