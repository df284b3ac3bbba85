#ifndef REFRACT_CPU_NODE_EMBEDDING_ROW_CACHE_H_
#define REFRACT_CPU_NODE_EMBEDDING_ROW_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/memory/large_memory.h"

namespace refract::cpu_node {

// Caches rows of equal length by number, with the eviction policy S3-FIFO (Yang
// et al., SOSP 2023). A new row enters a small queue, a tenth of the cache. A
// row that is used again before it leaves the small queue, or soon after, moves
// to the large queue, which reinserts rows that were used meanwhile. Rows that
// are asked for once, the majority of a skewed distribution, thus never push
// out rows that are asked for often.
//
// Thread-safe: shards with a lock each, held for a copy of one row.
class RowCache {
 public:
  // Rows of `row_bytes` in about `bytes` of memory, which includes 80 bytes per
  // row for keys, uses and places. ResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<RowCache>> Create(size_t bytes,
                                                          size_t row_bytes);

  // Copies row `key` to `to`; false: the cache does not have the row.
  bool Get(uint64_t key, std::byte* to);
  // Puts a copy of the row into the cache. No effect if the cache has it.
  void Put(uint64_t key, const std::byte* row);

  size_t capacity() const;  // rows
  size_t memory_bytes() const { return memory_->bytes().size(); }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr uint8_t kMostUses = 3;
  // Uses since the row was put in that earn a place in the large queue.
  static constexpr uint8_t kUsesToStay = 2;

  struct Slot {
    uint64_t key = 0;
    uint32_t next = kNone;  // in its queue, towards newer rows
    uint8_t uses = 0;
  };
  struct Queue {
    uint32_t oldest = kNone;
    uint32_t newest = kNone;
    uint32_t size = 0;
  };
  struct alignas(64) Shard {
    absl::Mutex mu;
    std::byte* rows = nullptr;
    std::vector<Slot> slots ABSL_GUARDED_BY(mu);
    uint32_t used ABSL_GUARDED_BY(mu) = 0;  // slots that ever held a row
    absl::flat_hash_map<uint64_t, uint32_t> places ABSL_GUARDED_BY(mu);
    Queue small ABSL_GUARDED_BY(mu);
    Queue large ABSL_GUARDED_BY(mu);
    // Keys that left the small queue, a ring, and their places in it.
    std::vector<uint64_t> ghosts ABSL_GUARDED_BY(mu);
    size_t next_ghost ABSL_GUARDED_BY(mu) = 0;
    absl::flat_hash_map<uint64_t, size_t> ghost_places ABSL_GUARDED_BY(mu);
  };

  RowCache() = default;
  Shard& ShardOf(uint64_t key);
  static void Push(Shard& shard, Queue& queue, uint32_t slot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  static uint32_t Pop(Shard& shard, Queue& queue)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  // A slot without a row.
  static uint32_t Free(Shard& shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);
  static void Remember(Shard& shard, uint64_t key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mu);

  size_t row_bytes_ = 0;
  std::unique_ptr<base::LargeMemory> memory_;
  std::vector<Shard> shards_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_ROW_CACHE_H_
