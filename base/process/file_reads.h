#ifndef REFRACT_BASE_PROCESS_FILE_READS_H_
#define REFRACT_BASE_PROCESS_FILE_READS_H_

// Many small reads of files at once, past the page cache.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace refract::base {

// Reads of direct files begin and end at multiples of this, and so do their
// buffers: as much as any disk's sector.
inline constexpr size_t kReadAlignBytes = 4096;

// A file open for reading. Thread-safe.
class ReadFile {
 public:
  // Past the page cache (O_DIRECT) where the file system can, so that the reads
  // take no memory. NotFound or InvalidArgument names `path`.
  static absl::StatusOr<std::shared_ptr<const ReadFile>> Open(
      absl::string_view path);
  ~ReadFile();
  ReadFile(const ReadFile&) = delete;
  ReadFile& operator=(const ReadFile&) = delete;

  int descriptor() const { return descriptor_; }
  bool direct() const { return direct_; }
  const std::string& path() const { return path_; }

 private:
  ReadFile() = default;
  int descriptor_ = -1;
  bool direct_ = false;
  std::string path_;
};

struct FileRead {
  const ReadFile* file = nullptr;
  uint64_t offset = 0;  // a multiple of kReadAlignBytes
  // A multiple of kReadAlignBytes. The file may end before.
  std::byte* to = nullptr;  // aligned to kReadAlignBytes
  size_t bytes = 0;
  size_t wanted = 0;  // that the file must have, ≤ bytes
};

// How this process reads many places at once.
enum class ReadMethod { kIoUring, kPread };
// kPread where the system does not allow io_uring to this process, or
// REFRACT_IO_URING=off is in the environment.
ReadMethod ReadMethodOfProcess();

// Does all reads, by io_uring up to 128 at a time, and waits for them. Each
// thread has a ring of its own. DataLoss names file and byte of a read that
// failed or was short; `failed` becomes its index.
absl::Status ReadAll(absl::Span<const FileRead> reads, size_t& failed);

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_FILE_READS_H_
