#ifndef REFRACT_TRANSPORT_SHM_MEMFD_H_
#define REFRACT_TRANSPORT_SHM_MEMFD_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/loop/fd.h"

namespace refract::transport::shm {

// A sparse memory file whose size is sealed: without the seal a peer could
// shorten it and kill every process that touches the mapping.
absl::StatusOr<UniqueFd> CreateMemfd(size_t bytes);

// The same file opened read-only; a peer that gets it cannot map it writable.
absl::StatusOr<UniqueFd> ReopenReadOnly(int memfd);

// InvalidArgument: not a memory file of at least `bytes`, or its size can still
// change.
absl::Status CheckMemfd(int fd, size_t bytes);

// InvalidArgument: not an eventfd. Writing to any other file could block or
// kill the writer. Makes it non-blocking.
absl::Status CheckEventfd(int fd);

// Data that travels with descriptors on the unix socket, 16 B, little-endian.
struct FdMessage {
  enum class Kind : uint32_t { kRing = 1, kRegion = 2 };
  Kind kind = Kind::kRing;
  uint32_t region = 0;
  uint64_t bytes = 0;
};

// Unavailable: the peer is gone. The socket's buffer holds all messages.
absl::Status SendFds(int socket, const FdMessage& message,
                     absl::Span<const int> fds);

// Does not block. NotFound: no message waits; Unavailable: the peer is gone;
// InvalidArgument: not such a message.
struct ReceivedFds {
  FdMessage message;
  std::vector<UniqueFd> fds;
};
absl::StatusOr<ReceivedFds> ReceiveFds(int socket);

}  // namespace refract::transport::shm

#endif  // REFRACT_TRANSPORT_SHM_MEMFD_H_
