#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_WORK_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_WORK_H_

// What is measured: one operation, size and way of waiting at a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace refract::transport_bench {

// The two processes of a run.
enum class Side : uint8_t {
  kInitiator,  // starts every operation and takes the time
  kResponder,
};

enum class Op : uint8_t {
  kPingPong,   // N bytes there, N bytes back
  kPull,       // a descriptor there, the peer gets N bytes, an empty answer
  kGet,        // N bytes from the peer's memory
  kStream,     // many messages of N bytes, a bounded number under way
  kGetStream,  // the same with gets
  kFanIn,      // a stream over many connections that one thread receives
};

enum class Mode : uint8_t {
  kBusy,      // both sides spin
  kEvent,     // both sides sleep until something comes
  kAdaptive,  // the channel's own choice, between these
};

inline constexpr bool IsStream(Op op) {
  return op == Op::kStream || op == Op::kGetStream || op == Op::kFanIn;
}

absl::string_view OpName(Op op);
absl::string_view ModeName(Mode mode);
const std::vector<Op>& AllOps();

struct Point {
  Op op = Op::kPingPong;
  Mode mode = Mode::kBusy;
  size_t bytes = 0;  // of payload per message; above 0
};

// One measurement. Both sides are given the same. Plain bytes: it crosses
// between the processes as it lies in memory.
struct Work {
  Point point;
  int iterations = 0;
  // Messages under way in streams; buffers per side in everything else.
  int outstanding = 2;
  // Payloads are written and checked byte by byte; takes longer, so that such
  // a run is never timed.
  bool verify = false;
  uint64_t seed = 0;  // of the payloads
};

// Room for one message of a ring, so that each begins on a cache line.
inline constexpr size_t Stride(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_WORK_H_
