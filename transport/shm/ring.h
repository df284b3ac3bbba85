#ifndef REFRACT_TRANSPORT_SHM_RING_H_
#define REFRACT_TRANSPORT_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace refract::transport::shm {

// A ring of immediates in memory shared by two processes: one writes, the other
// reads. Neither trusts the other: each keeps its own position privately, and
// checks the other's position each time.
struct RingMemory {
  // Entries: enough for every slot of a large connection plus its credits, and
  // a power of two.
  static constexpr uint64_t kCapacity = 8192;

  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  // Set by the reader before it sleeps and by the writer before it waits for
  // room; the side that clears a flag signals the other's eventfd.
  alignas(64) std::atomic<uint32_t> reader_sleeps;
  std::atomic<uint32_t> writer_waits;
  alignas(64) std::atomic<uint32_t> immediates[kCapacity];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Writes. Belongs to one thread.
class RingWriter {
 public:
  explicit RingWriter(RingMemory* ring) : ring_(ring) {}

  // False: full.
  bool Push(uint32_t imm) {
    if (position_ - known_read_ >= RingMemory::kCapacity) {
      const uint64_t read = ring_->read.load(std::memory_order_acquire);
      // A reader that claims positions not yet written gains nothing: it can
      // only lose its own notifications.
      if (position_ - read >= RingMemory::kCapacity) return false;
      known_read_ = read;
    }
    ring_->immediates[position_ % RingMemory::kCapacity].store(
        imm, std::memory_order_relaxed);
    ++position_;
    ring_->written.store(position_, std::memory_order_release);
    return true;
  }
  // Call after Push. True once per sleep of the reader: signal the reader.
  //
  // Both sides change the flag only by exchanges: either this one sees that the
  // reader sleeps, or the reader's comes later, and with it the entry is seen.
  // The barrier is here and not at `written`, whose line then comes from the
  // reader's processor together with the entry's, not after it.
  bool ReaderSleeps() {
    return ring_->reader_sleeps.fetch_add(0, std::memory_order_acq_rel) != 0 &&
           ring_->reader_sleeps.exchange(0) != 0;
  }
  // Call after Push failed: the reader will signal when there is room. False:
  // there is room already.
  bool WaitForRoom() {
    ring_->writer_waits.store(1, std::memory_order_seq_cst);
    return position_ - ring_->read.load(std::memory_order_seq_cst) >=
           RingMemory::kCapacity;
  }

 private:
  RingMemory* const ring_;
  uint64_t position_ = 0;
  uint64_t known_read_ = 0;
};

// Reads. Belongs to one thread.
class RingReader {
 public:
  explicit RingReader(RingMemory* ring) : ring_(ring) {}

  // Whether Pop() may be called. False: empty, or broken() from here on, after
  // which the ring must not be read.
  bool HasEntry() {
    if (position_ != known_written_) return true;
    known_written_ = ring_->written.load(std::memory_order_acquire);
    if (known_written_ - position_ > RingMemory::kCapacity) broken_ = true;
    return !broken_ && position_ != known_written_;
  }
  uint32_t Pop() {
    const uint32_t imm =
        ring_->immediates[position_ % RingMemory::kCapacity].load(
            std::memory_order_relaxed);
    ++position_;
    return imm;
  }
  // The writer claims more entries than fit.
  bool broken() const { return broken_; }

  // Tells the writer the read position, now and then: the writer needs it only
  // when the ring looks full, and then more entries than kUnpublished are left
  // to read. True: the writer waits; signal it.
  bool Publish() {
    if (position_ - published_ < kUnpublished) return false;
    published_ = position_;
    ring_->read.store(position_, std::memory_order_seq_cst);
    return ring_->writer_waits.load(std::memory_order_seq_cst) != 0 &&
           ring_->writer_waits.exchange(0) != 0;
  }

  // Call before sleeping. False: an entry came, do not sleep.
  bool PrepareSleep() {
    ring_->reader_sleeps.exchange(1, std::memory_order_acq_rel);
    if (ring_->written.load(std::memory_order_acquire) == position_) {
      return true;
    }
    ring_->reader_sleeps.exchange(0, std::memory_order_acq_rel);
    return false;
  }
  void AwakeAgain() {
    ring_->reader_sleeps.exchange(0, std::memory_order_acq_rel);
  }

 private:
  static constexpr uint64_t kUnpublished = RingMemory::kCapacity / 4;

  RingMemory* const ring_;
  uint64_t position_ = 0;
  uint64_t known_written_ = 0;
  uint64_t published_ = 0;
  bool broken_ = false;
};

}  // namespace refract::transport::shm

#endif  // REFRACT_TRANSPORT_SHM_RING_H_
