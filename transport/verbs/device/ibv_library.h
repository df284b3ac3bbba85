#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_IBV_LIBRARY_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_IBV_LIBRARY_H_

#include "transport/verbs/device/api.h"

namespace refract::transport::verbs {

// libibverbs with the devices of this machine. Thread-safe; never destroyed.
// The first call makes fork() safe for the memory that devices use.
Library& SystemLibrary();

// Advice for a failed registration of `bytes`: the part of RLIMIT_MEMLOCK in it
// and how to raise the limit; empty when the limit is not the cause.
std::string MemlockAdvice(size_t bytes);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_IBV_LIBRARY_H_
