#include "models/torchscript/contexts_torch.h"

#include <torch/csrc/jit/passes/autocast.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/torch/convert_torch.h"

namespace refract::models::torchscript {
namespace {

void Collect(torch::jit::Block& block, std::vector<torch::jit::Node*>& found) {
  for (torch::jit::Node* node : block.nodes()) {
    if (node->kind() == c10::prim::Enter || node->kind() == c10::prim::Exit) {
      found.push_back(node);
    }
    for (torch::jit::Block* inner : node->blocks()) Collect(*inner, found);
  }
}

std::string ClassName(const torch::jit::Value& object) {
  const auto* type = object.type()->castRaw<c10::ClassType>();
  return type != nullptr && type->name() ? type->name()->qualifiedName()
                                         : object.type()->str();
}

// An object that nobody looks at any more.
void RemoveObject(torch::jit::Value* object) {
  std::vector<torch::jit::Node*> writers;
  for (const torch::jit::Use& use : object->uses()) {
    if (use.user->kind() != c10::prim::SetAttr || use.offset != 0) return;
    writers.push_back(use.user);
  }
  for (torch::jit::Node* writer : writers) writer->destroy();
  if (object->node()->kind() == c10::prim::CreateObject) {
    object->node()->destroy();
  }
}

}  // namespace

absl::Status ResolveContexts(const std::shared_ptr<torch::jit::Graph>& graph) {
  std::vector<torch::jit::Node*> nodes;
  Collect(*graph->block(), nodes);
  if (nodes.empty()) return absl::OkStatus();
  bool casts = false;
  for (const torch::jit::Node* node : nodes) {
    const std::string name = ClassName(*node->input(0));
    if (absl::StrContains(name, "autocast_mode.")) {
      casts = true;
    } else if (!absl::StrContains(name, "torch.autograd.grad_mode.")) {
      return absl::UnimplementedError(absl::StrCat("enters the context ", name,
                                                   ", whose meaning is not "
                                                   "known outside Python"));
    }
  }
  if (casts) {
    const absl::Status status = aten::Guarded("torch.autocast", [&] {
      torch::jit::Autocast(graph);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    nodes.clear();
    Collect(*graph->block(), nodes);
  }
  std::set<torch::jit::Value*> objects;
  for (torch::jit::Node* node : nodes) {
    torch::jit::Value* object = node->input(0);
    objects.insert(object);
    for (torch::jit::Value* output : node->outputs()) {
      output->replaceAllUsesWith(object);
    }
    node->destroy();
  }
  for (torch::jit::Value* object : objects) RemoveObject(object);
  return absl::OkStatus();
}

}  // namespace refract::models::torchscript
