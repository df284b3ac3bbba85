#include "cpu_node/embedding/delta_append.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/process/files.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "cpu_node/served_model.h"

namespace refract::cpu_node {
namespace {

// Held by a writer while it looks for the last delta and adds the next
// (scripts/lib/deltas.py takes the same lock).
constexpr absl::string_view kLockName = ".lock";

// A full disk is ResourceExhausted, missing rights are PermissionDenied.
absl::Status FileError(int error, absl::string_view path) {
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot be written"));
}

absl::Status WriteAll(int fd, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, "write");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

// Makes a file that is complete as soon as it has its name, and flushes file
// and name: what Append() acknowledges is there after a loss of power.
absl::Status WriteDurably(const std::string& folder, int folder_fd,
                          absl::string_view name,
                          absl::Span<const std::byte> bytes) {
  const std::string path = absl::StrCat(folder, "/", name);
  const std::string aside = absl::StrCat(folder, "/.", name, ".", getpid());
  {
    const base::UniqueFd file(
        open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) return FileError(errno, path);
    const absl::Status written = WriteAll(file.get(), bytes);
    if (!written.ok() || fsync(file.get()) != 0) {
      const absl::Status why =
          written.ok() ? FileError(errno, path) : base::Annotate(written, path);
      unlink(aside.c_str());
      return why;
    }
  }
  if (rename(aside.c_str(), path.c_str()) != 0 || fsync(folder_fd) != 0) {
    return FileError(errno, path);
  }
  return absl::OkStatus();
}

// Sequence of the last manifest in a folder; 0: it has none.
int64_t LastSequence(int folder_fd) {
  int64_t last = 0;
  DIR* const folder = fdopendir(dup(folder_fd));
  if (folder == nullptr) return last;
  rewinddir(folder);
  while (const dirent* const entry = readdir(folder)) {
    last = std::max(last, models::SequenceOfName(entry->d_name).value_or(0));
  }
  closedir(folder);
  return last;
}

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The folder counts, even if the node serves a later delta: lost files are
// written again from its last delta on, because a start reads it alone.
absl::StatusOr<models::DeltaState> LastInFolder(const std::string& folder,
                                                int folder_fd) {
  const int64_t sequence = LastSequence(folder_fd);
  if (sequence == 0) return models::DeltaState();
  const std::string path =
      absl::StrCat(folder, "/", models::NameOfSequence(sequence));
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path));
  const auto manifest = models::ParseDeltaManifest(text);
  if (!manifest.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, ", the last delta, is damaged: ", manifest.status().message()));
  }
  return manifest->state;
}

// All that an application of the delta could refuse: a delta in the folder that
// cannot be applied would hold up the deltas after it.
absl::StatusOr<std::vector<models::TableDelta>> CheckDelta(
    const ServedModel& model, const models::DeltaManifest& manifest,
    absl::string_view rows) {
  if (manifest.model != model.name() || manifest.version != model.version()) {
    return absl::InvalidArgumentError("the delta is for another version");
  }
  // The name that the tools give, so that no file of another delta is hit.
  const std::string rows_file =
      absl::StrFormat("delta-%020d-%s.safetensors", manifest.state.sequence,
                      manifest.rows_sha256.substr(0, 8));
  if (manifest.rows_file != rows_file) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"rows.file\" is '", base::Shorten(manifest.rows_file),
                     "'; wanted '", rows_file, "'"));
  }
  std::vector<models::TableDelta> deltas;
  const absl::Status status = base::WithinMemory([&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(deltas,
                             models::ParseDeltaRows(Bytes(rows), manifest,
                                                    model.tables()->tables()));
    return model.tables()->Check(deltas);
  });
  if (!status.ok()) return base::Annotate(status, manifest.rows_file);
  return deltas;
}

