#ifndef REFRACT_CPU_NODE_EMBEDDING_DELTA_FEED_H_
#define REFRACT_CPU_NODE_EMBEDDING_DELTA_FEED_H_

// Applies the deltas of a folder to one model version, in order.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cpu_node/embedding/table_store.h"
#include "models/deltas/delta.h"

namespace refract::cpu_node {

// The folder is the log: a node that starts again reads it from the beginning
// and comes to the same state. Files are only read.
//
// Step() may be called by one thread at a time, counts() by any.
class DeltaFeed {
 public:
  // `folder` need not exist. `store` outlives this.
  DeltaFeed(std::string model, int64_t version, std::string folder,
            TableStore* store)
      : model_(std::move(model)),
        version_(version),
        folder_(std::move(folder)),
        store_(*store) {}

  // Reads the folder and applies at most one delta: among the deltas whose
  // parent is the present state, the delta that leads farthest. Returns whether
  // it applied a delta. A delta that cannot be applied is logged once, until
  // its files change. Any thread may call it; while another thread is in it, it
  // does nothing and returns false.
  bool Step(const TableStore::Pause& pause);
  // Calls Step() until nothing is left to do, with one log line about it. For a
  // version that does not serve yet, or not at present.
  void CatchUp();

  struct Counts {
    uint64_t applied = 0;
    uint64_t refused = 0;
    uint64_t rows = 0;     // upserted or deleted
    uint64_t backlog = 0;  // deltas in the folder after the state
    models::DeltaState state;
    int64_t created_unix_ms = 0;  // of the state; 0: not said
  };
  Counts counts() const;

 private:
  // Tells a file from another file of the same name: inode, size, time.
  using FileMark = std::string;
  struct Seen {
    FileMark mark;
    absl::StatusOr<models::DeltaManifest> manifest;
  };

  std::string Path(absl::string_view name) const;
  static FileMark MarkOf(const std::string& path);
  // Names of the manifests after the state, by sequence. An error of the folder
  // is logged once, until it changes.
  std::map<int64_t, std::string> List();
  // Why the folder does not lead to the served state; empty if it does. `name`:
  // the manifest of the state's sequence; empty if there is none.
  std::string WhyOtherChain(const models::DeltaState& served,
                            const std::string& name);
  // The manifest, parsed anew if the file has changed.
  const absl::StatusOr<models::DeltaManifest>& Read(int64_t sequence,
                                                    const std::string& name);
  absl::Status Check(int64_t sequence,
                     const models::DeltaManifest& manifest) const;
  absl::Status Apply(const models::DeltaManifest& manifest,
                     const TableStore::Pause& pause);
  // Logs and counts a refusal, once until one of the files changes.
  void Refuse(const std::string& name, const std::string& rows_file,
              const absl::Status& why);

  const std::string model_;
  const int64_t version_;
  const std::string folder_;
  TableStore& store_;

  absl::Mutex step_mu_;  // held by Step()
  std::map<int64_t, Seen> seen_;
  std::map<std::string, std::string> refused_;  // manifest → marks of its files
  std::string folder_error_;                    // that was logged

  mutable absl::Mutex mu_;
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_DELTA_FEED_H_
