#ifndef REFRACT_MODELS_TABLES_TABLE_MEMORY_H_
#define REFRACT_MODELS_TABLES_TABLE_MEMORY_H_

// Where the embedding tables of a version lie while a CPU node reads them.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/memory/large_memory.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"

namespace refract::models {

enum class TableMemory : uint8_t {
  kMap,   // files are mapped; the page cache holds what was read of them
  kLoad,  // copied into memory of the process, huge pages where there are any
  kDisk,  // read from the files row by row, past the page cache
};
absl::string_view Name(TableMemory memory);  // "map", "load", "disk"
// nullopt for other names.
std::optional<TableMemory> TableMemoryNamed(absl::string_view name);

// Weights that look-ups read. With a plan that uses the HN, only weights that
// look-ups of the CPU node read, unless `whole`.
std::set<std::string> TablesOf(const Graph& graph, const SplitPlan* plan,
                               bool whole);

// By weight name: the only rows [first, second) of a table to read.
using RowRanges = std::map<std::string, std::pair<int64_t, int64_t>>;

// Bytes of the files that hold the weights `names`, or of `rows` their rows,
// each byte once: what LoadTables() needs, but for less than a page per table.
uint64_t BytesOfTables(const WeightTable& weights,
                       const std::set<std::string>& names,
                       const RowRanges& rows = {});

struct LoadTablesOptions {
  int threads = 1;  // that read
  base::LargeMemory::Pages pages = base::LargeMemory::Pages::kHuge;
  // Memory that the process may have more than it has; 0: unknown.
  uint64_t available_bytes = 0;
  // Of these tables the new store has the given rows alone, as their first
  // rows. Rows follow each other in the file.
  RowRanges rows;
  // Called by the thread that called LoadTables(), after each of its pieces.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct LoadedTables {
  std::shared_ptr<const WeightStore> store;
  uint64_t bytes = 0;       // of memory
  uint64_t huge_bytes = 0;  // of these in huge pages
};

// Copies the weights `names` of `store`, whose files lie under `folder`, into
// memory that the new store owns. Tables begin at multiples of 64 bytes. The
// page cache is left without the copied bytes, so that they are in memory once.
// The reading threads have a lower priority than those that serve.
//   ResourceExhausted  the bytes do not fit into available_bytes
//   DataLoss           a file cannot be read (names file and byte)
//   NotFound           no such weight
absl::StatusOr<LoadedTables> LoadTables(const WeightStore& store,
                                        absl::string_view folder,
                                        const std::set<std::string>& names,
                                        const LoadTablesOptions& options);

// Reads the mapped weights `names` of `store`, or of `rows` their rows, into the
// page cache and the page table of the process, file by file, so that requests
// do not wait for the disk. `go_on` is called after each piece of 8 MiB, with bytes; false ends the
// work. The calling thread does the work; weights that `store` does not map are
// left out.
void ReadMappedTables(
    const WeightStore& store, const std::set<std::string>& names,
    const std::function<bool(uint64_t done, uint64_t total)>& go_on,
    const RowRanges& rows = {});

}  // namespace refract::models

#endif  // REFRACT_MODELS_TABLES_TABLE_MEMORY_H_
