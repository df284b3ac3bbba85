#ifndef REFRACT_BASE_WITHIN_MEMORY_H_
#define REFRACT_BASE_WITHIN_MEMORY_H_

#include <new>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace refract::base {

// What `work` returns, or ResourceExhausted where it throws std::bad_alloc: for
// what a request makes a node allocate in proportion to its size. The request
// then fails alone. `work` is to leave nothing half-done that others see.
inline absl::Status WithinMemory(absl::FunctionRef<absl::Status()> work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for the request");
  }
}

}  // namespace refract::base

#endif  // REFRACT_BASE_WITHIN_MEMORY_H_
