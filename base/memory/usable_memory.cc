#include "base/memory/usable_memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace refract::base {
namespace {

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

// A field of proc/meminfo, which has KiB, in bytes.
uint64_t MachineMemory(const std::string& root, absl::string_view field) {
  std::ifstream file(absl::StrCat(root, "/proc/meminfo"));
  std::string name, unit;
  uint64_t kib = 0;
  while (file >> name >> kib >> unit) {
    if (name == field) return kib * 1024;
  }
  return kNone;
}

// "max" and a missing file are no limit.
uint64_t NumberIn(const std::string& file) {
  std::ifstream stream(file);
  std::string text;
  uint64_t bytes = 0;
  return stream >> text && absl::SimpleAtoi(text, &bytes) ? bytes : kNone;
}

// Names of a control group's files and of lines in its memory.stat.
struct GroupFiles {
  const char* limit;
  const char* used;
  const char* active;
  const char* inactive;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes",
                                  "memory.usage_in_bytes", "total_active_file",
                                  "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "active_file",
                                  "inactive_file"};

// The limit of the group in `folder`; `left`: without what its processes have
// already. The page cache counts as left, because the kernel drops it first.
uint64_t LimitIn(const std::string& folder, const GroupFiles& files,
                 bool left) {
  const uint64_t limit = NumberIn(absl::StrCat(folder, "/", files.limit));
  if (limit == kNone || !left) return limit;
  uint64_t used = NumberIn(absl::StrCat(folder, "/", files.used));
  if (used == kNone) return limit;
  std::ifstream stat(absl::StrCat(folder, "/memory.stat"));
  std::string name;
  uint64_t bytes = 0;
  while (stat >> name >> bytes) {
    if (name == files.active || name == files.inactive) {
      used -= std::min(used, bytes);
    }
  }
  return limit - std::min(limit, used);
}

// The smallest limit of `group` ("/a/b") and of the groups above it, because
// each of them binds. Inside a container's namespace the group's path may be
// the host's and missing under `mount`; then the mount's own files count.
uint64_t LimitOf(const std::string& mount, absl::string_view group,
                 const GroupFiles& files, bool left) {
  uint64_t limit = kNone;
  while (true) {
    limit = std::min(limit, LimitIn(absl::StrCat(mount, group), files, left));
    const size_t slash = group.rfind('/');
    if (slash == absl::string_view::npos) break;
    group = group.substr(0, slash);
  }
  return std::min(limit, LimitIn(mount, files, left));
}

// The smallest limit of the control groups of this process.
uint64_t GroupMemory(const std::string& root, bool left) {
  uint64_t bytes = kNone;
  // Lines "hierarchy:controllers:path"; v2 is "0::path".
  std::ifstream groups(absl::StrCat(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::string mount = absl::StrCat(root, "/sys/fs/cgroup");
    if (fields[1].empty()) {
      bytes = std::min(bytes, LimitOf(mount, fields[2], kVersion2, left));
    } else if (absl::StrContains(absl::StrCat(",", fields[1], ","),
                                 ",memory,")) {
      bytes = std::min(bytes, LimitOf(absl::StrCat(mount, "/memory"), fields[2],
                                      kVersion1, left));
    }
  }
  return bytes;
}

}  // namespace

uint64_t UsableMemory(const std::string& root) {
  const uint64_t bytes = std::min(MachineMemory(root, "MemTotal:"),
                                  GroupMemory(root, /*left=*/false));
  return bytes == kNone ? 0 : bytes;
}

uint64_t MappedFileMemory(const std::string& root) {
  std::ifstream file(absl::StrCat(root, "/proc/self/status"));
  for (std::string line; std::getline(file, line);) {
    uint64_t kib = 0;
    if (std::sscanf(line.c_str(), "RssFile: %" SCNu64 " kB", &kib) == 1) {
      return kib * 1024;
    }
  }
  return 0;
}

uint64_t AvailableMemory(const std::string& root) {
  const uint64_t bytes = std::min(MachineMemory(root, "MemAvailable:"),
                                  GroupMemory(root, /*left=*/true));
  return bytes == kNone ? 0 : std::max<uint64_t>(bytes, 1);
}

}  // namespace refract::base
