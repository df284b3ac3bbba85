#ifndef REFRACT_RUNTIME_CUDA_ATEN_STREAMS_H_
#define REFRACT_RUNTIME_CUDA_ATEN_STREAMS_H_

// The calls that LibTorch needs before it gives work to a GPU, and the shared
// library with them: the only part of Refract that is linked with LibTorch's
// CUDA library, and loaded only for a model that needs it.

#include <functional>
#include <string>

namespace refract::runtime::cuda_aten {

class Streams {
 public:
  virtual ~Streams() = default;
  // Runs `body` on the calling thread while LibTorch works on `stream`, a
  // cudaStream_t of GPU `device`. Returns LibTorch's message if it threw, ""
  // otherwise; `body` itself must not throw.
  virtual std::string With(int device, void* stream,
                           const std::function<void()>& body) = 0;
};

inline constexpr char kModuleFile[] = "librefract_cuda_aten_module.so";
// The name changes with this file.
inline constexpr char kStreamsFunction[] = "refract_cuda_aten_streams_1";
// Lives as long as the library.
using StreamsFunction = Streams*();

}  // namespace refract::runtime::cuda_aten

#endif  // REFRACT_RUNTIME_CUDA_ATEN_STREAMS_H_
