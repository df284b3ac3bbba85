#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_KERNELS_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_KERNELS_H_

// The innermost loops of look-ups, one table of functions per instruction set.
// Plain types only: the implementing files are compiled for processors other
// than this one, so they must not share inline functions with the rest of the
// program.

#include <cstddef>
#include <cstdint>

namespace refract::runtime::cpu {

// Rows between a prefetch and its use. The times with 8 to 32 rows differ by
// less than repeated runs do.
inline constexpr int64_t kGatherAhead = 16;
// Rows of a group that is prefetched at a time. A prefetch that misses the TLB
// holds back the instructions behind it (seen on Zen 3), but the processor
// translates the addresses of prefetches that follow each other at the same
// time.
inline constexpr int64_t kGatherGroup = 8;
// Entries that the array of row addresses must have behind the last row.
inline constexpr int64_t kGatherPast = kGatherAhead + kGatherGroup;

enum class GatherMode : uint8_t { kSum, kMean, kMax };

// The bags of one table, whose rows' addresses are known and valid.
//
//   out[b][d] = sum over i of weights[i] × value(rows[i])[d],  and so on as in
//   embedding_bag.h, i in order, every multiplication and addition rounded by
//   itself, or fused where the product is exact. So all instruction sets give
//   the same bits.
struct GatheredBags {
  const std::byte* const* rows = nullptr;  // of the first id
  int64_t num_ids = 0;
  int64_t num_bags = 0;
  // Bag b begins at element b; null: bag b is id b alone. The last bag ends at
  // element num_bags, or with the ids.
  const int64_t* offsets64 = nullptr;
  const int32_t* offsets32 = nullptr;
  bool include_last_offset = false;
  GatherMode mode = GatherMode::kSum;
  const float* weights = nullptr;  // null: all 1
  int64_t dim = 0;                 // a multiple of the set's `lanes`
  int64_t row_bytes = 0;           // prefetched
  bool prefetch_ends = false;      // only the first and the last line of a row
  bool prefetch_far = false;       // into the cache of second level
  bool prefetch_groups = false;    // kGatherGroup rows at a time
  int64_t payload = 0;             // byte of the first element
  int64_t parameters = 0;          // byte of scale and bias
  bool half_parameters = false;    // fp16 instead of fp32
  std::byte* out = nullptr;
  int64_t out_stride = 0;  // bytes from a bag's results to the next bag's
};
using GatherFunction = void (*)(const GatheredBags& bags);

// As models::RowElement.
inline constexpr int kNumRowElements = 6;

struct GatherSet {
  const char* name = "";  // "avx512", …
  int64_t lanes = 0;
  GatherFunction pool[kNumRowElements] = {};
  // Bags of one id: copies row_bytes of each row.
  GatherFunction copy = nullptr;
};

// The fastest allowed set of this processor (instruction_sets.h) for rows of
// `dim` elements, null if none has lanes that divide it.
const GatherSet* GatherSetFor(int64_t dim);
// Bytes of the longest row that this processor should prefetch as a whole into
// its cache of second level.
int64_t LongestFarRow();
// For copies, which have no lanes.
const GatherSet& CopyGatherSet();

const GatherSet& GenericGatherSet();
// False when built without the set. Only to be called on a processor that has
// the instructions.
bool FillAvx2GatherSet(GatherSet& set);
bool FillAvx512GatherSet(GatherSet& set);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_GATHER_GATHER_KERNELS_H_
