#ifndef REFRACT_CPU_NODE_EMBEDDING_DELTA_APPEND_H_
#define REFRACT_CPU_NODE_EMBEDDING_DELTA_APPEND_H_

// Deltas that arrive as bytes become files of a version's folder, which
// DeltaFeed then finds like those of any writer.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/deltas/delta.h"

namespace refract::cpu_node {

class ServedModel;

// The folder of a version's deltas; `deltas_folder` as in ServedModelOptions.
std::string DeltaFolderOf(const ServedModel& model,
                          const std::string& deltas_folder);

// Adds a delta to `folder`: the bytes of its two files. A folder that has lost
// files of applied deltas takes these again. Returns when the files and their
// names have been flushed to the disk: true; or false if the folder has had the
// delta. Any thread, also beside DeltaFeed::Step(); takes milliseconds. `model`
// follows deltas.
//   InvalidArgument, NotFound, DataLoss  what an application of the delta would
//                                        refuse
//   FailedPrecondition   the last delta in the folder is not its parent
//   AlreadyExists        the folder is past it, and no longer has it
//   Aborted              another writer is at work on the folder
//   Unavailable          it has new ids, and a delta before it is still to be
//                        applied
//   ResourceExhausted    more new ids than a table may have
//   ResourceExhausted, PermissionDenied, …  the folder cannot be written
absl::StatusOr<bool> AppendDelta(const ServedModel& model,
                                 const std::string& folder,
                                 absl::string_view manifest_text,
                                 absl::string_view rows);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_DELTA_APPEND_H_
