#ifndef REFRACT_RUNTIME_WIRE_CODER_POOL_H_
#define REFRACT_RUNTIME_WIRE_CODER_POOL_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/wire/codec.h"

namespace refract::runtime::wire {

// Encoders or decoders with the memory that they have grown, for messages of
// one codec; as many as messages are in use at a time. Thread-safe.
template <typename Coder>
class CoderPool {
 public:
  // `codec` must outlive it.
  explicit CoderPool(const Codec& codec) : codec_(codec) {}

  // One to use alone; goes back when it is dropped, before the pool.
  class Lease {
   public:
    Lease(CoderPool* pool, std::unique_ptr<Coder> coder)
        : pool_(pool), coder_(std::move(coder)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (coder_ != nullptr) pool_->Return(std::move(coder_));
    }
    Coder* operator->() { return coder_.get(); }

   private:
    CoderPool* pool_;
    std::unique_ptr<Coder> coder_;
  };

  Lease Acquire() {
    std::unique_ptr<Coder> coder;
    {
      absl::MutexLock lock(&mu_);
      if (!idle_.empty()) {
        coder = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (coder == nullptr) coder = std::make_unique<Coder>(codec_);
    return Lease(this, std::move(coder));
  }

 private:
  void Return(std::unique_ptr<Coder> coder) {
    absl::MutexLock lock(&mu_);
    idle_.push_back(std::move(coder));
  }

  const Codec& codec_;
  absl::Mutex mu_;
  std::vector<std::unique_ptr<Coder>> idle_ ABSL_GUARDED_BY(mu_);
};

using EncoderPool = CoderPool<Encoder>;
using DecoderPool = CoderPool<Decoder>;

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_CODER_POOL_H_
