#ifndef REFRACT_TRANSPORT_SHM_RING_H_
#define REFRACT_TRANSPORT_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace refract::transport::shm {

// A ring of immediates in memory shared by two processes: one writes, the other
// reads. An entry shows by itself that it is written: a count of entries beside
// them would be a second cache line that goes from processor to processor with
// each notification. Neither side trusts the other: each keeps its own position
// privately, and the writer checks the reader's position each time.
struct RingMemory {
  // Entries: enough for every slot of a large connection plus its credits, and
  // a power of two.
  static constexpr uint64_t kCapacity = 8192;

  alignas(64) std::atomic<uint64_t> read;
  // Set by the reader before it sleeps and by the writer before it waits for
  // room; the side that clears a flag signals the other's eventfd.
  alignas(64) std::atomic<uint32_t> reader_sleeps;
  std::atomic<uint32_t> writer_waits;
  // Upper half: the low 32 bits of the entry's position + 1, so neither zeroed
  // memory nor the entry of an earlier lap counts as written. Lower half: the
  // immediate.
  alignas(64) std::atomic<uint64_t> entries[kCapacity];

  static constexpr uint64_t Tag(uint64_t position) {
    return (position + 1) << 32;
  }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Writes. Belongs to one thread.
class RingWriter {
 public:
  // `first`: position of the first entry.
  explicit RingWriter(RingMemory* ring, uint64_t first = 0)
      : ring_(ring), position_(first), known_read_(first) {}

  // False: full.
  bool Push(uint32_t imm) {
    if (position_ - known_read_ >= RingMemory::kCapacity) {
      const uint64_t read = ring_->read.load(std::memory_order_acquire);
      // A reader that claims positions not yet written gains nothing: it can
      // only lose its own notifications.
      if (position_ - read >= RingMemory::kCapacity) return false;
      known_read_ = read;
    }
    ring_->entries[position_ % RingMemory::kCapacity].store(
        RingMemory::Tag(position_) | imm, std::memory_order_release);
    ++position_;
    return true;
  }
  // Call after Push. True once per sleep of the reader: signal the reader.
  //
  // Both sides change the flag only by exchanges: either this one sees that the
  // reader sleeps, or the reader's comes later, and with it the entry is seen.
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
  uint64_t position_;
  uint64_t known_read_;
};

// Reads. Belongs to one thread.
class RingReader {
 public:
  // `first`: as the writer's.
  explicit RingReader(RingMemory* ring, uint64_t first = 0)
      : ring_(ring), position_(first), published_(first) {}

  // Takes the next entry. False: none is written.
  bool Pop(uint32_t* imm) {
    const uint64_t entry = Next();
    if (!IsNext(entry)) return false;
    *imm = static_cast<uint32_t>(entry);
    ++position_;
    return true;
  }

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
    if (!IsNext(Next())) return true;
    ring_->reader_sleeps.exchange(0, std::memory_order_acq_rel);
    return false;
  }
  void AwakeAgain() {
    ring_->reader_sleeps.exchange(0, std::memory_order_acq_rel);
  }

 private:
  static constexpr uint64_t kUnpublished = RingMemory::kCapacity / 4;

  uint64_t Next() const {
    return ring_->entries[position_ % RingMemory::kCapacity].load(
        std::memory_order_acquire);
  }
  bool IsNext(uint64_t entry) const {
    return (entry ^ RingMemory::Tag(position_)) >> 32 == 0;
  }

  RingMemory* const ring_;
  uint64_t position_;
  uint64_t published_;
};

}  // namespace refract::transport::shm

#endif  // REFRACT_TRANSPORT_SHM_RING_H_
