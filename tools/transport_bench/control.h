#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_CONTROL_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_CONTROL_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/loop/fd.h"

namespace refract::transport_bench {

// The wire between the two processes of a run, beside what is measured: short
// messages, whole and in order. Both ends are this program's, so what comes is
// believed. Belongs to one thread per side.
class Control {
 public:
  explicit Control(transport::UniqueFd fd) : fd_(std::move(fd)) {}

  static absl::StatusOr<std::pair<Control, Control>> MakePair();

  // Unavailable: the other process is gone. InvalidArgument: too long.
  absl::Status Send(absl::string_view message);
  // DeadlineExceeded: nothing came in two minutes. When the other side sent a
  // status instead, because it gave up, that status.
  absl::StatusOr<std::string> Receive();

  // Both sides call it: gives each the other's text.
  absl::StatusOr<std::string> Exchange(absl::string_view mine);

  // How a step ended on this side; on the other. Messages of the step that were
  // not received are dropped, so that the sides agree again where they are.
  absl::Status SendStatus(const absl::Status& status);
  absl::Status ReceiveStatus();

 private:
  absl::Status SendPacket(absl::string_view packet);
  absl::StatusOr<std::string> ReceivePacket();

  transport::UniqueFd fd_;
  std::optional<absl::Status> ended_;  // came while a message was expected
};

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_CONTROL_H_
