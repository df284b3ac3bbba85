#ifndef REFRACT_PARTITIONER_MEASURE_SCRATCH_FOLDER_H_
#define REFRACT_PARTITIONER_MEASURE_SCRATCH_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::partitioner {

// A new folder in $TMPDIR (or /tmp), removed with this object.
class ScratchFolder {
 public:
  // Internal: the folder cannot be made.
  static absl::StatusOr<ScratchFolder> Create(absl::string_view prefix);
  ScratchFolder(ScratchFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")) {}
  ScratchFolder& operator=(ScratchFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~ScratchFolder();

  const std::string& path() const { return path_; }
  std::string operator/(absl::string_view name) const;

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved from
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MEASURE_SCRATCH_FOLDER_H_
