#ifndef REFRACT_MODELS_REPOSITORY_FILES_TEMPORARY_FOLDER_H_
#define REFRACT_MODELS_REPOSITORY_FILES_TEMPORARY_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::models {

// Names of folders that are not versions yet begin with it.
inline constexpr absl::string_view kTemporaryPrefix = ".tmp-";

// Bytes of all files under `folder`; files that vanish count nothing.
uint64_t BytesUnder(const std::string& folder);

// A folder in a model's folder that becomes a version once it is complete. A
// lock (flock(2)) shows other processes that a process works on it; the kernel
// gives the lock up when the process ends, however it ends. Used by one thread.
class TemporaryFolder {
 public:
  // The umask and the setgid bit of `model_folder` decide the permissions.
  // Internal names the folder that cannot be made.
  static absl::StatusOr<TemporaryFolder> Create(
      const std::string& model_folder);
  // Removes the folder and all that is in it, unless it was moved.
  ~TemporaryFolder();
  TemporaryFolder(TemporaryFolder&& other) noexcept;
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;

  const std::string& path() const { return path_; }
  // Renames the folder to `to`. False: `to` exists and is not empty. Internal
  // names the folder.
  absl::StatusOr<bool> MoveTo(const std::string& to);

 private:
  TemporaryFolder(std::string path, int lock)
      : path_(std::move(path)), lock_(lock) {}

  std::string path_;  // empty: moved
  int lock_;          // descriptor; -1: the file system has no locks
};

struct AbandonedFolder {
  std::string path;
  uint64_t bytes = 0;
};

// Removes the temporary folders of all models of `repository` whose process has
// ended; returns them. A folder is left alone where its lock is held, or where
// the file system has no locks, as NFS for folders. Errors are not reported:
// the folder stays for the next call.
std::vector<AbandonedFolder> RemoveAbandoned(const std::string& repository);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_FILES_TEMPORARY_FOLDER_H_
