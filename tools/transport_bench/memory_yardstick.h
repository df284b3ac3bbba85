#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_MEMORY_YARDSTICK_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_MEMORY_YARDSTICK_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "tools/transport_bench/subject.h"

namespace refract::transport_bench {

// What shared memory does by itself.
// Ping-pong: one flag per direction, each on its own cache line; up to 64 B are
// the flag's line itself, more are copied into the shared block before it. In
// event mode an eventfd per direction (write; poll and read) for the flag.
// Get: one memcpy by the initiator. Streams: memcpy through buffers of the same
// size and number as the data path's. The responder only waits.
//
// Must be made before the processes part: the memory is inherited. `max_bytes`:
// largest ring of messages.
absl::StatusOr<std::unique_ptr<Subject>> MemoryYardstick(size_t max_bytes);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_MEMORY_YARDSTICK_H_
