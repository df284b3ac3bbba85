#include "tests/runtime/cuda/device/fake_cuda.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/cuda/device/fake_streams.h"

namespace refract::runtime::cuda::testing {

FakeCuda& TheFakeCuda() {
  static FakeCuda fake;
  return fake;
}

void Violation(const std::string& what) {
  if (TheFakeCuda().violation.empty()) TheFakeCuda().violation = what;
}

int& Capturing() {
  static int capturing = 0;
  return capturing;
}

cudaError_t Planted(const char* name) {
  FakeCuda& fake = TheFakeCuda();
  if (fake.fail_call != name) return cudaSuccess;
  fake.fail_call.clear();
  return fake.fail_error;
}

cudaError_t Do(cudaStream_t stream, Work work) {
  if (stream == nullptr) {
    Violation("work on the default stream");
    return cudaErrorInvalidResourceHandle;
  }
  if (Of(stream)->capturing) {
    Of(stream)->captured.push_back(std::move(work));
  } else {
    work();
  }
  return cudaSuccess;
}

}  // namespace refract::runtime::cuda::testing

// NOLINTBEGIN: names and signatures are CUDA's.
using refract::runtime::cuda::testing::Capturing;
using refract::runtime::cuda::testing::Do;
using refract::runtime::cuda::testing::FakeGraph;
using refract::runtime::cuda::testing::FakeStream;
using refract::runtime::cuda::testing::Of;
using refract::runtime::cuda::testing::Planted;
using refract::runtime::cuda::testing::TheFakeCuda;
using refract::runtime::cuda::testing::Violation;

#define RETURN_IF_PLANTED                                                  \
  do {                                                                     \
    if (cudaError_t planted = Planted(__func__); planted != cudaSuccess) { \
      return planted;                                                      \
    }                                                                      \
  } while (false)

// Forbidden in a capture; ends the capture.
#define RETURN_IF_CAPTURING                               \
  do {                                                    \
    if (Capturing() > 0) {                                \
      Violation(std::string(__func__) + " in a capture"); \
      return cudaErrorStreamCaptureUnsupported;           \
    }                                                     \
  } while (false)

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  RETURN_IF_PLANTED;
  *count = TheFakeCuda().devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  RETURN_IF_PLANTED;
  return device < TheFakeCuda().devices ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = TheFakeCuda().driver_version;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  RETURN_IF_PLANTED;
  *properties = {};
  std::strcpy(properties->name, "a fake");
  properties->major = TheFakeCuda().compute_major;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                          : "an error";
}
const char* cudaGetErrorString(cudaError_t) { return "as planted"; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  RETURN_IF_PLANTED;
  *free_bytes = *total_bytes = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xFF, bytes);
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  RETURN_IF_CAPTURING;
  std::free(memory);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  RETURN_IF_PLANTED;
  *stream = reinterpret_cast<cudaStream_t>(new FakeStream);
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete Of(stream);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  RETURN_IF_PLANTED;
  return event == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  RETURN_IF_PLANTED;
  *event = reinterpret_cast<cudaEvent_t>(new int);
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<int*>(event);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  return event == nullptr || stream == nullptr ? cudaErrorInvalidResourceHandle
                                               : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                       cudaMemcpyKind) {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  return Do(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                              size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
  return Do(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes,
                            cudaStream_t stream) {
  RETURN_IF_PLANTED;
  return Do(stream, [=] { std::memset(memory, value, bytes); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode) {
  RETURN_IF_PLANTED;
  if (mode != cudaStreamCaptureModeThreadLocal) {
    Violation("a capture that other threads' calls break");
  }
  if (Of(stream)->capturing) return cudaErrorIllegalState;
  Of(stream)->capturing = true;
  ++Capturing();
  Of(stream)->captured.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  // Ends even when it fails.
  const bool capturing = std::exchange(Of(stream)->capturing, false);
  if (capturing) --Capturing();
  RETURN_IF_PLANTED;
  if (!capturing) return cudaErrorIllegalState;
  *graph = reinterpret_cast<cudaGraph_t>(new FakeGraph(Of(stream)->captured));
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph,
                                 unsigned long long) {
  RETURN_IF_PLANTED;
  *ready = reinterpret_cast<cudaGraphExec_t>(
      new FakeGraph(*reinterpret_cast<FakeGraph*>(graph)));
  ++TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<FakeGraph*>(graph);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  RETURN_IF_PLANTED;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  RETURN_IF_PLANTED;
  ++TheFakeCuda().graph_launches;
  return Do(stream, [graph] {
    for (const auto& work : *reinterpret_cast<FakeGraph*>(graph)) work();
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<FakeGraph*>(graph);
  --TheFakeCuda().live;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
  RETURN_IF_PLANTED;
  RETURN_IF_CAPTURING;
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND
