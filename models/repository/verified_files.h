#ifndef REFRACT_MODELS_REPOSITORY_VERIFIED_FILES_H_
#define REFRACT_MODELS_REPOSITORY_VERIFIED_FILES_H_

// Checks the weight files of a version against the digests that import
// recorded. The digest is XXH3-128 (base/digest.h), which import has written
// into graph.pb from the first release on, and which is faster than disks;
// SHA-256 would add protection from forgery, which an attacker who can also
// write graph.pb defeats.
//
// A file that agreed is noted in <version>/.verified.json with its inode, size
// and modification time. The next load of an unchanged file reads these three
// only, so that tables of GiB cost no second reading. Import writes the first
// notes. A note is worthless on a copy of the repository, whose inodes differ,
// and the copy is read once more.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/repository/weights.h"

namespace refract::models {

enum class Verification : uint8_t {
  kNoted,  // a file is read unless its note is current
  kFull,   // every file is read
  kNone,   // no file is read
};

struct VerifiedFiles {
  uint64_t read_bytes = 0;
  // Conditions that make a later load slower or weaker: files that were
  // imported without a digest, notes that cannot be written.
  std::vector<std::string> warnings;
};

// Verifies all files of `table` under `folder` and updates their notes,
// if `folder` can be written; notes of other files stay.
// InvalidArgument names the first file that differs; NotFound a missing
// file.
absl::StatusOr<VerifiedFiles> VerifyFiles(const std::string& folder,
                                          const WeightTable& table,
                                          Verification verification);

// Writes notes that the files of `table` under `folder` have just been
// written with its digests. Best effort: without notes the first load reads
// the files.
void NoteFiles(const std::string& folder, const WeightTable& table);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_VERIFIED_FILES_H_
