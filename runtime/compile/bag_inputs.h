#ifndef REFRACT_RUNTIME_COMPILE_BAG_INPUTS_H_
#define REFRACT_RUNTIME_COMPILE_BAG_INPUTS_H_

// Inputs of a part that hold bags: one vector with the entries of all rows'
// bags, one after the other, and another that says where each row's begin. The
// number of entries is none of the batch's sizes, so such requests are put
// together and cut otherwise than rows (gpu_node/model/row_layout.h), and a device
// has room for so many of them (cuda_plan/bags.h).

#include <cstddef>
#include <string>
#include <vector>

#include "models/graph/graph.h"
#include "runtime/program.h"

namespace refract::runtime {

struct BagInputs {
  // Indexes of the part's inputs. Offsets: int64 or int32, [B], or [B + 1]
  // where the last one counts the entries (include_last_offset).
  size_t offsets = 0;
  bool include_last = false;
  // Ids and weights of entries; vectors of one length.
  std::vector<size_t> entries;
};

struct FoundBags {
  std::vector<BagInputs> bags;
  // Not empty: some bags of the part are not such inputs, or those are also
  // used otherwise, and why.
  std::string why_not;
};

// By the embedding_bag operators of the part. What reads its entries and
// offsets only through them is a group of its own.
FoundBags FindBagInputs(const models::Graph& graph, const Part& part);

// Whether a node is an embedding_bag, in any of its forms.
bool IsBag(const models::Node& node);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_BAG_INPUTS_H_
