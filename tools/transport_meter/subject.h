#ifndef REFRACT_TOOLS_TRANSPORT_METER_SUBJECT_H_
#define REFRACT_TOOLS_TRANSPORT_METER_SUBJECT_H_

// A measurement is an operation, a size and a way of waiting (Work), done by a
// data path at one level or by a baseline (Subject).

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/transport_meter/recorder.h"

namespace refract::transport_meter {

class Control;

// The two processes of a run.
enum class Side : uint8_t {
  kInitiator,  // starts every operation and takes the time
  kResponder,
};
constexpr Side OtherSide(Side side) {
  return side == Side::kInitiator ? Side::kResponder : Side::kInitiator;
}

enum class Op : uint8_t {
  kPingPong,   // N bytes there, N bytes back
  kPull,       // a descriptor there, the peer gets N bytes, an empty answer
  kGet,        // N bytes from the peer's memory
  kStream,     // many messages of N bytes, a bounded queue depth
  kGetStream,  // the same with gets
  kFanIn,  // incast: a stream over many connections that one thread receives
};
inline constexpr std::array<absl::string_view, 6> kOpNames = {
    "pingpong", "pull", "get", "stream", "get-stream", "fan-in"};
constexpr absl::string_view OpName(Op op) {
  return kOpNames[static_cast<size_t>(op)];
}
constexpr bool IsStream(Op op) { return op >= Op::kStream; }

enum class Mode : uint8_t {
  kBusy,      // both sides spin
  kEvent,     // both sides sleep until something arrives
  kAdaptive,  // the channel's own choice between the two
};
inline constexpr std::array<absl::string_view, 3> kModeNames = {"busy", "event",
                                                                "adaptive"};
constexpr absl::string_view ModeName(Mode mode) {
  return kModeNames[static_cast<size_t>(mode)];
}

struct Point {
  Op op = Op::kPingPong;
  Mode mode = Mode::kBusy;
  size_t bytes = 0;  // of payload per message; above 0

  friend bool operator==(const Point&, const Point&) = default;
};

// One measurement, equal on both sides. Trivially copyable: its bytes are sent
// between the processes.
struct Work {
  Point point;
  int iterations = 0;
  // Queue depth: messages under way in streams; buffers per side in all other
  // operations.
  int outstanding = 2;
  // Payloads are written and checked byte by byte. Such a run is never timed.
  bool verify = false;
  uint64_t seed = 0;  // of the payloads
};

// Room for one message of a ring, so that each begins on a cache line.
constexpr size_t Stride(size_t bytes) { return (bytes + 63) / 64 * 64; }

// One side of an open connection. Belongs to one thread.
class Session {
 public:
  virtual ~Session() = default;

  // Called before the other side is told that this side is ready for `work`.
  virtual absl::Status Prepare(const Work& work) { return absl::OkStatus(); }

  // Does `work` together with the other side's Run, which gets an equal Work at
  // about the same time. The initiator starts `recorder` when the other side is
  // ready and laps it after every operation (streams: stops it when the last
  // byte is known to be there). DataLoss: verification found wrong bytes. After
  // an error the session must not be used again.
  virtual absl::Status Run(const Work& work, Recorder& recorder) = 0;
};

// The arguments of Open.
struct Setup {
  Side side = Side::kInitiator;
  Work work;         // largest that Run will be given
  Control* control;  // to the other side's Open, until Open returns
};

// A data path at one level, or a baseline. Created before the fork, so that
// both processes have the same subjects. Opening may be repeated.
class Subject {
 public:
  virtual ~Subject() = default;

  virtual bool Supports(const Point& point) const = 0;
  virtual absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const = 0;
};

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_SUBJECT_H_
