#ifndef REFRACT_BASE_PROCESS_FILES_H_
#define REFRACT_BASE_PROCESS_FILES_H_

// Text files that commands and nodes read and write.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::base {

// "" if WriteText() could write `path` now, else the reason. Command lines
// check their output files with it, so that a wrong path is found before
// minutes of work. An existing file stays unchanged; pipes are not opened.
std::string CheckOutputFile(const std::string& path);

// The contents of file `path`, which may be a pipe. NotFound or InvalidArgument
// (not readable, a folder, more than 1 GiB) name `path`.
absl::StatusOr<std::string> ReadText(absl::string_view path);

// Replaces the file `path` by `text`. InvalidArgument names `path`. After an
// error of the disk (Unavailable) there is no file.
absl::Status WriteText(absl::string_view path, absl::string_view text);

// Removes a regular file that could be written in part only.
void RemoveUnfinished(absl::string_view path);

// As WriteText(), by rename: a reader, on this host or another, sees the old
// file or the new file. Of several writers the last wins. Unavailable names the
// file that cannot be written. Devices and pipes are written as they are.
absl::Status ReplaceText(absl::string_view path, absl::string_view text);

}  // namespace refract::base

#endif  // REFRACT_BASE_PROCESS_FILES_H_
