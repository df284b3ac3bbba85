#ifndef REFRACT_CPU_NODE_EMBEDDING_TABLE_LOADING_H_
#define REFRACT_CPU_NODE_EMBEDDING_TABLE_LOADING_H_

#include <cstdint>
#include <memory>

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
// `beside_requests`: the node serves other versions meanwhile. Tables are then
// read in idle time, and mapped tables that fit into the available memory are
// read into the page cache before the call returns.
// The log says how far loading has come and, at its end, `bytes`. Errors as
// LoadTables().
absl::StatusOr<std::shared_ptr<const models::LoadedModel>> PlaceTables(
    std::shared_ptr<const models::LoadedModel> model,
    models::TableMemory memory, bool whole, bool beside_requests,
    TableBytes& bytes);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_TABLE_LOADING_H_
