#ifndef REFRACT_MODELS_REPOSITORY_FILES_ZIP_H_
#define REFRACT_MODELS_REPOSITORY_FILES_ZIP_H_

// Reads zip archives as PyTorch writes them: entries stored, not compressed, so
// that weights can be used in place. Format: PKWARE APPNOTE 6.3.10, sections
// 4.3 to 4.5; zip64 included.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/process/mapped_file.h"

namespace refract::models {

struct ZipEntry {
  std::string name;
  bool stored = true;   // false: compressed; its bytes can't be had
  uint64_t offset = 0;  // of the entry's first byte in the file
  uint64_t bytes = 0;   // as stored in the file
  uint32_t crc32 = 0;   // of the content
};

// A mapped archive with a checked directory: every entry lies within the file,
// names are unique. Open() does not read contents. Thread-safe.
class ZipArchive {
 public:
  // InvalidArgument names `path` and its fault: no zip, truncated, directory or
  // entry outside the file. Unimplemented: encrypted entries, archives in
  // several parts.
  static absl::StatusOr<ZipArchive> Open(absl::string_view path);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* Find(absl::string_view name) const;  // nullptr if absent

  // The entry's bytes in the mapping, valid while this object or a copy of
  // file() lives. Unimplemented if compressed.
  absl::StatusOr<absl::Span<const std::byte>> Bytes(
      const ZipEntry& entry) const;
  // As Bytes(), after its CRC-32 was checked, for entries that are read whole.
  absl::StatusOr<absl::string_view> CheckedText(const ZipEntry& entry) const;

  const std::shared_ptr<const base::MappedFile>& file() const { return file_; }

 private:
  std::shared_ptr<const base::MappedFile> file_;
  std::vector<ZipEntry> entries_;
};

// CRC-32 as zip uses it (polynomial 0xEDB88320, reflected).
uint32_t Crc32(absl::Span<const std::byte> bytes);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_FILES_ZIP_H_
