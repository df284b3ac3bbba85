#ifndef REFRACT_BASE_PROCESS_MAPPED_FILE_H_
#define REFRACT_BASE_PROCESS_MAPPED_FILE_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace refract::base {

// A whole file mapped read-only. Pages are read on first touch and stay in the
// page cache, so a 100 GB table costs address space, not memory, until used.
// Thread-safe once made. A file that is truncated while mapped kills its readers
// with SIGBUS: the repository therefore never rewrites a file of a version.
class MappedFile {
 public:
  // NotFound or InvalidArgument (not a regular file), both naming `path`.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(
      absl::string_view path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Drops this mapping's resident pages (they stay in the page cache). For
  // readers that pass over a file once, such as a checksum.
  void DropResidentPages() const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_MAPPED_FILE_H_
