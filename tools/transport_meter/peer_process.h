#ifndef REFRACT_TOOLS_TRANSPORT_METER_PEER_PROCESS_H_
#define REFRACT_TOOLS_TRANSPORT_METER_PEER_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/transport_meter/control.h"
#include "tools/transport_meter/plan.h"
#include "tools/transport_meter/recorder.h"

namespace refract::transport_meter {

// Keeps the calling thread, and threads that it starts, on one processor;
// the destructor takes that back.
class PinnedThread {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedThread>> Pin(int cpu);
  ~PinnedThread();

 private:
  explicit PinnedThread(std::vector<int> before) : before_(std::move(before)) {}
  const std::vector<int> before_;
};

// The responder: a child process, on its own processor, that follows commands
// until this object is destroyed. Belongs to one thread, which must be the only
// one of the process when Start is called: the child continues from a copy of
// it and starts its own threads.
class PeerProcess {
 public:
  // Open's index refers to `subjects`, on both sides; they outlive this.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Start(
      const std::vector<Measured>* subjects, int cpu);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Opens subjects[index] on both sides. `work` as in Setup. An error of
  // either side; then nothing is open.
  absl::Status Open(size_t index, const Work& work);
  // Runs `work` on both sides of the open session. After an error it is closed.
  absl::Status Run(size_t index, const Work& work, Recorder& recorder);
  void Close(size_t index);

 private:
  PeerProcess(const std::vector<Measured>* subjects, pid_t child,
              Control control);

  const std::vector<Measured>* const subjects_;
  const pid_t child_;
  Control control_;
  std::vector<std::unique_ptr<Session>> sessions_;  // by subject; null: closed
};

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_PEER_PROCESS_H_
