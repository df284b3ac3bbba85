#ifndef REFRACT_PLACEMENT_TOPOLOGY_SYSFS_TREE_H_
#define REFRACT_PLACEMENT_TOPOLOGY_SYSFS_TREE_H_

// Sources of discovery: sysfs, a copy of it, or a dump. A dump is one JSON file
// with the answers to every question that discovery asked on a machine, so that
// any machine becomes a test fixture:
//
//   {"format": "refract-sysfs-dump", "version": 1,
//    "files":   {"class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE", …},
//    "folders": {"class/infiniband": ["mlx5_0", …], …},
//    "links":   {"class/infiniband/mlx5_0/device":
//                "devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0", …}}

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::placement {

// Paths are relative to the root, without a leading slash. Not thread-safe.
class SysfsTree {
 public:
  virtual ~SysfsTree() = default;

  // Contents without blanks at the ends. nullopt: there is no such file, or the
  // kernel has no value for it (EINVAL of a port that is down).
  // PermissionDenied and Unavailable name the file.
  virtual absl::StatusOr<std::optional<std::string>> Read(
      absl::string_view path) = 0;
  // Names in natural order (mlx5_2 before mlx5_10). Empty: no such folder.
  virtual absl::StatusOr<std::vector<std::string>> List(
      absl::string_view path) = 0;
  // Where a symbolic link leads, all links resolved, relative to the root.
  // nullopt: no such link, or it leads out of the tree.
  virtual absl::StatusOr<std::optional<std::string>> Link(
      absl::string_view path) = 0;
};

// Contents of a dump.
struct SysfsDump {
  std::map<std::string, std::string> files;
  std::map<std::string, std::vector<std::string>> folders;
  std::map<std::string, std::string> links;

  std::string ToJson() const;
  // InvalidArgument names the field.
  static absl::StatusOr<SysfsDump> FromJson(absl::string_view text);
};

// sysfs below `root` ("/sys", or a copy with its symbolic links). NotFound
// names a root that is no folder.
absl::StatusOr<std::unique_ptr<SysfsTree>> OpenSysfs(absl::string_view root);
// Answers from `dump`.
std::unique_ptr<SysfsTree> OpenDump(SysfsDump dump);
// Passes questions to `tree` and writes the answers to `dump`; both outlive the
// result. Left out: GIDs that are not set, of which a port has up to 256.
std::unique_ptr<SysfsTree> Record(SysfsTree* tree, SysfsDump* dump);

// Whether the kernel shows an entry of a GID table that is not set: its last 64
// bits are zero. The first 64 may hold the default prefix, fe80::.
bool IsUnsetGid(absl::string_view gid);

// Whether `a` comes before `b` when digits count as numbers.
bool NaturallyLess(absl::string_view a, absl::string_view b);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_SYSFS_TREE_H_
