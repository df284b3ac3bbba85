#ifndef REFRACT_TRANSPORT_LOOP_SOCKET_H_
#define REFRACT_TRANSPORT_LOOP_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "transport/loop/fd.h"
#include "transport/loop/waker.h"

namespace refract::transport {

// "host:port" or "[v6]:port". InvalidArgument for other text.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

// A connected non-blocking socket. Tries every address of the name in turn.
// Name look-up blocks (numbers need none). Unavailable names the address.
absl::StatusOr<UniqueFd> ConnectTcp(const HostPort& to, const Wait& wait,
                                    absl::Time deadline);
// `name` is abstract, without the leading zero byte.
absl::StatusOr<UniqueFd> ConnectUnix(absl::string_view name);

struct Listener {
  UniqueFd fd;  // non-blocking
  int port = 0;
};
// Errors name host:port. InvalidArgument: the host is none of this machine's
// addresses; Unavailable: the port is taken.
absl::StatusOr<Listener> ListenTcp(const HostPort& at);
absl::StatusOr<UniqueFd> ListenUnix(absl::string_view name);

// A non-blocking connection; an invalid fd if no connection waits.
// ResourceExhausted: out of descriptors or memory, try later.
absl::StatusOr<UniqueFd> Accept(int listener);

// Sets options to notice a dead machine or network soon: data that is not
// acknowledged, or not taken for want of room, fails the socket after
// `ack_timeout`; the kernel asks an idle peer every second; and small packets
// are sent at once.
void TuneSocket(int fd, absl::Duration ack_timeout);

// "10.0.0.7" or "local" for a unix socket.
std::string PeerHost(int fd);
// Whether the peer of a unix socket runs as this process's user.
bool SameUser(int fd);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_SOCKET_H_
