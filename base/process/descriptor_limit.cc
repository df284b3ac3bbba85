#include "base/process/descriptor_limit.h"

#include <sys/resource.h>

namespace refract::base {

uint64_t RaiseDescriptorLimit() {
  rlimit limit = {};
  // Neither call fails with these arguments.
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit raised = {limit.rlim_max, limit.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur
                                                : limit.rlim_cur;
}

uint64_t DescriptorLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

}  // namespace refract::base
