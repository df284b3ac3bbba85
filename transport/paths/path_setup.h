#ifndef REFRACT_TRANSPORT_PATHS_PATH_SETUP_H_
#define REFRACT_TRANSPORT_PATHS_PATH_SETUP_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/session.pb.h"
#include "transport/datapath.h"
#include "transport/links/channel.h"
#include "transport/links/link.h"
#include "transport/loop/stream.h"
#include "transport/loop/waker.h"
#include "transport/paths/path_choice.h"
#include "transport/paths/path_resources.h"

namespace refract::transport {

// InvalidArgument names the limit that is out of range.
absl::Status CheckLimits(const Limits& limits);

// The limits that this side announces; `max_in_flight` may be lower than in
// `limits`.
proto::ReceiveLimits AnnouncedLimits(const Limits& limits, int max_in_flight);
// InvalidArgument: numbers that no honest peer announces.
absl::Status CheckPeerLimits(const proto::ReceiveLimits& limits);

// An attempt to bring up a data path: this side's regions, the peer's regions,
// and a probe through the path, so that a path is chosen because it works.
// Belongs to the handshake's thread.
class PathSetup {
 public:
  // `own`: limits as announced. `waker` is woken when messages return memory,
  // `resources` belong to the polling thread of the path. Makes and exports the
  // regions.
  static absl::StatusOr<std::unique_ptr<PathSetup>> Create(
      proto::TransportPath path, Stream socket, absl::string_view peer,
      const Limits& limits, const proto::ReceiveLimits& own,
      std::shared_ptr<Waker> waker, PathResources* resources,
      const PathChoice& choice = {});

  // As DataPath::rail().
  std::string rail() const { return path_->rail(); }
  const std::string& slots_descriptor() const { return slots_descriptor_; }
  const std::string& source_descriptor() const { return source_descriptor_; }

  // InvalidArgument: regions that do not fit `peer`'s limits.
  absl::Status ImportPeer(absl::string_view slots, absl::string_view source,
                          const proto::ReceiveLimits& peer);

  // Puts `text` (at most 64 B) into the peer's probe slot.
  absl::Status PostProbe(absl::string_view text);
  // For the side that probes second. True: the peer's probe has not come yet,
  // so sleep on fd() as for a DataPath, then call AnswerProbe.
  bool awaits_probe() const { return !probe_came_ && failure_.ok(); }
  bool Arm() { return path_->Arm(); }
  int fd() const { return path_->fd(); }
  // Posts `text` as this side's probe once the peer's probe is here, which
  // proves that the peer's end can receive. AwaitProbe returns its errors.
  void AnswerProbe(absl::string_view text);
  // True: the peer's probe is here and equals `text`, and this side's probe was
  // sent. False: not yet.
  absl::StatusOr<bool> TakeProbe(absl::string_view text);
  // Waits until TakeProbe() is true. DeadlineExceeded: the probe did not come.
  absl::Status AwaitProbe(absl::string_view text, const Wait& wait,
                          absl::Time deadline);

  // Fills in the fields of `established` that depend on the path. Call once.
  void Finish(uint64_t epoch, MessageKind receives, Established* established);

 private:
  PathSetup(proto::TransportPath kind, std::unique_ptr<DataPath> path,
            const Limits& limits, const proto::ReceiveLimits& own,
            std::shared_ptr<Waker> waker, PullScheduler* pulls)
      : kind_(kind),
        path_(std::move(path)),
        limits_(limits),
        own_(own),
        waker_(std::move(waker)),
        pull_scheduler_(pulls) {}

  absl::Status MakeRegions();
  // Polls once and records the peer's probe.
  absl::Status TakeCompletions();

  const proto::TransportPath kind_;
  std::unique_ptr<DataPath> path_;
  const Limits limits_;
  const proto::ReceiveLimits own_;
  const std::shared_ptr<Waker> waker_;
  PullScheduler* const pull_scheduler_;
  Region slots_;
  std::shared_ptr<Arena> source_;
  std::shared_ptr<Arena> texts_;
  std::shared_ptr<Arena> pulls_;
  std::string slots_descriptor_;
  std::string source_descriptor_;
  proto::ReceiveLimits peer_;
  RemoteRegion peer_slots_;
  RemoteRegion peer_source_;
  std::optional<ArenaBlock> probe_;
  bool probe_sent_ = false;
  bool probe_came_ = false;
  absl::Status failure_;  // of AnswerProbe
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_PATH_SETUP_H_
