#ifndef REFRACT_TRANSPORT_LOOP_FD_H_
#define REFRACT_TRANSPORT_LOOP_FD_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace refract::transport {

using base::UniqueFd;

// The status of a failed system call: "`what`: No such file or directory".
// Refused, reset and unreachable peers become kUnavailable, exhausted tables
// and memory kResourceExhausted, other errors kInternal.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Unavailable: the process at the other end of a connection has ended (its
// socket was closed or reset; also ErrnoStatus of ECONNRESET and EPIPE).
absl::Status PeerEnded(absl::string_view what);
bool IsPeerEnd(const absl::Status& status);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_FD_H_
