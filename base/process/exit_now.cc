#include "base/process/exit_now.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace refract::base {

void ExitNow(int status) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(status);
#else
  std::fflush(nullptr);
  _exit(status);
#endif
}

}  // namespace refract::base
