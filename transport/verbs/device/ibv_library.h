#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_IBV_LIBRARY_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_IBV_LIBRARY_H_

#include "transport/verbs/device/api.h"

namespace refract::transport::verbs {

// libibverbs with the devices of this machine. Thread-safe; never destroyed.
// The first call makes fork() safe for the memory that devices use.
Library& SystemLibrary();

// For the message of a failed registration of `bytes`: what RLIMIT_MEMLOCK has
// to do with it and how to raise it; empty when the limit is not in the way.
std::string MemlockAdvice(size_t bytes);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_IBV_LIBRARY_H_
