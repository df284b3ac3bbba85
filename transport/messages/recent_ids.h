#ifndef REFRACT_TRANSPORT_MESSAGES_RECENT_IDS_H_
#define REFRACT_TRANSPORT_MESSAGES_RECENT_IDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace refract::transport {

// The latest message ids that a peer has named, up to a fixed number. Not
// thread-safe.
class RecentIds {
 public:
  // `most` ≥ 1. Allocates all its memory here.
  explicit RecentIds(size_t most) : by_age_(most) {
    // Twice the most entries: a fuller table may rehash, and so allocate, on
    // insertion.
    ids_.reserve(2 * most);
  }

  // Adds an id; if full, forgets the oldest id. No effect if it is present.
  void Add(uint64_t id) {
    if (!ids_.insert(id).second) return;
    Entry& entry = by_age_[next_];
    next_ = (next_ + 1) % by_age_.size();
    if (entry.used) ids_.erase(entry.id);
    entry = {true, id};
  }
  // Forgets the id; false if it is not present.
  bool Take(uint64_t id) {
    if (ids_.empty() || ids_.erase(id) == 0) return false;
    for (Entry& entry : by_age_) {
      if (entry.id == id) entry.used = false;
    }
    return true;
  }

 private:
  struct Entry {
    bool used = false;
    uint64_t id = 0;
  };
  std::vector<Entry> by_age_;  // a ring
  size_t next_ = 0;
  absl::flat_hash_set<uint64_t> ids_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_RECENT_IDS_H_
