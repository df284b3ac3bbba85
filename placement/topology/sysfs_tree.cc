#include "placement/topology/sysfs_tree.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/topology/json_text.h"

namespace refract::placement {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "refract-sysfs-dump";
constexpr int kVersion = 1;
// The files that discovery reads have one line each.
constexpr size_t kMaxFileBytes = 64 << 10;

// Answers of the kernel that mean "no value", not "cannot be read".
bool MeansAbsent(int error) {
  return error == ENOENT || error == ENOTDIR || error == EINVAL ||
         error == ENODEV || error == ENODATA || error == EOPNOTSUPP ||
         error == ENXIO || error == EISDIR;
}

absl::Status Unreadable(absl::string_view path, int error) {
  const std::string text =
      absl::StrCat(path, ": cannot be read: ", std::strerror(error));
  return error == EACCES || error == EPERM ? absl::PermissionDeniedError(text)
                                           : absl::UnavailableError(text);
}

// sysfs, or a copy of it with its symbolic links.
class FileTree final : public SysfsTree {
 public:
  explicit FileTree(fs::path root) : root_(std::move(root)) {}

  absl::StatusOr<std::optional<std::string>> Read(
      absl::string_view path) override {
    const fs::path file = root_ / std::string(path);
    // Non-blocking, because a copied tree may contain a pipe.
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
      if (MeansAbsent(errno)) return std::nullopt;
      return Unreadable(path, errno);
    }
    std::string text;
    std::array<char, 4096> buffer;
    ssize_t count = 0;
    // A file of a copied tree may be of any size; no more than the limit is
    // read.
    while (text.size() < kMaxFileBytes &&
           (count = read(fd, buffer.data(), buffer.size())) > 0) {
      text.append(buffer.data(), static_cast<size_t>(count));
    }
    const int error = errno;
    close(fd);
    if (count < 0) {
      if (MeansAbsent(error)) return std::nullopt;
      return Unreadable(path, error);
    }
    return std::string(absl::StripAsciiWhitespace(text));
  }

  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view path) override {
    const fs::path folder = root_ / std::string(path);
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error && !MeansAbsent(error.value())) {
      return Unreadable(path, error.value());
    }
    std::sort(names.begin(), names.end(), NaturallyLess);
    return names;
  }

  absl::StatusOr<std::optional<std::string>> Link(
      absl::string_view path) override {
    const fs::path link = root_ / std::string(path);
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(link, error))) return std::nullopt;
    // Resolved in full, because devices are identified by their place in
    // devices/. Links out of the tree would read this machine in place of the
    // copy.
    const fs::path target = fs::canonical(link, error);
    if (error == std::errc::too_many_symbolic_link_levels) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": symbolic links form a cycle"));
    }
    if (error) return std::nullopt;  // leads nowhere
    const std::string inside = root_.string() + "/";
    if (!absl::StartsWith(target.string(), inside)) return std::nullopt;
    return target.string().substr(inside.size());
  }

 private:
  const fs::path root_;  // canonical
};

// Answers recorded on another machine; a question that was not asked there has
// the answer "absent".
class DumpTree final : public SysfsTree {
 public:
  explicit DumpTree(SysfsDump dump) : dump_(std::move(dump)) {}

  absl::StatusOr<std::optional<std::string>> Read(
      absl::string_view path) override {
    return Find(dump_.files, path);
  }
  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view path) override {
    std::vector<std::string> names =
        Find(dump_.folders, path).value_or(std::vector<std::string>());
    std::sort(names.begin(), names.end(), NaturallyLess);
    return names;
  }
  absl::StatusOr<std::optional<std::string>> Link(
      absl::string_view path) override {
    return Find(dump_.links, path);
  }

 private:
  template <typename T>
  static std::optional<T> Find(const std::map<std::string, T>& entries,
                               absl::string_view path) {
    const auto found = entries.find(std::string(path));
    if (found == entries.end()) return std::nullopt;
    return found->second;
  }

  const SysfsDump dump_;
};

// Passes questions on and keeps every answer but "absent".
class Recorder final : public SysfsTree {
 public:
  Recorder(SysfsTree* tree, SysfsDump* dump) : tree_(*tree), dump_(*dump) {}

