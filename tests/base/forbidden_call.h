#ifndef REFRACT_TESTS_BASE_FORBIDDEN_CALL_H_
#define REFRACT_TESTS_BASE_FORBIDDEN_CALL_H_

// System calls that fail, by a seccomp filter, as under a container's profile
// or on an exhausted machine.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace refract::base {

// From now on `call` of the calling thread, and of threads that it starts,
// fails with `error`. False: this machine allows no filters.
inline bool ForbidCall(unsigned call, unsigned error) {
  std::array filter = {
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | error},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program = {filter.size(), filter.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// The same for the start of threads, as if there were no process ids left.
inline bool ForbidThreads() {
  return ForbidCall(SYS_clone3, EAGAIN) && ForbidCall(SYS_clone, EAGAIN);
}

}  // namespace refract::base

#endif  // REFRACT_TESTS_BASE_FORBIDDEN_CALL_H_
