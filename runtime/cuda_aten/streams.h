#ifndef REFRACT_RUNTIME_CUDA_ATEN_STREAMS_H_
#define REFRACT_RUNTIME_CUDA_ATEN_STREAMS_H_

// What LibTorch must be told before it gives work to a GPU, and the shared
// library that tells it: the only part of Refract that is linked with
// LibTorch's CUDA library, and loaded only for a model that needs it.

#include <functional>
#include <string>

namespace refract::runtime::cuda_aten {

class Streams {
 public:
  virtual ~Streams() = default;
  // Runs `body` on the calling thread while `stream`, a cudaStream_t of GPU
  // `device`, is the one that LibTorch works on. Gives LibTorch's message if it
  // threw, "" otherwise; `body` itself does not throw.
  virtual std::string With(int device, void* stream,
                           const std::function<void()>& body) = 0;
};

inline constexpr char kModuleFile[] = "librefract_cuda_aten_module.so";
// Its name changes with this file.
inline constexpr char kStreamsFunction[] = "refract_cuda_aten_streams_1";
// Lives as long as the library.
using StreamsFunction = Streams*();

}  // namespace refract::runtime::cuda_aten

#endif  // REFRACT_RUNTIME_CUDA_ATEN_STREAMS_H_
