#include "transport/loop/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/process/loopback.h"
#include "base/status_macros.h"

namespace refract::transport {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const HostPort& name, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const std::string port = absl::StrCat(name.port);
  const int error = getaddrinfo(name.host.empty() ? nullptr : name.host.c_str(),
                                port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("look-up of host \"", name.host,
                                               "\": ", gai_strerror(error)));
  }
  return AddressList(list, &freeaddrinfo);
}

absl::StatusOr<UniqueFd> NewSocket(int family) {
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  return fd;
}

absl::StatusOr<socklen_t> UnixAddress(absl::string_view name,
                                      sockaddr_un* address) {
  if (name.empty() || name.size() + 1 > sizeof(address->sun_path)) {
    return absl::InvalidArgumentError("unix socket name of a bad length");
  }
  // A name in the abstract namespace (its first byte is 0): no file is left
  // behind, and no permission of a folder matters.
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                name.size());
}

absl::StatusOr<UniqueFd> ConnectOne(const addrinfo& address, const Wait& wait,
                                    absl::Time deadline) {
  REFRACT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address.ai_family));
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return ErrnoStatus(errno, "connect");
  while (true) {
    pollfd poll = {fd.get(), POLLOUT, 0};
    REFRACT_RETURN_IF_ERROR(wait.For(absl::MakeSpan(&poll, 1), deadline));
    if (poll.revents != 0) break;
  }
  int error = 0;
  // The socket turns writable at the end of the attempt, whether it succeeded
  // or not.
  socklen_t length = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return ErrnoStatus(error, "connect");
  return fd;
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  const size_t colon = address.rfind(':');
  HostPort result;
  if (colon == absl::string_view::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &result.port) ||
      result.port < 1 || result.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\" is not host:port"));
  }
  absl::string_view host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\" has no host"));
  }
  result.host = std::string(host);
  return result;
}

absl::StatusOr<UniqueFd> ConnectTcp(const HostPort& to, const Wait& wait,
                                    absl::Time deadline) {
  REFRACT_ASSIGN_OR_RETURN(const AddressList list, Resolve(to, 0));
  // Addresses are tried in the resolver's order, and the error of the last
  // address is returned.
  absl::Status last = absl::UnavailableError("the host has no address");
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    absl::StatusOr<UniqueFd> fd = ConnectOne(*at, wait, deadline);
    if (fd.ok()) return fd;
    last = fd.status();
    if (absl::IsCancelled(last) || absl::IsDeadlineExceeded(last)) break;
  }
  return base::Annotate(last, absl::StrCat(to.host, ":", to.port));
}

absl::StatusOr<UniqueFd> ConnectUnix(absl::string_view name) {
  sockaddr_un address;
  REFRACT_ASSIGN_OR_RETURN(const socklen_t length, UnixAddress(name, &address));
  REFRACT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(AF_UNIX));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) !=
      0) {
    return ErrnoStatus(errno, "connect to the peer's unix socket");
  }
  return fd;
}

absl::StatusOr<Listener> ListenTcp(const HostPort& at) {
  const std::string name =
      absl::StrCat("cannot listen on ", base::AddressText(at.host, at.port));
  // ParseHostPort() takes the brackets of an IPv6 address off, flags do not.
  absl::string_view host = at.host;
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  absl::StatusOr<AddressList> list =
      Resolve({std::string(host), at.port}, AI_PASSIVE);
  if (!list.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", list.status().message()));
  }
  const addrinfo& address = **list;
  REFRACT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address.ai_family));
  const int on = 1;
  // Lets a restarted node reuse its port while old connections linger.
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    const std::string failed = absl::StrCat(name, ": ", std::strerror(error));
    return error == EADDRNOTAVAIL ? absl::InvalidArgumentError(failed)
                                  : absl::UnavailableError(failed);
  }
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) !=
      0) {
    return ErrnoStatus(errno, "getsockname");
  }
  Listener listener;
  listener.port =
      bound.ss_family == AF_INET6
          ? ntohs(reinterpret_cast<const sockaddr_in6&>(bound).sin6_port)
          : ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  listener.fd = std::move(fd);
  return listener;
}

absl::StatusOr<UniqueFd> ListenUnix(absl::string_view name) {
  sockaddr_un address;
  REFRACT_ASSIGN_OR_RETURN(const socklen_t length, UnixAddress(name, &address));
  REFRACT_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(AF_UNIX));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) !=
          0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, "listen on an abstract unix socket");
  }
  return fd;
}

absl::StatusOr<UniqueFd> Accept(int listener) {
  while (true) {
    UniqueFd fd(
        accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return fd;
    switch (errno) {
      // ECONNABORTED: the client has hung up before the call; the next
      // connection is taken.
      case EINTR:
      case ECONNABORTED:
        continue;
      case EAGAIN:
        return UniqueFd();
      default:
        return ErrnoStatus(errno, "accept");
    }
  }
}

void TuneSocket(int fd, absl::Duration ack_timeout) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  // 0 would mean the kernel's default, which is many minutes.
  const auto ms = static_cast<unsigned>(
      std::max<int64_t>(1, absl::ToInt64Milliseconds(ack_timeout)));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
  // Heartbeats do the same while this process runs; keep-alive also works for a
  // peer whose heartbeats are far apart.
  const int seconds = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof(seconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof(seconds));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

std::string PeerHost(int fd) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) {
    return "unknown";
  }
  if (peer.ss_family == AF_UNIX) return "local";
  std::array<char, NI_MAXHOST> host = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&peer), length, host.data(),
                  host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "unknown";
  }
  return host.data();
}

bool SameUser(int fd) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

}  // namespace refract::transport
