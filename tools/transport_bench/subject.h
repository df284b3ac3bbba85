#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_SUBJECT_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_SUBJECT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/transport_bench/control.h"
#include "tools/transport_bench/recorder.h"
#include "tools/transport_bench/work.h"

namespace refract::transport_bench {

// One side of an open connection of what is measured. Belongs to one thread.
class Session {
 public:
  virtual ~Session() = default;

  // Before the other side is told that this one is ready for `work`.
  virtual absl::Status Prepare(const Work& work) { return absl::OkStatus(); }

  // Does `work` together with the other side's Run, which is called with the
  // same at about the same time. The initiator starts `recorder` when the other
  // side is ready and laps it after every operation (streams: stops it when the
  // last byte is known to be there). DataLoss: verification found wrong bytes.
  // After an error the session is of no more use.
  virtual absl::Status Run(const Work& work, Recorder& recorder) = 0;
};

// What Open needs to know.
struct Setup {
  Side side = Side::kInitiator;
  Work work;         // largest that Run will be given
  Control* control;  // to the other side's Open, until Open returns
};

// Something to measure: a data path at one level, or a yardstick. Made before
// the processes part, so both have the same ones. Opening may be repeated.
class Subject {
 public:
  virtual ~Subject() = default;

  virtual bool Supports(const Point& point) const = 0;
  virtual absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const = 0;
};

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_SUBJECT_H_
