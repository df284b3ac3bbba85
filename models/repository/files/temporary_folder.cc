#include "models/repository/files/temporary_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace refract::models {
namespace {

namespace fs = std::filesystem;

// A descriptor of the folder with its lock, or -1.
int Lock(const std::string& folder, int operation) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  while (flock(fd, operation) != 0) {
    if (errno == EINTR) continue;
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

uint64_t BytesUnder(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code vanished;
    if (!it->is_regular_file(vanished)) continue;
    const uintmax_t size = it->file_size(vanished);
    if (!vanished) bytes += size;
  }
  return bytes;
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create(
    const std::string& model_folder) {
  // RemoveAbandoned() must not see the folder before its lock is held.
  const int guard = Lock(model_folder, LOCK_EX);
  const absl::Cleanup close_guard = [guard] {
    if (guard >= 0) close(guard);
  };
  // Not by mkdtemp(), whose folders are for the owner alone: as for any folder
  // the umask and the parent's setgid bit decide who may read a version, and
  // write plans and deltas into it.
  std::random_device random;
  std::string path;
  int made = 0;
  do {
    path = absl::StrCat(model_folder, "/", kTemporaryPrefix,
                        absl::Hex(random(), absl::kZeroPad8));
    made = mkdir(path.c_str(), 0777);
  } while (made != 0 && errno == EEXIST);
  if (made != 0) {
    return absl::InternalError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  const int lock = Lock(path, LOCK_EX | LOCK_NB);
  return TemporaryFolder(std::move(path), lock);
}

TemporaryFolder::TemporaryFolder(TemporaryFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")),
      lock_(std::exchange(other.lock_, -1)) {}

// The folder goes before its lock: a lock that is free marks a folder whose
// process has died.
TemporaryFolder::~TemporaryFolder() {
  if (!path_.empty()) {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  if (lock_ >= 0) close(lock_);
}

absl::StatusOr<bool> TemporaryFolder::MoveTo(const std::string& to) {
  if (std::rename(path_.c_str(), to.c_str()) == 0) {
    path_.clear();
    return true;
  }
  if (errno == ENOTEMPTY || errno == EEXIST) return false;
  return absl::InternalError(absl::StrCat(to, ": ", std::strerror(errno)));
}

std::vector<AbandonedFolder> RemoveAbandoned(const std::string& repository) {
  std::vector<AbandonedFolder> removed;
  std::error_code error;
  for (fs::directory_iterator model(repository, error), no_more;
       !error && model != no_more; model.increment(error)) {
    std::error_code vanished;
    if (!model->is_directory(vanished)) continue;
    const std::string model_folder = model->path().string();
    std::vector<std::string> found;
    for (fs::directory_iterator entry(model_folder, vanished);
         !vanished && entry != no_more; entry.increment(vanished)) {
      std::error_code ignored;
      if (absl::StartsWith(entry->path().filename().string(),
                           kTemporaryPrefix) &&
          entry->is_directory(ignored)) {
        found.push_back(entry->path().string());
      }
    }
    if (found.empty()) continue;
    const int guard = Lock(model_folder, LOCK_EX | LOCK_NB);
    if (guard < 0) continue;  // an import starts just now
    const absl::Cleanup close_guard = [guard] { close(guard); };
    for (const std::string& folder : found) {
      // The kernel releases a lock when its process dies, even by kill -9, so a
      // lock that can be taken means that nobody writes here any more.
      const int lock = Lock(folder, LOCK_EX | LOCK_NB);
      if (lock < 0) continue;
      const absl::Cleanup close_lock = [lock] { close(lock); };
      const uint64_t bytes = BytesUnder(folder);
      std::error_code failed;
      fs::remove_all(folder, failed);
      if (!failed) removed.push_back({folder, bytes});
    }
    // Removes the model's folder if it is empty: its first import was
    // interrupted.
    rmdir(model_folder.c_str());
  }
  return removed;
}

}  // namespace refract::models