  absl::StatusOr<std::optional<std::string>> Read(
      absl::string_view path) override {
    REFRACT_ASSIGN_OR_RETURN(std::optional<std::string> text, tree_.Read(path));
    if (!text.has_value()) return text;
    if (IsUnsetGid(*text)) {
      // The same as a port without this entry.
      const size_t slash = path.rfind('/');
      const auto folder =
          dump_.folders.find(std::string(path.substr(0, slash)));
      if (folder != dump_.folders.end()) {
        std::erase(folder->second, path.substr(slash + 1));
      }
    } else {
      dump_.files[std::string(path)] = *text;
    }
    return text;
  }
  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view path) override {
    REFRACT_ASSIGN_OR_RETURN(std::vector<std::string> names, tree_.List(path));
    if (!names.empty()) dump_.folders[std::string(path)] = names;
    return names;
  }
  absl::StatusOr<std::optional<std::string>> Link(
      absl::string_view path) override {
    REFRACT_ASSIGN_OR_RETURN(std::optional<std::string> target,
                             tree_.Link(path));
    if (target.has_value()) dump_.links[std::string(path)] = *target;
    return target;
  }

 private:
  SysfsTree& tree_;
  SysfsDump& dump_;
};

// Fills `out` from the object `name` of `root`. A part may be absent.
template <typename T>
absl::Status ReadPart(const Json& root, const char* name,
                      std::map<std::string, T>* out) {
  const auto part = root.find(name);
  if (part == root.end()) return absl::OkStatus();
  if (!part->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is no object"));
  }
  for (const auto& [path, value] : part->items()) {
    // Values are texts, or lists of texts for folders.
    bool good = value.is_string();
    if constexpr (!std::is_same_v<T, std::string>) {
      good = value.is_array() &&
             std::all_of(value.begin(), value.end(),
                         [](const Json& entry) { return entry.is_string(); });
    }
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, "[\"", path, "\"]: is no ",
          std::is_same_v<T, std::string> ? "text" : "list of texts"));
    }
    (*out)[path] = value.template get<T>();
  }
  return absl::OkStatus();
}

}  // namespace

std::string SysfsDump::ToJson() const {
  nlohmann::ordered_json json = {{"format", kFormat}, {"version", kVersion}};
  json["files"] = files;
  json["folders"] = folders;
  json["links"] = links;
  // Contents of sysfs files need not be UTF-8.
  return base::FormatJson(json, 1) + "\n";
}

absl::StatusOr<SysfsDump> SysfsDump::FromJson(absl::string_view text) {
  REFRACT_ASSIGN_OR_RETURN(const Json json, ParseJsonText(text));
  if (!json.is_object()) {
    return absl::InvalidArgumentError("is no JSON object");
  }
  if (json.value("format", Json()) != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("format: is not \"", kFormat, "\""));
  }
  if (json.value("version", Json()) != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("version: is not ", kVersion));
  }
  SysfsDump dump;
  REFRACT_RETURN_IF_ERROR(ReadPart(json, "files", &dump.files));
  REFRACT_RETURN_IF_ERROR(ReadPart(json, "folders", &dump.folders));
  REFRACT_RETURN_IF_ERROR(ReadPart(json, "links", &dump.links));
  return dump;
}

absl::StatusOr<std::unique_ptr<SysfsTree>> OpenSysfs(absl::string_view root) {
  std::error_code error;
  const fs::path folder = fs::canonical(std::string(root), error);
  if (error || !fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(root, ": is no folder"));
  }
  return std::make_unique<FileTree>(folder);
}

std::unique_ptr<SysfsTree> OpenDump(SysfsDump dump) {
  return std::make_unique<DumpTree>(std::move(dump));
}

std::unique_ptr<SysfsTree> Record(SysfsTree* tree, SysfsDump* dump) {
  return std::make_unique<Recorder>(tree, dump);
}

bool IsUnsetGid(absl::string_view gid) {
  // "fe80:0000:0000:0000:0000:0000:0000:0000"
  return gid.size() == 39 &&
         gid.substr(20).find_first_not_of("0:") == absl::string_view::npos;
}

bool NaturallyLess(absl::string_view a, absl::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (absl::ascii_isdigit(a[i]) && absl::ascii_isdigit(b[j])) {
      // Runs of digits compare as numbers: without leading zeros the longer run
      // is larger, and runs of equal length compare as texts.
      const auto number = [](absl::string_view text, size_t& at) {
        const size_t begin = at;
        while (at < text.size() && absl::ascii_isdigit(text[at])) ++at;
        absl::string_view digits = text.substr(begin, at - begin);
        while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
        return digits;
      };
      const absl::string_view x = number(a, i);
      const absl::string_view y = number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      continue;
    }
    if (a[i] != b[j]) return a[i] < b[j];
    ++i;
    ++j;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // "01" and "1": some order
}

}  // namespace refract::placement
