#ifndef REFRACT_RUNTIME_FUSION_PASSES_H_
#define REFRACT_RUNTIME_FUSION_PASSES_H_

#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

namespace refract::runtime {

// Merges steps whose Step::fused allows it. Runs after constants were folded
// and before memory is planned. Steps keep an order in which every value is
// made before it is read; Step::nodes tells what a merged one stands for. No
// bit of any output changes (see fused_op.h).
void FuseSteps(const models::Graph& graph, Plan& plan);

// For devices that run DenseOp, after FuseSteps: products of constant weights
// take in the cat that they alone read, with the expansions and element-wise
// chains that it alone reads, and the chain that alone reads them.
void FuseDense(const models::Graph& graph, Plan& plan);
// For the same devices: attention that is written out, product → element-wise
// chain (scale, mask) → softmax → dropout that is off → product.
void FuseAttention(const models::Graph& graph, Plan& plan);
// For the same devices: the pairs that are wanted of all products between an
// item's vectors, where FuseInteractions finds no stack of single ones: vectors
// joined by cat, pieces of several, pairs chosen by rows and columns.
void FusePairs(const models::Graph& graph, Plan& plan);
// For the same devices: element-wise chain → sum or mean that alone reads it.
void FuseSums(const models::Graph& graph, Plan& plan);

// The passes, in the order in which FuseSteps runs them.

// stack of vectors → bmm with its own transpose → flatten → index_select of
// constant places, as one step that never makes the stack or the unwanted
// products.
void FuseInteractions(const models::Graph& graph, Plan& plan);
// bmm or matmul of a transposed right side, which products alone read: read as
// it lies.
void FuseTransposes(const models::Graph& graph, Plan& plan);
// matmul → relu that alone reads it.
void FuseActivations(Plan& plan);
// Element-wise steps of one shape whose results only each other read.
void FuseElementChains(const models::Graph& graph, Plan& plan);
// Look-ups that nothing between them needs: rows of all tables are fetched
// before the first is read.
void FuseLookUps(Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_PASSES_H_
