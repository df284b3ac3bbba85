#ifndef REFRACT_MODELS_TORCHSCRIPT_CONVERTER_TORCH_H_
#define REFRACT_MODELS_TORCHSCRIPT_CONVERTER_TORCH_H_

// Walks a TorchScript graph, evaluates whatever constants and the sample
// determine, and builds the IR graph. One class over several files:
// nodes_torch.cc (calls of ATen operators), control_flow_torch.cc (branches,
// loops), inputs_torch.cc (arguments and results of the model), opaque_torch.cc
// (nodes without a form in the IR) and region_node_torch.cc (the IR node of a
// region of opaque nodes).
// Includes LibTorch: for *_torch.cc only.
//
// A model that has nodes without a form in the IR is walked twice:
//
//   Trace  decides branches and unrolls loops into a flat TorchScript graph, in
//          which only nodes that cannot be converted still have blocks;
//   Emit   converts that flat graph, regions of such nodes as one IR node each.

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/torchscript/archive_torch.h"
#include "models/torchscript/import.h"
#include "models/torchscript/items_torch.h"
#include "models/torchscript/regions_torch.h"

namespace refract::models::torchscript {

using JitBlock = torch::jit::Block;
using JitNode = torch::jit::Node;
using JitValue = torch::jit::Value;

// Result of Trace().
struct Traced {
  std::shared_ptr<torch::jit::Graph> graph;
  // Nodes of `graph` that cannot be converted, and the first one's reason.
  absl::flat_hash_set<const JitNode*> opaque;
  // Values of opaque nodes' results for the example request.
  std::unordered_map<const JitValue*, c10::IValue> examples;
};

// For one walk. May throw what LibTorch throws.
class Converter {
 public:
  Converter(const Archive& archive, const Examples& examples)
      : archive_(archive), examples_(examples), build_(archive) {}

  // Converts `source`. When Traced::opaque comes out empty, Finish() has the
  // whole model; else its result is of no use, and Emit() has to follow.
  // `whole_loops`: loops that are not unrolled. Aborted: the walk has added a
  // loop, and the caller repeats the walk with a new Converter.
  absl::StatusOr<Traced> Trace(
      const torch::jit::Graph& source,
      absl::flat_hash_set<const JitNode*>& whole_loops);

  // Converts a flat graph whose regions are `units`.
  absl::Status Emit(const Traced& traced, const std::vector<Unit>& units);

  Converted Finish() { return build_.Finish(); }

 private:
  // inputs_torch.cc
  absl::Status AddInputs(const torch::jit::Graph& source);
  Item AddInput(const std::string& name);
  // Whether the sample has the input or an element of it.
  bool HasExample(const std::string& name) const;
  // Finds arguments whose name is also the name of a key's input: see renamed_.
  // InvalidArgument: the sample does not tell them apart.
  absl::Status ShareNames(const torch::jit::Graph& source);
  // Whether the graph itself looks `key` up.
  static bool IsLookedUp(const JitValue& dict, absl::string_view key);
  // A tensor, or a dictionary, list or tuple of inputs: "features" with the
  // key "user" is the input "features_user", "xs" has "xs_0", "xs_1", ….
  absl::StatusOr<Item> InputOf(const c10::Type& type, const std::string& name);
  // Keys come from the sample, or where it has none from the graph's look-ups.
  absl::StatusOr<Item> DictInput(const c10::DictType& type,
                                 const std::string& name);
  // `type`: of the value in the source, nullptr where it is not known. A result
  // that is no tensor is left out, with a note.
  absl::Status AddOutput(const Item& item, const c10::TypePtr& type);
  // A tensor without dimensions that holds a number.
  ValueId TensorOfNumber(const Item& item);
  // Adds weights that the graph does not read, too: the tables folder may have
  // a file for them.
  absl::Status AddAttributes();

  // nodes_torch.cc
  absl::Status ConvertBlock(const JitBlock& block);
  absl::Status ConvertNode(const JitNode& node);
  absl::Status ConvertConstant(const JitNode& node);
  // `path`: of the attribute; empty for a constant.
  absl::StatusOr<Item> FromIValue(const c10::IValue& value,
                                  const std::string& path);
  absl::Status ConvertGetAttr(const JitNode& node);
  absl::Status ConvertUnpack(const JitNode& node);

  // control_flow_torch.cc
  absl::Status ConvertIf(const JitNode& node);
  absl::Status TakeBlock(const JitNode& node, const JitBlock& block);
  // Inputs of a loop: the largest number of rounds, whether to begin, carried
  // values. The body takes the round's number and the carried values, and gives
  // whether to go on and the carried values.
  absl::Status ConvertLoop(const JitNode& node);
  // The length of a range, or its element at an index.
  absl::Status ConvertRange(const JitNode& node, bool length);
  absl::Status ConvertIs(const JitNode& node, bool is);
  // Of an optional argument, which the sample has or has not.
  absl::Status ConvertIsInstance(const JitNode& node);

