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

// Copies `from` to the new file `to` and takes the digest on the way, with a
// buffer of a few MiB whatever the size. File systems that can share blocks do.
// NotFound / InvalidArgument name `from` (absent, no regular file),
// ResourceExhausted `to` (disk full).
absl::StatusOr<CopiedFile> CopyFile(const std::string& from,
                                    const std::string& to);

// The same with a hard link. FailedPrecondition when the file systems differ.
absl::StatusOr<CopiedFile> LinkFile(const std::string& from,
                                    const std::string& to);

// Size and digest of a file. NotFound / InvalidArgument name it.
absl::StatusOr<CopiedFile> DigestFile(const std::string& path);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_COPY_FILE_H_
