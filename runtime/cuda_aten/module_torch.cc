#include <ATen/Context.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

#include "runtime/cuda_aten/streams.h"

namespace refract::runtime::cuda_aten {
namespace {

class CudaStreams final : public Streams {
 public:
  std::string With(int device, void* stream,
                   const std::function<void()>& body) override {
    try {
      // Initialises the allocator above all; later calls only read a flag.
      at::globalContext().lazyInitDevice(at::kCUDA);
      // Memory comes from LibTorch's own pool, in the order of the stream: the
      // next call on the stream may use memory that this call has freed.
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(
          static_cast<cudaStream_t>(stream),
          static_cast<c10::DeviceIndex>(device)));
      body();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
};

}  // namespace
}  // namespace refract::runtime::cuda_aten

// NOLINTNEXTLINE: the name is kStreamsFunction.
extern "C" __attribute__((visibility("default")))
refract::runtime::cuda_aten::Streams*
refract_cuda_aten_streams_1() {
  static refract::runtime::cuda_aten::CudaStreams streams;
  return &streams;
}