  // nodes_torch.cc
  // All casts become to.dtype; moves between devices are dropped.
  absl::Status ConvertTo(const JitNode& node);
  absl::Status ConvertOperator(const JitNode& node, absl::string_view op);
  absl::Status AddResults(const JitNode& node,
                          const c10::FunctionSchema& schema,
                          const std::string& name, Node out,
                          const std::vector<c10::IValue>& examples);
  void MarkComplex(const Item& item);
  // Number of tensors in a list result: from prim::ListUnpack, or from the
  // sizes among its arguments.
  absl::StatusOr<size_t> ListLength(const JitNode& node, const Node& out);

  // opaque_torch.cc
  // Copies a node into the flat graph.
  JitNode* Copy(const JitNode& node);
  bool ReadsOpaque(const JitNode& node);
  // Records that a node has no form in the IR because of `why`, and runs it on
  // the sample. InvalidArgument: no request may run the node.
  absl::Status MakeOpaque(const JitNode& node, JitNode* copy,
                          const absl::Status& why);
  // Forgets the contents of lists and dictionaries that a node may have
  // changed.
  void ForgetContainers(const std::vector<JitValue*>& read,
                        const std::vector<c10::IValue>& after);
  // Adds nodes that take the tensors out of a container that the model returns.
  absl::Status ReturnFrom(const JitValue* source, JitValue* value,
                          const Item& item);
  void AppendOpaque(JitNode* node, const c10::IValue& example);

  // region_node_torch.cc
  absl::Status EmitRegion(const Traced& traced,
                          const std::vector<JitNode*>& nodes);
  // InvalidArgument: a result depends on a buffer that a region writes into.
  absl::Status CheckWrittenWeights() const;

  const Item& ItemOf(const JitValue* value) { return items_[value]; }
  const Item& Input(const JitNode& node, size_t i) {
    return ItemOf(node.input(i));
  }
  std::vector<Item> Inputs(const JitNode& node);
  absl::Status Set(const JitNode& node, Item item);
  absl::Status SetOr(const JitNode& node, absl::StatusOr<Item> item);

  friend class RegionBuilder;

  const Archive& archive_;
  const Examples& examples_;
  absl::flat_hash_set<std::string> arguments_;  // of forward()
  // forward(features: Dict[str, Tensor], features_x) with a key "x" has two
  // inputs called "features_x". As in torch.export the first input keeps the
  // name and the second becomes "features_x_1". renamed_: argument → input,
  // where the argument is second. shared_keys_: input → key, in both cases.
  absl::flat_hash_map<std::string, std::string> renamed_;
  absl::flat_hash_map<std::string, std::string> shared_keys_;
  // Inputs of dictionaries whose keys the sample lacks, by name.
  absl::flat_hash_map<std::string, Item> looked_up_;
  size_t num_results_ = 0;  // that the model returns, tensors or not
  Builder build_;
  // std::unordered_map: references stay valid while items are added.
  std::unordered_map<const JitValue*, Item> items_;

  // Weights that a region writes into, once per region.
  std::vector<ValueId> written_weights_;

  // Trace() only.
  Traced traced_;
  std::unordered_map<const JitValue*, JitValue*> flat_of_;
  absl::flat_hash_set<const JitNode*>* whole_loops_ = nullptr;
};

// Replaces arguments of `graph` (as loaded, not inlined) that are objects of a
// class, or dictionaries of objects: TorchRec's KeyedJaggedTensor and
// JaggedTensor, and users' own. The graph makes the object with the class's
// __init__() from new inputs, one per tensor that __init__() takes. Inputs have
// torch.export's names for the parts of a KeyedJaggedTensor:
// "features__values", "features__lengths", and "features_user__values" for the
// key "user" of a dictionary. An optional tensor that the sample lacks is None,
// a list of texts comes from `keys`, and any other argument takes its default.
// InvalidArgument: `keys` lacks an argument or names an argument that takes no
// keys; the sample lacks a tensor. Unimplemented: __init__() takes something
// else without a default.
absl::Status MakeClassInputs(const Examples& examples, const KeyLists& keys,
                             torch::jit::Graph& graph);

// Replaces arguments of forward() that are no tensors by their defaults, where
// they have some. Returns a note for each.
std::vector<std::string> TakeDefaults(const c10::FunctionSchema& forward,
                                      torch::jit::Graph& graph);

// "weights0.1" → "weights0": TorchScript numbers the versions of a name.
absl::string_view NameWithoutVersion(absl::string_view name);
// A short name for a node, from the Python variable where there is one.
std::string NameOf(const JitNode& node, absl::string_view otherwise);
// " at FILE:LINE" of the Python source; empty when that is not known.
std::string Location(const JitNode& node);

}  // namespace refract::models::torchscript

#endif  // REFRACT_MODELS_TORCHSCRIPT_CONVERTER_TORCH_H_
