#include "cpu_node/embedding/delta_feed.h"

#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/process/files.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace refract::cpu_node {
namespace {

// Number of manifests that are read ahead to find the delta that leads
// farthest. A longer backlog is worked off all the same.
constexpr size_t kReadAhead = 64;

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

}  // namespace

std::string DeltaFeed::Path(absl::string_view name) const {
  return absl::StrCat(folder_, "/", name);
}

DeltaFeed::FileMark DeltaFeed::MarkOf(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return absl::StrCat("errno ", errno);
  return absl::StrCat(info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                      info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

std::map<int64_t, std::string> DeltaFeed::List() {
  std::map<int64_t, std::string> names;
  const models::DeltaState served = counts().state;
  const int64_t state = served.sequence;
  std::string served_name;
  const std::unique_ptr<DIR, CloseFolder> folder(opendir(folder_.c_str()));
  std::string error;
  if (folder == nullptr) {
    // Most versions have no deltas. A folder that vanishes later is an error.
    if (errno != ENOENT || state > 0) error = std::strerror(errno);
  } else {
    while (const dirent* const entry = readdir(folder.get())) {
      const auto sequence = models::SequenceOfName(entry->d_name);
      if (!sequence) continue;
      if (*sequence > state) names[*sequence] = entry->d_name;
      if (*sequence == state) served_name = entry->d_name;
    }
    // Deltas up to the state are not read: a writer that begins anew in an
    // emptied folder would otherwise go unheard until it passes the state.
    // Later deltas are refused by Step() where they do not fit.
    if (state > 0 && names.empty()) error = WhyOtherChain(served, served_name);
  }
  if (error != folder_error_ && !error.empty()) {
    LOG(ERROR) << "model '" << model_ << "' version " << version_ << ": deltas "
               << folder_ << ": " << error << "; the state of delta " << state
               << " goes on serving";
  }
  folder_error_ = error;
  return names;
}

std::string DeltaFeed::WhyOtherChain(const models::DeltaState& served,
                                     const std::string& name) {
  constexpr absl::string_view kUnread = "; deltas up to it are not read";
  if (name.empty()) {
    return absl::StrCat("delta ", served.sequence,
                        " has been applied and is gone", kUnread);
  }
  const auto& manifest = Read(served.sequence, name);
  if (!manifest.ok()) return std::string(manifest.status().message());
  if (manifest->state == served) return "";
  return absl::StrCat("delta ", served.sequence, " is '", manifest->state.id,
                      "', the applied one was '", served.id, "'", kUnread);
}

const absl::StatusOr<models::DeltaManifest>& DeltaFeed::Read(
    int64_t sequence, const std::string& name) {
  const std::string path = Path(name);
  FileMark mark = MarkOf(path);
  const auto found = seen_.find(sequence);
  if (found != seen_.end() && found->second.mark == mark) {
    return found->second.manifest;
  }
  absl::StatusOr<models::DeltaManifest> manifest = [&] {
    const absl::StatusOr<std::string> text = base::ReadText(path);
    if (!text.ok()) {
      return absl::StatusOr<models::DeltaManifest>(text.status());
    }
    auto parsed = models::ParseDeltaManifest(*text);
    if (parsed.ok()) {
      const absl::Status fits = Check(sequence, *parsed);
      if (!fits.ok()) parsed = fits;
    }
    if (!parsed.ok()) {
      return absl::StatusOr<models::DeltaManifest>(
          base::Annotate(parsed.status(), path));
    }
    return parsed;
  }();
  const auto [seen, is_new] = seen_.insert_or_assign(
      sequence, Seen{std::move(mark), std::move(manifest)});
  return seen->second.manifest;
}

absl::Status DeltaFeed::Check(int64_t sequence,
                              const models::DeltaManifest& manifest) const {
  if (manifest.state.sequence != sequence) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"sequence\" is ", manifest.state.sequence,
                     ", unlike that in the file's name"));
  }
  if (manifest.model != model_ || manifest.version != version_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is for model '", base::Shorten(manifest.model), "' version ",
        manifest.version, ", not for '", model_, "' version ", version_));
  }
  return absl::OkStatus();
}

