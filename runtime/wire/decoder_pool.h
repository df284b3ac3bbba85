#ifndef REFRACT_RUNTIME_WIRE_DECODER_POOL_H_
#define REFRACT_RUNTIME_WIRE_DECODER_POOL_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/wire/codec.h"

namespace refract::runtime::wire {

// Decoders with the memory that they have grown, for messages of one codec;
// as many as messages are in use at a time. Thread-safe.
class DecoderPool {
 public:
  // `codec` must outlive it.
  explicit DecoderPool(const Codec& codec) : codec_(codec) {}

  // A decoder to use alone; goes back when it is dropped, before the pool.
  class Lease {
   public:
    Lease(DecoderPool* pool, std::unique_ptr<Decoder> decoder)
        : pool_(pool), decoder_(std::move(decoder)) {}
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (decoder_ != nullptr) pool_->Return(std::move(decoder_));
    }
    Decoder* operator->() { return decoder_.get(); }

   private:
    DecoderPool* pool_;
    std::unique_ptr<Decoder> decoder_;
  };

  Lease Acquire() {
    std::unique_ptr<Decoder> decoder;
    {
      absl::MutexLock lock(&mu_);
      if (!idle_.empty()) {
        decoder = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (decoder == nullptr) decoder = std::make_unique<Decoder>(codec_);
    return Lease(this, std::move(decoder));
  }

 private:
  void Return(std::unique_ptr<Decoder> decoder) {
    absl::MutexLock lock(&mu_);
    idle_.push_back(std::move(decoder));
  }

  const Codec& codec_;
  absl::Mutex mu_;
  std::vector<std::unique_ptr<Decoder>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_DECODER_POOL_H_
