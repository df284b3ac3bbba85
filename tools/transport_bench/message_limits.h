#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_LIMITS_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_LIMITS_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/tensor.h"
#include "tools/transport_bench/work.h"
#include "transport/links/channel.h"
#include "transport/messages/wire.h"

namespace refract::transport_bench {

// Header and table of a message with one tensor, with room to spare.
inline constexpr size_t kMessageOverhead = 256;

// Limits of a connection that does `work`. Messages of up to `eager_bytes` of
// payload are put; with pulls, all but the empty ones are pulled.
inline transport::Limits LimitsFor(const Work& work, size_t eager_bytes) {
  const size_t message = std::max(Stride(work.point.bytes) + kMessageOverhead,
                                  transport::kMinSlotBytes);
  transport::Limits limits;
  limits.eager_bytes = work.point.op == Op::kPull
                           ? kMessageOverhead
                           : eager_bytes + kMessageOverhead;
  limits.max_message_bytes = message;
  // As many as nodes have by default, because how often credits travel depends
  // on it; and one more than are sent, because a callback may send the next
  // request before its own stops counting.
  limits.max_in_flight = std::max(limits.max_in_flight, work.outstanding + 1);
  // Four times what is under way, because over verbs it is a quarter of what is
  // asked for.
  limits.source_arena_bytes =
      4 * message * static_cast<size_t>(work.outstanding + 2);
  return limits;
}

// One tensor of N bytes, or none.
inline std::vector<base::TensorSpec> MessageSpecs(size_t bytes) {
  if (bytes == 0) return {};
  return {{base::DType::kUInt8, {static_cast<int64_t>(bytes)}}};
}

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_MESSAGE_LIMITS_H_
