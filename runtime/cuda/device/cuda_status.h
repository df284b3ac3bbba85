#ifndef REFRACT_RUNTIME_CUDA_DEVICE_CUDA_STATUS_H_
#define REFRACT_RUNTIME_CUDA_DEVICE_CUDA_STATUS_H_

// Errors of the CUDA runtime as a Status.

#include <cuda_runtime_api.h>

#include <string>

#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

inline Code CodeOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return Code::kOk;
    case cudaErrorMemoryAllocation:
      return Code::kResourceExhausted;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidPitchValue:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorIllegalState:
    case cudaErrorNotPermitted:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread:
      return Code::kInternal;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNotSupported:
      return Code::kUnimplemented;
    default:
      // Illegal addresses, ECC errors, a lost bus, time-outs, no driver: most
      // of these destroy the context.
      return Code::kUnavailable;
  }
}

inline Status FromCuda(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  // Clears errors that are not sticky, so that later calls do not report them.
  (void)cudaGetLastError();
  return Status(CodeOf(error), std::string(call) + ": " +
                                   cudaGetErrorName(error) + " (" +
                                   cudaGetErrorString(error) + ")");
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_DEVICE_CUDA_STATUS_H_
