#ifndef REFRACT_TOOLS_TRANSPORT_METER_CONTROL_H_
#define REFRACT_TOOLS_TRANSPORT_METER_CONTROL_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/session.pb.h"
#include "tools/transport_meter/subject.h"
#include "transport/loop/fd.h"
#include "transport/loop/waker.h"
#include "transport/paths/path_resources.h"

namespace refract::transport_meter {

// The connection over which the two processes of a run agree on the next
// measurement: short messages, whole and in order. Both ends are this program,
// so messages are not validated. Belongs to one thread per side.
class Control {
 public:
  explicit Control(transport::UniqueFd fd) : fd_(std::move(fd)) {}

  static absl::StatusOr<std::pair<Control, Control>> MakePair();

  // Unavailable: the other process is gone. InvalidArgument: too long.
  absl::Status Send(absl::string_view message);
  // DeadlineExceeded: nothing came in two minutes. If the other side gave up
  // and sent a status instead, returns this status.
  absl::StatusOr<std::string> Receive();

  // Both sides call it: gives each the other's text.
  absl::StatusOr<std::string> Exchange(absl::string_view mine);

  // How a step ended on this side; on the other. Messages of the step that were
  // not received are dropped, so that both sides are at the same step again.
  absl::Status SendStatus(const absl::Status& status);
  absl::Status ReceiveStatus();

 private:
  absl::Status SendPacket(absl::string_view packet);
  absl::StatusOr<std::string> ReceivePacket();

  transport::UniqueFd fd_;
  std::optional<absl::Status> ended_;  // came instead of a message
};

// Resources for the paths of one connection.
struct Connection {
  transport::UniqueFd socket;  // invalid if descriptors are enough
  // Used by this side's thread; outlives the path.
  std::unique_ptr<transport::PathResources> resources;
  std::shared_ptr<transport::ThreadWaker> waker;  // resources->waker
};
// As transport::MakePath. Both sides call it.
absl::StatusOr<Connection> ConnectPath(const Setup& setup,
                                       proto::TransportPath path,
                                       const std::string& rdma_device);

// One end of a fresh connection between the processes, non-blocking: a unix
// stream socket if `local`, else TCP over the loopback interface. Both sides
// call it.
absl::StatusOr<transport::UniqueFd> Connect(const Setup& setup, bool local);

}  // namespace refract::transport_meter

#endif  // REFRACT_TOOLS_TRANSPORT_METER_CONTROL_H_
