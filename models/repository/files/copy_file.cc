#include "models/repository/files/copy_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"

namespace refract::models {
namespace {

// Large enough for streaming, and a multiple of any block size, which sharing
// blocks needs.
constexpr size_t kChunkBytes = size_t{4} << 20;

thread_local const ScopedCopyProgress::Show* progress = nullptr;

absl::Status ErrnoError(absl::string_view path, absl::string_view call) {
  const int error = errno;
  const absl::StatusCode code =
      error == ENOENT ? absl::StatusCode::kNotFound
      : error == ENOSPC || error == EDQUOT
          ? absl::StatusCode::kResourceExhausted
      : error == EXDEV  ? absl::StatusCode::kFailedPrecondition
      : error == EEXIST ? absl::StatusCode::kAlreadyExists
                        : absl::StatusCode::kInvalidArgument;
  return absl::Status(
      code, absl::StrCat(path, ": ", call, ": ", std::strerror(error)));
}

absl::Status WriteAll(int fd, const std::byte* data, size_t bytes,
                      const std::string& path) {
  while (bytes > 0) {
    const ssize_t written = write(fd, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError(path, "write");
    data += written;
    bytes -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

// Copies `bytes` at the current offset of both files inside the kernel; false
// if this pair of file systems cannot (nothing was copied then).
absl::StatusOr<bool> CopyInKernel(int in, int out, off64_t at, size_t bytes,
                                  const std::string& to) {
  off64_t in_offset = at;
  while (bytes > 0) {
    const ssize_t copied =
        copy_file_range(in, &in_offset, out, nullptr, bytes, 0);
    if (copied < 0 && errno == EINTR) continue;
    // A pair of file systems that cannot copy refuses before the first byte; a
    // later failure is an error of the disk.
    if (copied < 0 && in_offset == at &&
        (errno == EXDEV || errno == EINVAL || errno == ENOSYS ||
         errno == EOPNOTSUPP || errno == EBADF)) {
      return false;
    }
    if (copied < 0) return ErrnoError(to, "copy_file_range");
    if (copied == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(to, ": its source shrank while it was copied"));
    }
    bytes -= static_cast<size_t>(copied);
  }
  return true;
}

// Reads `from` once; writes it to `out` unless that is negative. `shown`: its
// name for ScopedCopyProgress.
absl::StatusOr<CopiedFile> Transfer(const std::string& from, int out,
                                    const std::string& to,
                                    const std::string& shown) {
  const int in = open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (in < 0) return ErrnoError(from, "open");
  const absl::Cleanup close_in = [in] { close(in); };
  struct stat info;
  if (fstat(in, &info) != 0) return ErrnoError(from, "stat");
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, ": not a regular file"));
  }
  CopiedFile result;
  base::DigestBuilder digest;
  std::vector<std::byte> buffer(kChunkBytes);
  // The digest needs the bytes in memory in any case. The kernel's copy shares
  // blocks where the file system can, and so takes no disk space.
  bool in_kernel = out >= 0;
  while (true) {
    // Whole chunks, so that the copies stay aligned.
    size_t filled = 0;
    while (filled < kChunkBytes) {
      const ssize_t got =
          read(in, buffer.data() + filled, kChunkBytes - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoError(from, "read");
      if (got == 0) break;
      filled += static_cast<size_t>(got);
    }
    if (filled == 0) break;
    digest.Add(absl::MakeConstSpan(buffer.data(), filled));
    if (in_kernel) {
      REFRACT_ASSIGN_OR_RETURN(
          in_kernel, CopyInKernel(in, out, static_cast<off64_t>(result.bytes),
                                  filled, to));
    }
    if (out >= 0 && !in_kernel) {
      REFRACT_RETURN_IF_ERROR(WriteAll(out, buffer.data(), filled, to));
    }
    result.bytes += filled;
    if (progress != nullptr &&
        !(*progress)(shown, result.bytes, static_cast<uint64_t>(info.st_size),
                     absl::MakeConstSpan(buffer.data(), filled))) {
      return absl::CancelledError(absl::StrCat(from, ": reading was ended"));
    }
  }
  result.digest = digest.Finish();
  return result;
}

}  // namespace

ScopedCopyProgress::ScopedCopyProgress(Show show) : show_(std::move(show)) {
  progress = &show_;
}

ScopedCopyProgress::~ScopedCopyProgress() { progress = nullptr; }

absl::StatusOr<CopiedFile> CopyFile(const std::string& from,
                                    const std::string& to) {
  const int out = open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                       S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  if (out < 0) return ErrnoError(to, "open");
  auto result = Transfer(from, out, to, from);
  // Some file systems report a full disk only now.
  if (close(out) != 0 && result.ok()) return ErrnoError(to, "close");
  return result;
}

absl::StatusOr<CopiedFile> LinkFile(const std::string& from,
                                    const std::string& to) {
  // Links the target of a symbolic link, not the link.
  if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) !=
      0) {
    return ErrnoError(errno == ENOENT ? from : to,
                      absl::StrCat("link to ", from));
  }
  return Transfer(to, /*out=*/-1, to, from);
}

absl::StatusOr<CopiedFile> DigestFile(const std::string& path) {
  return Transfer(path, /*out=*/-1, path, path);
}

}  // namespace refract::models