// New ids are counted in the state that the delta follows, which is known when
// the deltas before it have been applied.
absl::Status CheckRoom(const ServedModel& model,
                       absl::Span<const models::TableDelta> deltas,
                       const models::DeltaState& last,
                       const models::DeltaState& state) {
  const auto& tables = model.tables()->tables();
  const auto names_new_ids = [&](const models::TableDelta& delta) {
    const models::DeltaTable& table = tables.at(delta.table);
    return std::any_of(delta.ids.begin(), delta.ids.end(),
                       [&](int64_t id) { return table.IsNewId(id); });
  };
  if (std::none_of(deltas.begin(), deltas.end(), names_new_ids)) {
    return absl::OkStatus();
  }
  if (state != last) {
    return absl::UnavailableError(
        absl::StrCat("new ids: delta ", last.sequence,
                     ", the last, has not been applied yet; try again"));
  }
  return model.tables()->CheckRoom(deltas);
}

// Whether the folder has the delta's manifest.
bool Has(const std::string& folder, const models::DeltaState& state) {
  const auto text = base::ReadText(
      absl::StrCat(folder, "/", models::NameOfSequence(state.sequence)));
  if (!text.ok()) return false;
  const auto known = models::ParseDeltaManifest(*text);
  return known.ok() && known->state == state;
}

}  // namespace

std::string DeltaFolderOf(const ServedModel& model,
                          const std::string& deltas_folder) {
  if (deltas_folder.empty())
    return absl::StrCat(model.model().folder, "/deltas");
  return absl::StrCat(deltas_folder, "/", model.name(), "/", model.version());
}

absl::StatusOr<bool> AppendDelta(const ServedModel& model,
                                 const std::string& folder,
                                 absl::string_view manifest_text,
                                 absl::string_view rows) {
  REFRACT_ASSIGN_OR_RETURN(const models::DeltaManifest manifest,
                           models::ParseDeltaManifest(manifest_text));
  // Before the check of all rows: a source that starts again sends many deltas
  // again.
  if (manifest.model == model.name() && manifest.version == model.version() &&
      Has(folder, manifest.state)) {
    return false;
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<models::TableDelta> deltas,
                           CheckDelta(model, manifest, rows));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FileError(error.value(), folder);
  const base::UniqueFd folder_fd(open(folder.c_str(), O_DIRECTORY | O_CLOEXEC));
  if (folder_fd.get() < 0) return FileError(errno, folder);
  const std::string lock_path = absl::StrCat(folder, "/", kLockName);
  const base::UniqueFd lock(
      open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock.get() < 0) return FileError(errno, lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AbortedError(
        absl::StrCat(folder, ": another writer is adding a delta; try again"));
  }
  REFRACT_ASSIGN_OR_RETURN(const models::DeltaState last,
                           LastInFolder(folder, folder_fd.get()));
  if (manifest.state == last) return false;
  const std::string name = models::NameOfSequence(manifest.state.sequence);
  if (manifest.state.sequence <= last.sequence) {
    // A delta before the last: the same delta, sent again, or another writer's.
    if (Has(folder, manifest.state)) return false;
    if (!std::filesystem::exists(absl::StrCat(folder, "/", name), error)) {
      return absl::AlreadyExistsError(
          absl::StrCat("the folder is at delta ", last.sequence,
                       ", after delta ", manifest.state.sequence));
    }
  }
  if (manifest.parent != last) {
    if (manifest.parent.sequence > last.sequence) {
      return absl::FailedPreconditionError(
          absl::StrCat("gap: the parent is delta ", manifest.parent.sequence,
                       ", the last delta in the folder is ", last.sequence));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "wrong parent: delta ", manifest.parent.sequence, " '",
        manifest.parent.id, "'; the last delta in the folder is ",
        last.sequence, " '", last.id, "'. Another writer has added deltas"));
  }
  const models::DeltaState state = model.deltas()->counts().state;
  if (manifest.state.sequence == state.sequence && manifest.state != state) {
    return absl::FailedPreconditionError(
        absl::StrCat("another delta ", state.sequence, ", '", state.id,
                     "', has been applied"));
  }
  if (manifest.state.sequence > state.sequence) {
    REFRACT_RETURN_IF_ERROR(CheckRoom(model, deltas, last, state));
  }
  REFRACT_RETURN_IF_ERROR(
      WriteDurably(folder, folder_fd.get(), manifest.rows_file, Bytes(rows)));
  REFRACT_RETURN_IF_ERROR(
      WriteDurably(folder, folder_fd.get(), name, Bytes(manifest_text)));
  return true;
}

}  // namespace refract::cpu_node
