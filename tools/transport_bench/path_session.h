#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_PATH_SESSION_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_PATH_SESSION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "tools/transport_bench/subject.h"
#include "tools/transport_bench/waiter.h"
#include "transport/datapath.h"
#include "transport/paths/path_resources.h"

namespace refract::transport_bench {

// Path with its regions, and the loops over it.
class PathSession : public Session {
 public:
  // Makes, exchanges and imports the regions. `resources` are the path's.
  static absl::StatusOr<std::unique_ptr<PathSession>> Create(
      std::unique_ptr<transport::PathResources> resources,
      std::unique_ptr<transport::DataPath> path, const Setup& setup);

  absl::Status Run(const Work& work, Recorder& recorder) override;

 private:
  PathSession(std::unique_ptr<transport::PathResources> resources,
              std::unique_ptr<transport::DataPath> path, Side side)
      : resources_(std::move(resources)),
        path_(std::move(path)),
        side_(side),
        peer_(side == Side::kInitiator ? Side::kResponder : Side::kInitiator) {}

  // Both sides are in their loops, and what the peer may get is in place.
  absl::Status Begin();
  absl::Status PingPong(Recorder& recorder);
  absl::Status Pull(Recorder& recorder);
  absl::Status Get(Recorder& recorder);
  absl::Status Stream(Recorder& recorder);
  absl::Status GetStream(Recorder& recorder);
  absl::Status StreamOut();
  absl::Status StreamIn();
  // Serves the peer's gets until it says that it has all.
  absl::Status ServeGets();

  // One round of completions; waits in the work's way when there were none.
  absl::Status Progress();
  template <typename Condition>
  absl::Status Until(Condition done) {
    while (!done()) REFRACT_RETURN_IF_ERROR(Progress());
    return absl::OkStatus();
  }

  // Message i of this side, from its slot of the source ring to the same slot
  // of the peer's inbox. Waits for the slot's last put to be done.
  absl::Status Put(int i, size_t bytes);
  // An empty put_notify.
  absl::Status Tell(uint32_t imm);
  absl::Status PostGet(int i);
  absl::Status CheckInbox(int i);
  absl::Status CheckGot(int i);
  absl::Status Posted(transport::PostResult result);
  size_t Slot(int i) const;

  const std::unique_ptr<transport::PathResources> resources_;
  const std::unique_ptr<transport::DataPath> path_;
  const Side side_;
  const Side peer_;
  transport::Region inbox_;   // the peer puts here
  transport::Region source_;  // puts come from here, and the peer gets
  transport::Region local_;   // own gets land here
  transport::RemoteRegion peer_inbox_;
  transport::RemoteRegion peer_source_;

  Work work_;
  Waiter waiter_;
  // Of this run.
  int puts_posted_ = 0;
  int puts_done_ = 0;
  int gets_posted_ = 0;
  int gets_done_ = 0;
  int notes_ = 0;
  uint32_t last_imm_ = 0;
  bool ordered_ = true;  // notes so far carried 0, 1, 2, …
  std::array<transport::Completion, 64> completions_;
};

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_PATH_SESSION_H_
