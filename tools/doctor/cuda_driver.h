#ifndef REFRACT_TOOLS_DOCTOR_CUDA_DRIVER_H_
#define REFRACT_TOOLS_DOCTOR_CUDA_DRIVER_H_

// Whether NVIDIA's driver can run what this build was compiled for.

#include <optional>
#include <string>

#include "tools/doctor/machine.h"

namespace refract::tools {

struct CudaDriver {
  bool has_library = false;  // libcuda.so.1
  // The newest CUDA that it supports, as CUDA writes versions: 13000 is 13.0. 0
  // if it reports none.
  int version = 0;
  // The result of its cuInit(): 0 if devices can be used, else a CUresult.
  int init_result = 0;
};

// Loads this machine's driver library, if there is one. Takes up to a second on
// a machine with a GPU.
CudaDriver AskCudaDriver();

// `toolkit_version` of this build, as above; 0: built without CUDA. No finding
// for a machine without GPU and driver. Reads nothing.
std::optional<Finding> JudgeCuda(const Machine& machine,
                                 const CudaDriver& driver, int toolkit_version);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_DOCTOR_CUDA_DRIVER_H_
