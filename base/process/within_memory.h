#ifndef REFRACT_BASE_PROCESS_WITHIN_MEMORY_H_
#define REFRACT_BASE_PROCESS_WITHIN_MEMORY_H_

#include <new>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace refract::base {

// The result of `work`, or ResourceExhausted if it throws std::bad_alloc. For
// allocations whose size a request determines: the request then fails alone.
// `work` must leave no partial changes that others see.
inline absl::Status WithinMemory(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for the request");
  }
}

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_WITHIN_MEMORY_H_
