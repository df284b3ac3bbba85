#include "transport/loop/fd.h"

#include <cerrno>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace refract::transport {

namespace {
constexpr char kPeerEnded[] = "refract/peer-ended";
}  // namespace

absl::Status PeerEnded(absl::string_view what) {
  absl::Status status = absl::UnavailableError(what);
  status.SetPayload(kPeerEnded, absl::Cord());
  return status;
}

bool IsPeerEnd(const absl::Status& status) {
  return status.GetPayload(kPeerEnded).has_value();
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  const std::string message =
      absl::StrCat(what, ": ", std::generic_category().message(error));
  switch (error) {
    case ECONNRESET:
    case EPIPE:
      return PeerEnded(message);
    case ECONNREFUSED:
    case ECONNABORTED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ETIMEDOUT:
    case EADDRINUSE:
    case EADDRNOTAVAIL:
      return absl::UnavailableError(message);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace refract::transport
