#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_SOURCE_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_SOURCE_H_

// Rows of tables that do not lie in mapped memory: in files that are larger
// than memory, or at another node.

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace refract::runtime {
struct RunStats;
}

namespace refract::runtime::cpu {

// Rows of one table that a look-up reads.
struct WantedRows {
  int table = 0;  // TableSource::table
  // Each inside the table; in any order, perhaps several times.
  absl::Span<const uint64_t> rows;
  // Row i is written to to + i × bytes of a row.
  std::byte* to = nullptr;
};

// Thread-safe.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Writes all wanted rows, those of all look-ups of a step at once, so that
  // one batch of reads or one message per peer suffices. Blocks. Rows are as in
  // the version's files: changes of deltas are laid over them by the caller.
  // `stats` counts rows that were replaced. Errors name the table; the request
  // then fails.
  virtual absl::Status Fetch(absl::Span<const WantedRows> wanted,
                             RunStats& stats) const = 0;
};

// A table whose rows come from a source. The source outlives programs.
struct TableSource {
  const RowSource* source = nullptr;  // null: rows lie in memory
  int table = 0;                      // as the source numbers its tables
};

// Longer rows are read where the files are mapped.
inline constexpr int64_t kMaxSourceRowBytes = 1 << 16;

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_ROW_SOURCE_H_
