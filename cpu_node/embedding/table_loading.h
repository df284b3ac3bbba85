#ifndef REFRACT_CPU_NODE_EMBEDDING_TABLE_LOADING_H_
#define REFRACT_CPU_NODE_EMBEDDING_TABLE_LOADING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "models/tables/table_memory.h"

namespace refract::cpu_node {

// Bytes of the tables of a version, by where they lie.
struct TableBytes {
  uint64_t disk = 0;  // of files that are read row by row

  uint64_t mapped = 0;  // of files; the page cache has some or all of them
  uint64_t small_pages = 0;
  uint64_t huge_pages = 0;
  // Bytes of memory beside the tables.
  uint64_t id_indexes = 0;
  uint64_t row_caches = 0;
};

// Returns `model` with the tables that look-ups of this node read mapped or
// loaded, as `memory` says. `whole`: look-ups of the HN part run here as well.
// `shard`: the number of this node in its shard group. Of tables that the plan
// divides by row numbers only its own rows are loaded, and `model` then has
// these rows alone; other tables are loaded whole.
// `beside_requests`: not null if the node serves other versions meanwhile.
// Tables are then read in idle time, and ReadTablesAhead() has read mapped
// tables when the call returns, unless `beside_requests` has told it to end.
// The log says how far loading has come and, at its end, `bytes`. Errors as
// LoadTables().
absl::StatusOr<std::shared_ptr<const models::LoadedModel>> PlaceTables(
    std::shared_ptr<const models::LoadedModel> model,
    models::TableMemory memory, bool whole, std::optional<size_t> shard,
    const std::function<bool()>& beside_requests, TableBytes& bytes);

// Reads the mapped tables `names` (models::TablesOf()) of `model` into the page
// cache, unless the log says that they do not fit into the available memory.
// `shard`: the number of this node in its shard group. Of tables that the plan
// divides by row numbers only its own rows are read; those of tables that are
// divided by ids lie scattered over the file, of which all is read.
// `go_on` is asked before each piece of 8 MiB; false ends the work. `root`: as
// of base::AvailableMemory().
void ReadTablesAhead(const models::LoadedModel& model,
                     const std::set<std::string>& names,
                     std::optional<size_t> shard,
                     const std::function<bool()>& go_on,
                     const std::string& root = "/");

// Reads the mapped tables of the versions that a node serves from its start on,
// one version after the other, so that few requests wait for the disk. A thread
// of its own does it, in idle time.
class TableReadAhead {
 public:
  // The thread holds a version only while it reads its tables, and ends reading
  // them when nobody else holds the version any more.
  struct Version {
    std::weak_ptr<const models::LoadedModel> model;
    std::set<std::string> tables;
  };
  using Read = std::function<void(const models::LoadedModel& model,
                                  const std::set<std::string>& tables,
                                  const std::function<bool()>& go_on)>;

  // `read`: ReadTablesAhead(), or a test's. ResourceExhausted: the system has
  // no thread left.
  static absl::StatusOr<std::unique_ptr<TableReadAhead>> Start(
      std::vector<Version> versions, Read read);
  // Waits for the piece that is being read.
  ~TableReadAhead();

 private:
  TableReadAhead() = default;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_TABLE_LOADING_H_