bool DeltaFeed::Step(const TableStore::Pause& pause) {
  if (!step_mu_.TryLock()) return false;
  const absl::Cleanup unlock = [this] { step_mu_.Unlock(); };
  const models::DeltaState state = counts().state;
  const std::map<int64_t, std::string> names = List();
  {
    absl::MutexLock lock(&mu_);
    counts_.backlog = names.size();
  }
  seen_.erase(seen_.begin(), seen_.lower_bound(state.sequence));
  const models::DeltaManifest* next = nullptr;
  size_t read = 0;
  for (const auto& [sequence, name] : names) {
    if (++read > kReadAhead) break;
    const auto& manifest = Read(sequence, name);
    if (!manifest.ok()) {
      Refuse(name, "", manifest.status());
    } else if (manifest->parent == state) {
      next = &*manifest;
    } else if (manifest->parent.sequence == state.sequence) {
      Refuse(name, "",
             absl::FailedPreconditionError(
                 absl::StrCat(Path(name), ": wrong parent: \"parent.id\" is '",
                              manifest->parent.id, "', the state of delta ",
                              state.sequence, " is '", state.id, "'")));
    }
  }
  if (next == nullptr) {
    // A later file may close the gap, so all are read again each time.
    if (!names.empty()) {
      const auto& first = Read(names.begin()->first, names.begin()->second);
      if (first.ok() && first->parent.sequence != state.sequence) {
        Refuse(names.begin()->second, "",
               absl::FailedPreconditionError(absl::StrCat(
                   Path(names.begin()->second), ": gap: its parent is delta ",
                   first->parent.sequence, ", the state is that of delta ",
                   state.sequence)));
      }
    }
    return false;
  }
  const std::string name = models::NameOfSequence(next->state.sequence);
  const std::string marks =
      absl::StrCat(MarkOf(Path(name)), ", ", MarkOf(Path(next->rows_file)));
  const auto refused = refused_.find(name);
  if (refused != refused_.end() && refused->second == marks) return false;
  const absl::Status status = Apply(*next, pause);
  if (absl::IsUnavailable(status)) return false;  // at the next look
  if (!status.ok()) {
    Refuse(name, next->rows_file, status);
    return false;
  }
  refused_.erase(name);
  absl::MutexLock lock(&mu_);
  ++counts_.applied;
  for (const auto& [table, rows] : next->tables) {
    counts_.rows += static_cast<uint64_t>(rows.upserted + rows.deleted);
  }
  counts_.state = next->state;
  counts_.created_unix_ms = next->created_unix_ms;
  const auto left = names.upper_bound(next->state.sequence);
  counts_.backlog = static_cast<uint64_t>(std::distance(left, names.end()));
  return true;
}

absl::Status DeltaFeed::Apply(const models::DeltaManifest& manifest,
                              const TableStore::Pause& pause) {
  const std::string path = Path(manifest.rows_file);
  absl::Status status = base::WithinMemory([&]() -> absl::Status {
    // Read, not mapped: a file that is cut short meanwhile must not end the
    // node, and the applied bytes must be the checked bytes.
    const absl::StatusOr<std::string> bytes = base::ReadText(path);
    if (!bytes.ok()) return bytes.status();
    const absl::Span<const std::byte> span(
        reinterpret_cast<const std::byte*>(bytes->data()), bytes->size());
    const auto deltas = models::ParseDeltaRows(span, manifest, store_.tables());
    if (!deltas.ok()) return base::Annotate(deltas.status(), path);
    return base::Annotate(store_.Apply(*deltas, manifest.state.sequence, pause),
                          path);
  });
  return status;
}

void DeltaFeed::Refuse(const std::string& name, const std::string& rows_file,
                       const absl::Status& why) {
  std::string marks = MarkOf(Path(name));
  // A manifest may be taken away after the folder was listed. A dangling link
  // is still there.
  struct stat info = {};
  if (lstat(Path(name).c_str(), &info) != 0 && errno == ENOENT) return;
  if (!rows_file.empty())
    absl::StrAppend(&marks, ", ", MarkOf(Path(rows_file)));
  std::string& known = refused_[name];
  if (known == marks) return;
  known = std::move(marks);
  absl::MutexLock lock(&mu_);
  ++counts_.refused;
  LOG(ERROR) << "model '" << model_ << "' version " << version_
             << ": delta refused, the state of delta " << counts_.state.sequence
             << " goes on serving: "
             << base::Shorten(why.message(), base::kMaxStatusTextBytes);
}

void DeltaFeed::CatchUp() {
  const absl::Time begin = absl::Now();
  const Counts before = this->counts();
  while (Step(nullptr)) {
  }
  const Counts counts = this->counts();
  if (counts.applied == before.applied) return;
  LOG(INFO) << "model '" << model_ << "' version " << version_ << ": "
            << counts.applied - before.applied << " deltas with "
            << counts.rows - before.rows << " rows applied in "
            << absl::FormatDuration(absl::Now() - begin) << ", up to delta "
            << counts.state.sequence;
}

DeltaFeed::Counts DeltaFeed::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

}  // namespace refract::cpu_node
