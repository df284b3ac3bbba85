#ifndef REFRACT_BENCH_GATHER_TABLES_H_
#define REFRACT_BENCH_GATHER_TABLES_H_

// Tables and requests of the look-up benchmark.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/memory/large_memory.h"
#include "base/tensor.h"
#include "models/repository/weights.h"
#include "models/tables/row_format.h"
#include "tools/loadgen/ids.h"
#include "tools/loadgen/random.h"

namespace refract::bench {

// Equal tables, every byte of which has been written.
struct Tables {
  models::RowLayout layout;
  int64_t count = 0;
  int64_t rows = 0;  // of each
  // Weights "t0", "t1", ….
  std::shared_ptr<const models::WeightStore> store;

  const std::byte* at(int64_t table) const;
  int64_t bytes() const { return count * rows * layout.stride; }
};

// Where tables lie: in this process's memory, in huge or in 4 KiB pages, or in a
// mapped file.
enum class Place { kHuge, kSmall, kMapped };

// `count` tables of the same rows wherever they lie. Each starts at a multiple
// of 128 bytes. `folder` is for their file, which is unlinked once it is mapped.
// `huge_bytes`: how much of them lies in huge pages.
absl::StatusOr<Tables> MakeTables(const std::string& folder, Place place,
                                  const models::RowLayout& layout,
                                  int64_t count, int64_t rows,
                                  size_t& huge_bytes);

// The inputs of a request: ids of every table, and where bags begin.
struct Request {
  int64_t batch = 0;
  int64_t look_ups = 0;  // of each bag
  std::vector<base::Tensor> ids;      // int64 per table
  std::vector<base::Tensor> offsets;  // int64 [batch] per table
  // All tables' ids, and where the bags begin, for FBGEMM.
  base::Tensor joined_ids;
  base::Tensor joined_offsets;
  // `ids` and `offsets` by turns, as the program takes them.
  std::vector<base::TensorView> views;
};

// Draws rows. `skewed`: as often as rows were used in Meta's published traces;
// otherwise uniform.
class RowSource {
 public:
  RowSource(int64_t rows, bool skewed, uint64_t seed)
      : sampler_({.embedding_traces = skewed}, rows), random_(seed, "rows") {}
  int64_t Next() { return sampler_.Draw(random_); }

 private:
  const loadgen::IdSampler sampler_;
  loadgen::Random random_;
};

// With ids that are all 0.
Request MakeRequest(const Tables& tables, int64_t batch, int64_t look_ups);
// Draws new ids: into `joined_ids` for baselines that take those, else into
// `ids`.
void DrawIds(RowSource& source, bool joined, Request& request);
// Copies `ids` to `joined_ids`.
void JoinIds(Request& request);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_GATHER_TABLES_H_
