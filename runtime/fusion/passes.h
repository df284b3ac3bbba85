#ifndef REFRACT_RUNTIME_FUSION_PASSES_H_
#define REFRACT_RUNTIME_FUSION_PASSES_H_

#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

namespace refract::runtime {

// Merges steps whose Step::fused allows it. Runs after constant folding and
// before memory planning. Steps stay in an order in which every value is
// computed before it is read; Step::nodes lists the nodes of a merged step. No
// bit of any output changes (see fused_op.h).
void FuseSteps(const models::Graph& graph, Plan& plan, Target target);

// The passes, in the order in which FuseSteps runs them.

// A transpose that only products read, as their right operand: the products
// read it untransposed in memory.
void FuseTransposes(const models::Graph& graph, Plan& plan);
// cat or stack of vectors → bmm with its own transpose → selected pairs, as one
// step that never builds the joined vectors or the other products. For targets
// other than the CPU: only as InteractionOp says.
void FusePairs(const models::Graph& graph, Plan& plan, Target target);
// matmul → relu that is its only reader.
void FuseActivations(Plan& plan);
// Element-wise steps of one shape whose intermediate results have no other
// readers.
void FuseElementChains(const models::Graph& graph, Plan& plan);
// Look-ups that do not depend on each other: rows of all tables are prefetched
// before the first is read.
void FuseLookUps(Plan& plan);

// The passes for CPUs alone.

// Attention written as single operators, product → element-wise chain (scale,
// mask) → softmax → dropout that is off → product.
void FuseAttention(const models::Graph& graph, Plan& plan);
// A product with constant weights absorbs three neighbours if the product is
// their only reader: the cat of its left operand, the expansions and
// element-wise chains below the cat, and the chain that reads the product
// alone.
void FuseDense(const models::Graph& graph, Plan& plan);
// Element-wise chain → sum or mean that is its only reader.
void FuseSums(const models::Graph& graph, Plan& plan);
// After FuseDense, which takes a cat with its product: cat of columns → group
// of look-ups that makes some of them, which writes them to their place.
void FuseLookUpCats(const models::Graph& graph, Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_PASSES_H_
