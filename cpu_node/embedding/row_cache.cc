#include "cpu_node/embedding/row_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace refract::cpu_node {
namespace {

// Number of shards: threads then rarely want the same lock at once.
constexpr size_t kMaxShards = 64;
constexpr size_t kMinShardRows = 64;
// Bytes of a row's slot, its ghost and their entries in hash tables.
constexpr size_t kNumberBytes = 80;
// The small queue is this part of the rows.
constexpr uint32_t kSmallPart = 10;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdU;
  return x ^ (x >> 29);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowCache>> RowCache::Create(size_t bytes,
                                                           size_t row_bytes) {
  std::unique_ptr<RowCache> cache(new RowCache);
  cache->row_bytes_ = row_bytes;
  const size_t rows = std::max<size_t>(bytes / (row_bytes + kNumberBytes), 1);
  const size_t shards = std::clamp(rows / kMinShardRows, size_t{1}, kMaxShards);
  const size_t each = std::min<size_t>(rows / shards, kNone - 1);
  REFRACT_ASSIGN_OR_RETURN(
      cache->memory_, base::LargeMemory::Allocate(shards * each * row_bytes));
  cache->shards_ = std::vector<Shard>(shards);
  for (size_t s = 0; s < shards; ++s) {
    Shard& shard = cache->shards_[s];
    absl::MutexLock lock(&shard.mu);
    shard.rows = cache->memory_->bytes().data() + s * each * row_bytes;
    shard.slots.resize(each);
    shard.places.reserve(each);
    shard.ghosts.resize(each);
    shard.ghost_places.reserve(each);
  }
  return cache;
}

size_t RowCache::capacity() const {
  return memory_->bytes().size() / row_bytes_;
}

RowCache::Shard& RowCache::ShardOf(uint64_t key) {
  return shards_[Mix(key) % shards_.size()];
}

bool RowCache::Get(uint64_t key, std::byte* to) {
  Shard& shard = ShardOf(key);
  absl::MutexLock lock(&shard.mu);
  const auto place = shard.places.find(key);
  if (place == shard.places.end()) return false;
  Slot& slot = shard.slots[place->second];
  if (slot.uses < kMostUses) ++slot.uses;
  std::memcpy(to, shard.rows + place->second * row_bytes_, row_bytes_);
  return true;
}

void RowCache::Push(Shard& shard, Queue& queue, uint32_t slot) {
  shard.slots[slot].next = kNone;
  if (queue.newest != kNone) shard.slots[queue.newest].next = slot;
  if (queue.oldest == kNone) queue.oldest = slot;
  queue.newest = slot;
  ++queue.size;
}

uint32_t RowCache::Pop(Shard& shard, Queue& queue) {
  const uint32_t slot = queue.oldest;
  queue.oldest = shard.slots[slot].next;
  if (queue.oldest == kNone) queue.newest = kNone;
  --queue.size;
  return slot;
}

void RowCache::Remember(Shard& shard, uint64_t key) {
  uint64_t& place = shard.ghosts[shard.next_ghost];
  const auto old = shard.ghost_places.find(place);
  if (old != shard.ghost_places.end() && old->second == shard.next_ghost) {
    shard.ghost_places.erase(old);
  }
  place = key;
  shard.ghost_places[key] = shard.next_ghost;
  shard.next_ghost = (shard.next_ghost + 1) % shard.ghosts.size();
}

uint32_t RowCache::Free(Shard& shard) {
  if (shard.used < shard.slots.size()) return shard.used++;
  const auto small_rows = static_cast<uint32_t>(shard.slots.size()) / kSmallPart;
  while (true) {
    if (shard.small.size > small_rows || shard.large.size == 0) {
      const uint32_t slot = Pop(shard, shard.small);
      Slot& row = shard.slots[slot];
      if (row.uses >= kUsesToStay) {
        row.uses = 0;
        Push(shard, shard.large, slot);
        continue;
      }
      Remember(shard, row.key);
      shard.places.erase(row.key);
      return slot;
    }
    const uint32_t slot = Pop(shard, shard.large);
    Slot& row = shard.slots[slot];
    // The loop ends, because each round takes a use away.
    if (row.uses > 0) {
      --row.uses;
      Push(shard, shard.large, slot);
      continue;
    }
    shard.places.erase(row.key);
    return slot;
  }
}

void RowCache::Put(uint64_t key, const std::byte* row) {
  Shard& shard = ShardOf(key);
  absl::MutexLock lock(&shard.mu);
  if (shard.places.contains(key)) return;  // another request read it as well
  const uint32_t slot = Free(shard);
  shard.slots[slot].key = key;
  shard.slots[slot].uses = 0;
  std::memcpy(shard.rows + slot * row_bytes_, row, row_bytes_);
  shard.places[key] = slot;
  const auto ghost = shard.ghost_places.find(key);
  if (ghost != shard.ghost_places.end()) {
    shard.ghost_places.erase(ghost);
    Push(shard, shard.large, slot);
  } else {
    Push(shard, shard.small, slot);
  }
}

}  // namespace refract::cpu_node
