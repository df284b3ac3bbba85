#ifndef REFRACT_MODELS_PASSES_MAX_NORM_H_
#define REFRACT_MODELS_PASSES_MAX_NORM_H_

// Look-ups of torch.nn.Embedding(max_norm=…), which scale the requested rows in
// the table itself before the look-up.

#include "absl/status/status.h"
#include "models/graph/graph.h"

namespace refract::models {

// Makes such look-ups scale their results, and leave the table unchanged:
//
//   n = ‖row‖_p;  row · min(1, max_norm / (n + 1e-7))
//
// which is what ATen's embedding_renorm_ does to a row (ATen/native/
// Embedding.cpp). A scaled row is not scaled again, so that answers equal
// PyTorch's and do not depend on earlier requests. The table must have no other
// readers than such look-ups: otherwise Unimplemented names the table and the
// reader. For graphs as imported, before Functionalize().
absl::Status ScaleLookUpsByMaxNorm(Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_MAX_NORM_H_
