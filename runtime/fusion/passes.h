#ifndef REFRACT_RUNTIME_FUSION_PASSES_H_
#define REFRACT_RUNTIME_FUSION_PASSES_H_

#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

namespace refract::runtime {

// Merges steps whose Step::fused allows it. Runs after constant folding and
// before memory planning. Steps stay in an order in which every value is
// computed before it is read; Step::nodes lists the nodes of a merged step. No
// bit of any output changes (see fused_op.h).
void FuseSteps(const models::Graph& graph, Plan& plan);

// For devices with DenseOp, after FuseSteps. A product with constant weights
// absorbs three neighbours if the product is their only reader: the cat of its
// left operand, the expansions and element-wise chains below the cat, and the
// chain that reads the product alone.
void FuseDense(const models::Graph& graph, Plan& plan);
// For the same devices: attention written as single operators, product →
// element-wise chain (scale, mask) → softmax → dropout that is off → product.
void FuseAttention(const models::Graph& graph, Plan& plan);
// For the same devices: selected pairs of all products between an item's
// vectors, in the forms that FuseInteractions does not match: vectors joined by
// cat, blocks of several vectors, pairs selected by rows and columns.
void FusePairs(const models::Graph& graph, Plan& plan);
// For the same devices, after FuseDense, which takes a cat with its product: cat
// of columns → group of look-ups that makes some of them, which writes them to
// their place.
void FuseLookUpCats(const models::Graph& graph, Plan& plan);
// For the same devices: element-wise chain → sum or mean that is its only
// reader.
void FuseSums(const models::Graph& graph, Plan& plan);

// The passes, in the order in which FuseSteps runs them.

// stack of vectors → bmm with its own transpose → flatten → index_select of
// constant places, as one step that never builds the stack or the unselected
// products.
void FuseInteractions(const models::Graph& graph, Plan& plan);
// A transpose that only products read, as their right operand: the products
// read it untransposed in memory.
void FuseTransposes(const models::Graph& graph, Plan& plan);
// matmul → relu that is its only reader.
void FuseActivations(Plan& plan);
// Element-wise steps of one shape whose intermediate results have no other
// readers.
void FuseElementChains(const models::Graph& graph, Plan& plan);
// Look-ups that do not depend on each other: rows of all tables are prefetched
// before the first is read.
void FuseLookUps(Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_PASSES_H_
