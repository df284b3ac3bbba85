#include "transport/shm/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "transport/messages/byte_order.h"

namespace refract::transport::shm {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
// An FdMessage: kind (4 B), region (4 B), bytes (8 B), little-endian.
constexpr size_t kMessageBytes = 16;
constexpr size_t kMaxFds = 2;

}  // namespace

absl::StatusOr<UniqueFd> CreateMemfd(size_t bytes) {
  UniqueFd fd(memfd_create("refract", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("memory file of ", bytes, " B"));
  }
  // F_SEAL_SEAL: the peer, which gets this file, can add no further seal.
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "sealing a memory file");
  }
  return fd;
}

absl::StatusOr<UniqueFd> ReopenReadOnly(int memfd) {
  // dup(2) would share the access mode; opening the file again gives a mode of
  // its own.
  const std::string path = absl::StrCat("/proc/self/fd/", memfd);
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "reopening a memory file");
  return fd;
}

absl::Status CheckMemfd(int fd, size_t bytes) {
  // Only memory files have seals, so this refuses all other descriptors, too.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::InvalidArgumentError("shared memory whose size is not sealed");
  }
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "fstat");
  if (info.st_size < 0 || static_cast<uint64_t>(info.st_size) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory of ", info.st_size, " B, announced as ", bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckEventfd(int fd) {
  std::array<char, 64> target = {};
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  if (readlink(path.c_str(), target.data(), target.size() - 1) < 0) {
    return ErrnoStatus(errno, "readlink of an eventfd");
  }
  if (absl::string_view(target.data()) != "anon_inode:[eventfd]") {
    return absl::InvalidArgumentError("a wake-up descriptor of another kind");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "fcntl of an eventfd");
  }
  return absl::OkStatus();
}

absl::Status SendFds(int socket, const FdMessage& message,
                     absl::Span<const int> fds) {
  std::array<std::byte, kMessageBytes> bytes;
  StoreLittle<uint32_t>(bytes.data(), static_cast<uint32_t>(message.kind));
  StoreLittle<uint32_t>(bytes.data() + 4, message.region);
  StoreLittle<uint64_t>(bytes.data() + 8, message.bytes);
  iovec vector = {bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxFds * sizeof(int))>
      control = {};
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  ssize_t sent;
  do {
    sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(bytes.size())) {
    return ErrnoStatus(sent < 0 ? errno : EPIPE, "passing shared memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<ReceivedFds> ReceiveFds(int socket) {
  std::array<std::byte, kMessageBytes> bytes;
  iovec vector = {bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMaxFds * sizeof(int))>
      control = {};
  msghdr header = {};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t got;
  do {
    got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return absl::NotFoundError("no descriptors wait on the unix socket");
    }
    return ErrnoStatus(errno, "read from the unix socket");
  }
  if (got == 0)
    return absl::UnavailableError("the peer closed its unix socket");
  // Takes ownership of the descriptors before any check, so that none leaks.
  ReceivedFds received;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr;
       part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      received.fds.emplace_back(fd);
    }
  }
  const auto kind = LoadLittle<uint32_t>(bytes.data());
  // MSG_CTRUNC: more descriptors came than there is room for; the kernel closed
  // the rest.
  if (got != static_cast<ssize_t>(bytes.size()) ||
      (header.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0 ||
      (kind != static_cast<uint32_t>(FdMessage::Kind::kRing) &&
       kind != static_cast<uint32_t>(FdMessage::Kind::kRegion))) {
    return absl::InvalidArgumentError("malformed message on the unix socket");
  }
  received.message.kind = static_cast<FdMessage::Kind>(kind);
  received.message.region = LoadLittle<uint32_t>(bytes.data() + 4);
  received.message.bytes = LoadLittle<uint64_t>(bytes.data() + 8);
  return received;
}

}  // namespace refract::transport::shm
