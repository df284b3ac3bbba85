#include "base/process/file_reads.h"

#include <fcntl.h>
#include <liburing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace refract::base {
namespace {

// A disk's queue is full with fewer; a ring of 128 takes 12 KiB.
constexpr unsigned kDepth = 128;

absl::Status Failed(const FileRead& read, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(read.file->path(), ": read of ", read.wanted,
                   " bytes at byte ", read.offset, ": ", what));
}

// `count`: the bytes that a read returned, or -errno.
absl::Status Result(const FileRead& read, int64_t count) {
  if (count < 0) {
    return Failed(read, std::strerror(static_cast<int>(-count)));
  }
  if (static_cast<uint64_t>(count) < read.wanted) {
    return Failed(read, absl::StrCat("the file ends after ", count));
  }
  return absl::OkStatus();
}

absl::Status ReadByPread(const FileRead& read) {
  while (true) {
    const ssize_t count = pread(read.file->descriptor(), read.to, read.bytes,
                                static_cast<off_t>(read.offset));
    if (count < 0 && errno == EINTR) continue;
    return Result(read, count < 0 ? -errno : count);
  }
}

class Ring {
 public:
  Ring() { ok_ = io_uring_queue_init(kDepth, &ring_, 0) == 0; }
  ~Ring() {
    if (ok_) io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  bool ok() const { return ok_; }

  // Buffers belong to the kernel until their read is done, so that all are
  // awaited after an error as well.
  absl::Status Run(absl::Span<const FileRead> reads, size_t& failed) {
    absl::Status status;
    // `next`: reads handed to the ring so far; `under_way`: those whose
    // completion has not been taken. After an error no further read begins.
    size_t next = 0;
    size_t under_way = 0;
    while ((next < reads.size() && status.ok()) || under_way > 0) {
      while (next < reads.size() && under_way < kDepth && status.ok()) {
        io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
        if (entry == nullptr) break;
        const FileRead& read = reads[next];
        io_uring_prep_read(entry, read.file->descriptor(), read.to,
                           static_cast<unsigned>(read.bytes), read.offset);
        io_uring_sqe_set_data64(entry, next);
        ++next;
        ++under_way;
      }
      const int submitted = io_uring_submit_and_wait(&ring_, 1);
      if (submitted < 0 && submitted != -EINTR && submitted != -EAGAIN &&
          submitted != -EBUSY) {
        // The ring is unusable; requests that the kernel holds end with it.
        io_uring_queue_exit(&ring_);
        ok_ = false;
        return absl::DataLossError(
            absl::StrCat("io_uring: ", std::strerror(-submitted)));
      }
      io_uring_cqe* done = nullptr;
      while (io_uring_peek_cqe(&ring_, &done) == 0) {
        const size_t index = io_uring_cqe_get_data64(done);
        const FileRead& read = reads[index];
        absl::Status result;
        // The kernel did not read; pread() repeats until it does.
        if (done->res == -EINTR || done->res == -EAGAIN) {
          result = ReadByPread(read);
        } else {
          result = Result(read, done->res);
        }
        if (status.ok() && !result.ok()) {
          status = result;
          failed = index;
        }
        io_uring_cqe_seen(&ring_, done);
        --under_way;
      }
    }
    return status;
  }

 private:
  io_uring ring_;
  bool ok_ = false;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ReadFile>> ReadFile::Open(
    absl::string_view path) {
  std::shared_ptr<ReadFile> file(new ReadFile);
  file->path_ = std::string(path);
  file->descriptor_ =
      open(file->path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  file->direct_ = file->descriptor_ >= 0;
  // The file system has no O_DIRECT.
  if (!file->direct_ && errno == EINVAL) {
    file->descriptor_ = open(file->path_.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (file->descriptor_ < 0) {
    const absl::StatusCode code = errno == ENOENT
                                      ? absl::StatusCode::kNotFound
                                      : absl::StatusCode::kInvalidArgument;
    return absl::Status(code,
                        absl::StrCat(path, ": ", std::strerror(errno)));
  }
  // Without O_DIRECT, read-ahead would read many times the wanted bytes.
  posix_fadvise(file->descriptor_, 0, 0, POSIX_FADV_RANDOM);
  return file;
}

ReadFile::~ReadFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

ReadMethod ReadMethodOfProcess() {
  static const ReadMethod method = [] {
    const char* const setting = std::getenv("REFRACT_IO_URING");
    if (setting != nullptr && std::strcmp(setting, "off") == 0) {
      return ReadMethod::kPread;
    }
    return Ring().ok() ? ReadMethod::kIoUring : ReadMethod::kPread;
  }();
  return method;
}

absl::Status ReadAll(absl::Span<const FileRead> reads, size_t& failed) {
  failed = 0;
  if (ReadMethodOfProcess() == ReadMethod::kIoUring) {
    // A ring per thread needs no lock, and keeps its memory between calls.
    static thread_local Ring ring;
    if (ring.ok()) return ring.Run(reads, failed);
  }
  for (size_t i = 0; i < reads.size(); ++i) {
    const absl::Status status = ReadByPread(reads[i]);
    if (status.ok()) continue;
    failed = i;
    return status;
  }
  return absl::OkStatus();
}

}  // namespace refract::base
