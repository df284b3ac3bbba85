#ifndef REFRACT_RUNTIME_COMPILE_BAG_INPUTS_H_
#define REFRACT_RUNTIME_COMPILE_BAG_INPUTS_H_

// Inputs of a part that hold bags: a vector with the entries of all bags, and a
// vector of offsets with the begin of each row's bag. The number of entries is
// not a multiple of the batch, so such requests are merged and cut at bags
// (runtime/compile/batch_layout.h), and a device has room for a limited number
// of entries (cuda_plan/bags.h).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "models/graph/graph.h"
#include "runtime/program.h"

namespace refract::runtime {

struct BagInputs {
  // Indexes of the part's inputs. Offsets: int64 or int32, [B], or [B + 1]
  // whose last element is the number of entries (include_last_offset).
  size_t offsets = 0;
  bool include_last = false;
  // Ids and weights of entries; vectors of equal length.
  std::vector<size_t> entries;
};

struct FoundBags {
  std::vector<BagInputs> bags;
  // Not empty: the reason why some bags of the part are not such inputs, or
  // have inputs with other readers.
  std::string why_not;
};

// Finds the bags that embedding_bag operators of the part read. A group has
// entries and offsets with no other readers.
FoundBags FindBagInputs(const models::Graph& graph, const Part& part);

// Whether a node is an embedding_bag, in any of its forms.
bool IsBag(const models::Node& node);

// Whether `symbol` occurs in `expr`.
bool Mentions(const models::SymExpr& expr, const std::string& symbol);

// Checks that `offsets`, int64 or int32 in a copy that no peer writes, describe
// `rows` bags one after the other, of the entries from `begin` to `end`, and
// moves them so that the first bag begins at `first`. InvalidArgument names the
// offset that is wrong.
absl::Status CheckAndMove(base::DType dtype, std::byte* offsets, int64_t rows,
                          bool include_last, int64_t begin, int64_t end,
                          int64_t first);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_BAG_INPUTS_H_
