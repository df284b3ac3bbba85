#ifndef REFRACT_CPU_NODE_EMBEDDING_DISK_TABLES_H_
#define REFRACT_CPU_NODE_EMBEDDING_DISK_TABLES_H_

// Tables that are larger than memory: rows are read from the version's files
// when requests ask for them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process/file_reads.h"
#include "cpu_node/embedding/row_cache.h"
#include "models/repository/repository.h"
#include "runtime/cpu/look_ups/row_source.h"

namespace refract::cpu_node {

// Memory for rows is bounded: a cache per length of a row, and the rows that
// requests under way are reading. The missing rows of a step of a request are
// read as one batch. Thread-safe.
class DiskTables final : public runtime::cpu::RowSource {
 public:
  // Opens the tables of `model` that look-ups of this node read and whose rows
  // lie one after the other; other tables stay mapped. `whole`: as
  // PlaceTables(). `shard`: as TableStore; of a table that is divided by row
  // numbers, rows are counted from the first own row. Each cache has a part of
  // `cache_bytes` in proportion to the bytes of its tables. NotFound or
  // InvalidArgument names a file. ResourceExhausted: the caches, which fill up
  // later, would take more than `available_bytes` (0: any number).
  static absl::StatusOr<std::unique_ptr<DiskTables>> Create(
      const models::LoadedModel& model, bool whole, size_t cache_bytes,
      std::optional<size_t> shard = std::nullopt, uint64_t available_bytes = 0);

  // By table, for TableStore::SetSources().
  const absl::flat_hash_map<std::string, runtime::cpu::TableSource>& sources()
      const {
    return sources_;
  }

  // DataLoss names table, row, file and byte of a read that failed.
  absl::Status Fetch(absl::Span<const runtime::cpu::WantedRows> wanted,
                     runtime::RunStats& stats) const override;

  struct Counts {
    uint64_t hits = 0;    // rows found in the cache
    uint64_t misses = 0;  // rows that the cache did not have
    uint64_t reads = 0;   // reads of files
    uint64_t read_bytes = 0;
  };
  Counts counts() const;
  uint64_t table_bytes() const { return table_bytes_; }  // in files
  size_t cache_bytes() const;                            // memory of caches

 private:
  struct Table {
    std::string name;
    std::shared_ptr<const base::ReadFile> file;
    uint64_t offset = 0;  // of the first row that is read here
    uint64_t first_row = 0;
    size_t row_bytes = 0;
    RowCache* cache = nullptr;
  };
  struct Miss;
  struct Working;

  DiskTables() = default;
  absl::Status ReadMisses(Working& working) const;

  std::vector<Table> tables_;
  std::vector<std::unique_ptr<RowCache>> caches_;
  absl::flat_hash_map<std::string, runtime::cpu::TableSource> sources_;
  uint64_t table_bytes_ = 0;
  mutable std::atomic<uint64_t> hits_{0};
  mutable std::atomic<uint64_t> misses_{0};
  mutable std::atomic<uint64_t> reads_{0};
  mutable std::atomic<uint64_t> read_bytes_{0};
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_DISK_TABLES_H_
