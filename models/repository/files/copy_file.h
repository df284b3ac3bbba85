#ifndef REFRACT_MODELS_REPOSITORY_FILES_COPY_FILE_H_
#define REFRACT_MODELS_REPOSITORY_FILES_COPY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/digest.h"

namespace refract::models {

// While it exists, CopyFile(), LinkFile() and DigestFile() of this thread call
// `show` after every few MiB, and end with Cancelled if it returns false. One
// per thread.
class ScopedCopyProgress {
 public:
  // `done` of the `bytes` of the file `from`; `read` are the last of these.
  using Show =
      std::function<bool(const std::string& from, uint64_t done, uint64_t bytes,
                         absl::Span<const std::byte> read)>;
  explicit ScopedCopyProgress(Show show);
  ~ScopedCopyProgress();
  ScopedCopyProgress(const ScopedCopyProgress&) = delete;
  ScopedCopyProgress& operator=(const ScopedCopyProgress&) = delete;

 private:
  const Show show_;
};

struct CopiedFile {
  uint64_t bytes = 0;
  base::Digest digest;
};

// Copies `from` to the new file `to` and computes the digest on the way, with a
// buffer of a few MiB for any size. Shares blocks if the file system can.
// NotFound / InvalidArgument name `from` (absent, no regular file),
// ResourceExhausted `to` (disk full).
absl::StatusOr<CopiedFile> CopyFile(const std::string& from,
                                    const std::string& to);

// As CopyFile, with a hard link. FailedPrecondition if the file systems differ.
absl::StatusOr<CopiedFile> LinkFile(const std::string& from,
                                    const std::string& to);

// Size and digest of a file. NotFound / InvalidArgument name it.
absl::StatusOr<CopiedFile> DigestFile(const std::string& path);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_FILES_COPY_FILE_H_
