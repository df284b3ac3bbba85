#include "models/repository/verified_files.h"

#include <sys/stat.h>

#include <map>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/process/files.h"
#include "base/process/mapped_file.h"
#include "base/status_macros.h"
#include "models/repository/files/copy_file.h"
#include "nlohmann/json.hpp"

namespace refract::models {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kNotesFile = ".verified.json";

// State of a file when it was read, with its digest.
struct Note {
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  std::string digest;

  friend bool operator==(const Note&, const Note&) = default;
};
using Notes = std::map<std::string, Note>;  // by WeightFile::file

// nullopt: absent, or no regular file.
std::optional<Note> Stand(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return std::nullopt;
  }
  return Note{.inode = info.st_ino,
              .bytes = static_cast<uint64_t>(info.st_size),
              .modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 +
                             info.st_mtim.tv_nsec,
              .digest = ""};
}

// Unreadable notes count as missing: the files are read again.
Notes ReadNotes(const std::string& folder) {
  Notes notes;
  const auto file =
      base::MappedFile::Open(absl::StrCat(folder, "/", kNotesFile));
  if (!file.ok()) return notes;
  const char* const text =
      reinterpret_cast<const char*>((*file)->bytes().data());
  const Json json = base::ParseJson({text, (*file)->bytes().size()});
  if (!json.is_object()) return notes;
  for (const auto& [file, fields] : json.items()) {
    const auto number = [&fields = fields](const char* name) {
      return fields.is_object() && fields.contains(name) &&
             fields[name].is_number_integer();
    };
    if (!number("inode") || !number("bytes") || !number("modified_ns") ||
        !fields.contains("digest") || !fields["digest"].is_string()) {
      continue;
    }
    notes[file] = {fields["inode"], fields["bytes"], fields["modified_ns"],
                   fields["digest"]};
  }
  return notes;
}

absl::Status WriteNotes(const std::string& folder, const Notes& notes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [file, note] : notes) {
    json[file] = {{"inode", note.inode},
                  {"bytes", note.bytes},
                  {"modified_ns", note.modified_ns},
                  {"digest", note.digest}};
  }
  // Nodes that share the repository may write at the same time.
  return base::ReplaceText(absl::StrCat(folder, "/", kNotesFile),
                           base::FormatJson(json, 1) + "\n");
}

}  // namespace

absl::StatusOr<VerifiedFiles> VerifyFiles(const std::string& folder,
                                          const WeightTable& table,
                                          Verification verification) {
  VerifiedFiles result;
  if (verification == Verification::kNone) return result;
  const Notes old_notes = ReadNotes(folder);
  // Files outside `table` keep their notes: a GPU node verifies some files of a
  // version that a CPU node on the same repository verifies whole.
  Notes notes = old_notes;
  for (const WeightFile& file : table.files) notes.erase(file.file);
  std::string without_digest;
  for (const WeightFile& file : table.files) {
    if (file.digest == base::Digest()) {
      absl::StrAppend(&without_digest, without_digest.empty() ? "" : ", ",
                      file.file);
      continue;
    }
    const std::string path = absl::StrCat(folder, "/", file.file);
    const std::string digest = file.digest.ToHex();
    // stat() before and after the read: a file that is written meanwhile has
    // another time or size afterwards.
    std::optional<Note> before = Stand(path);
    if (before.has_value()) before->digest = digest;
    const auto noted = old_notes.find(file.file);
    if (verification == Verification::kNoted && before.has_value() &&
        noted != old_notes.end() && noted->second == *before) {
      notes[file.file] = *before;
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const CopiedFile read, DigestFile(path));
    result.read_bytes += read.bytes;
    if (!(read.digest == file.digest)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       ": differs from the file that was imported "
                       "(digest ",
                       read.digest.ToHex(), ", recorded ", digest,
                       "); put the original back or import the model again"));
    }
    // A file that changed while it was read gets no note.
    std::optional<Note> after = Stand(path);
    if (after.has_value()) after->digest = digest;
    if (before.has_value() && before == after) notes[file.file] = *after;
  }
  if (!without_digest.empty()) {
    result.warnings.push_back(absl::StrCat(
        folder, ": imported without digests, so changes of ", without_digest,
        " cannot be noticed; import the model again"));
  }
  // No write where nothing changed, since repositories may be read-only.
  if (notes == old_notes) return result;
  if (const absl::Status written = WriteNotes(folder, notes); !written.ok()) {
    result.warnings.push_back(
        absl::StrCat(written.message(), "; every start reads ",
                     result.read_bytes, " bytes of weights to verify them"));
  }
  return result;
}

void NoteFiles(const std::string& folder, const WeightTable& table) {
  Notes notes;
  for (const WeightFile& file : table.files) {
    std::optional<Note> note = Stand(absl::StrCat(folder, "/", file.file));
    if (!note.has_value() || note->bytes != file.bytes) continue;
    note->digest = file.digest.ToHex();
    notes[file.file] = *std::move(note);
  }
  WriteNotes(folder, notes).IgnoreError();
}

}  // namespace refract::models
