#ifndef REFRACT_RUNTIME_WIRE_CODER_POOL_H_
#define REFRACT_RUNTIME_WIRE_CODER_POOL_H_

#include <memory>

#include "base/pool.h"
#include "runtime/wire/codec.h"

namespace refract::runtime::wire {

// Pool of encoders or decoders of one codec with their grown memory; as many as
// messages are in use at a time. Thread-safe.
template <typename Coder>
class CoderPool : public base::Pool<Coder> {
 public:
  // `codec` must outlive it.
  explicit CoderPool(const Codec& codec)
      : base::Pool<Coder>([&codec] { return std::make_unique<Coder>(codec); }) {
  }
};

using EncoderPool = CoderPool<Encoder>;
using DecoderPool = CoderPool<Decoder>;

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_CODER_POOL_H_
