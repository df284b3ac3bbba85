#ifndef REFRACT_MODELS_TORCHSCRIPT_REGIONS_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_REGIONS_TORCH_H_

// Which nodes of a flat TorchScript graph run together through LibTorch's
// interpreter. Includes LibTorch: for *_torch.cc only.

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace refract::models::torchscript {

// Nodes that are converted together: one, or a region of several.
struct Unit {
  std::vector<torch::jit::Node*> nodes;  // in the graph's order
  bool is_region = false;
};

// May a value leave or enter a region? Tensors and Python numbers whose type is
// known; not lists, objects, optionals.
bool IsPlain(const c10::Type& type);

// Values that a node, or a block in it, reads from outside; each value once.
std::vector<torch::jit::Value*> ReadsOf(const torch::jit::Node& node);

// The smallest regions around `opaque` such that
//   - only plain values leave them,
//   - a list, dictionary or object that a region writes into is touched by that
//     region alone,
//   - a region contains the nodes that write into a result of it that may be an
//     argument, and the views of values that it writes into,
//   - no other node lies between two nodes of a region,
// in an order in which every node comes after the producers of the values that
// it reads, after the writes that it must see, and before the writes that it
// must not see.
std::vector<Unit> PlanRegions(
    const std::shared_ptr<torch::jit::Graph>& graph,
    const absl::flat_hash_set<const torch::jit::Node*>& opaque);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_REGIONS_TORCH_H_
