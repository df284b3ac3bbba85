#ifndef REFRACT_TRANSPORT_LOOP_FD_H_
#define REFRACT_TRANSPORT_LOOP_FD_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refract::transport {

// Owns a file descriptor. Move-only.
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

// The status of a failed system call: "`what`: No such file or directory".
// Refused, reset and unreachable peers become kUnavailable, exhausted tables
// and memory kResourceExhausted, other errors kInternal.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Unavailable: the process at the other end of a connection has ended (its
// socket was closed or reset; also ErrnoStatus of ECONNRESET and EPIPE).
absl::Status PeerEnded(absl::string_view what);
bool IsPeerEnd(const absl::Status& status);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_FD_H_
