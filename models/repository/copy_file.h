#ifndef REFRACT_MODELS_REPOSITORY_COPY_FILE_H_
#define REFRACT_MODELS_REPOSITORY_COPY_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/digest.h"

namespace refract::models {

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

#endif  // REFRACT_MODELS_REPOSITORY_COPY_FILE_H_
