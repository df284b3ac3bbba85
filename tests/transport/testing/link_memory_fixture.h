#ifndef REFRACT_TESTS_TRANSPORT_TESTING_LINK_MEMORY_FIXTURE_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_LINK_MEMORY_FIXTURE_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "transport/datapath.h"
#include "transport/links/link_memory.h"
#include "transport/loop/waker.h"
#include "transport/memory/arena.h"

namespace refract::transport {

// A link's memory over regions of a path: `source` holds two arenas of
// `arena_bytes`, for texts of failures and for messages, `pulls` holds one.
inline std::shared_ptr<LinkMemory> NewLinkMemory(
    const Region& slots, const Region& source, const Region& pulls,
    size_t arena_bytes, size_t max_send_bytes, int num_slots,
    const std::shared_ptr<Waker>& waker) {
  return std::make_shared<LinkMemory>(
      slots, std::make_shared<Arena>(source, arena_bytes, arena_bytes, waker),
      std::make_shared<Arena>(source, 0, arena_bytes, waker),
      std::make_shared<Arena>(pulls, 0, arena_bytes, waker), waker,
      max_send_bytes, num_slots);
}

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_LINK_MEMORY_FIXTURE_H_
