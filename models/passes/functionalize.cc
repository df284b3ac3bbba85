#include "models/passes/functionalize.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/passes/functionalize_views.h"
#include "models/passes/max_norm.h"
#include "models/passes/nested_tensors.h"
#include "models/passes/node_appender.h"

namespace refract::models {
namespace {

// The code distinguishes two things. A *tensor object* is the memory that a
// value id of the given graph stands for: nodes may write it, and other objects
// may see it through views. *Contents* are values of the functional graph,
// which never change. Objects that share memory form a tree: the parent of an
// object is the object that it is a view of. Writing into an object gives it
// new contents, writes these through to its parents, and makes every other
// object of the tree stale; a stale object is viewed again from its parent when
// it is read.
class Functionalizer {
 public:
  explicit Functionalizer(Graph& graph) : graph_(graph), names_(graph) {}

  absl::Status Run() {
    const size_t num_objects = graph_.values.size();
    objects_.resize(num_objects);
    same_.resize(num_objects);
    for (size_t id = 0; id < num_objects; ++id) {
      const auto value = static_cast<ValueId>(id);
      objects_[id].contents = value;
      // Inputs are row-major; a weight may be a transposed parameter.
      objects_[id].contiguous = graph_.values[id].producer == kNoNode &&
                                !graph_.values[id].is_weight();
      same_[id] = value;
    }
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (Node& node : nodes) {
      // Visit() takes the node apart.
      const std::string context = absl::StrCat(node.name, " (", node.op, ")");
      REFRACT_RETURN_IF_ERROR(base::Annotate(Visit(node), context));
    }
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      absl::StatusOr<ValueId> contents = Read(graph_.outputs[i]);
      if (!contents.ok()) {
        return absl::Status(contents.status().code(),
                            absl::StrCat("output ", graph_.output_names[i],
                                         ": ", contents.status().message()));
      }
      graph_.outputs[i] = *contents;
    }
    return absl::OkStatus();
  }

 private:
  struct Object {
    ValueId parent = kNoValue;  // kNoValue: owns its memory
    int32_t view = -1;          // in views_; −1: same shape as the parent
    int32_t output = 0;         // which result of that view
    // Whether it shares the parent's memory at all is unknown.
    bool undecided = false;
    // Known to be row-major in PyTorch's memory.
    bool contiguous = false;
    ValueId contents = kNoValue;
    int64_t version = 0;  // of the root's memory that `contents` shows
    // Roots only: writes so far, and the last writer.
    int64_t writes = 0;
    std::string writer;
    // Not empty: a write may have missed it. The writer and the reason.
    std::string lost;
  };

  ValueId Root(ValueId object) const {
    while (objects_[object].parent != kNoValue) {
      object = objects_[object].parent;
    }
    return object;
  }

  // The present contents of an object; views it again if it is stale.
  absl::StatusOr<ValueId> Read(ValueId id) { return ReadObject(same_[id]); }

  absl::StatusOr<ValueId> ReadObject(ValueId object) {
    if (!objects_[object].lost.empty()) {
      return absl::UnimplementedError(objects_[object].lost);
    }
    const Object& root = objects_[Root(object)];
    if (objects_[object].parent == kNoValue ||
        objects_[object].version == root.writes) {
      return objects_[object].contents;
    }
    if (objects_[object].undecided) {
      return absl::UnimplementedError(Undecided(root.writer, object));
    }
    REFRACT_ASSIGN_OR_RETURN(const ValueId parent,
                             ReadObject(objects_[object].parent));
    ValueId contents = parent;
    if (objects_[object].view >= 0) contents = ViewAgain(object, parent);
    objects_[object].contents = contents;
    objects_[object].version = objects_[Root(object)].writes;
    return contents;
  }

  std::string Undecided(const std::string& writer, ValueId object) const {
    return absl::StrCat(writer, " writes into memory that ",
                        views_[objects_[object].view].name,
                        " may or may not share, and both are read; call "
                        "clone() on one of the two");
  }

  ValueId ViewAgain(ValueId object, ValueId parent) {
    // The same view of the parent's new contents, as a node of its own.
    Node node = views_[objects_[object].view];
    const ValueId source = std::get<ValueRef>(*SourceArg(node)).id;
    node.name = names_.Unique(absl::StrCat(node.name, "_again"));
    // The view's other arguments are sizes, or tensors that only lend a shape.
    ReplaceInput(node, source, parent);
    ValueId contents = kNoValue;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (static_cast<int32_t>(i) == objects_[object].output) {
        contents = node.outputs[i] = NewValue(object, node.name);
      } else {
        node.outputs[i] = kNoValue;
      }
    }
    graph_.nodes.push_back(std::move(node));
    return contents;
  }

  absl::Status Visit(Node& node) {
    REFRACT_ASSIGN_OR_RETURN(const std::string functional,
                             FunctionalForm(node.op));
    if (ReshapesInPlace(functional) && !functional.empty()) {
      return VisitReshape(node, functional);
    }
    if (!functional.empty()) return VisitWrite(node, functional);
    // An operator that is no known write and has no result.
    if (node.outputs.empty()) {
      if (IsCheck(node.op)) return absl::OkStatus();
      return absl::UnimplementedError(
          "the operator returns nothing, so it may write into its arguments, "
          "which the graph cannot express");
    }
    const Argument* source = SourceArg(node);
    ValueId parent = kNoValue;
    if (source != nullptr && std::holds_alternative<ValueRef>(*source)) {
      parent = same_[std::get<ValueRef>(*source).id];
    }
    const Sharing sharing =
        parent == kNoValue
            ? Sharing::kNone
            : SharingOf(graph_, node, objects_[parent].contiguous);
    // After SharingOf(), which needs the ids of objects: ReadArguments()
    // replaces them.
    REFRACT_RETURN_IF_ERROR(ReadArguments(node));
    switch (sharing) {
      case Sharing::kNone:
        MarkContiguous(node);
        graph_.nodes.push_back(std::move(node));
        return absl::OkStatus();
      case Sharing::kCopy: {
        if (node.outputs[0] == kNoValue) return absl::OkStatus();
        Object& copy = objects_[node.outputs[0]];
        REFRACT_ASSIGN_OR_RETURN(copy.contents, ReadObject(parent));
        copy.contiguous = objects_[parent].contiguous;
        return absl::OkStatus();
      }
      case Sharing::kSame:
        if (node.outputs[0] != kNoValue) same_[node.outputs[0]] = parent;
        return absl::OkStatus();
      case Sharing::kMaybeSame:
      case Sharing::kMaybeView:
      case Sharing::kView:
        return VisitView(node, parent, sharing);
    }
    return absl::InternalError(
        "the operator record has an unknown kind of memory sharing");
  }

  absl::Status VisitView(Node& node, ValueId parent, Sharing sharing) {
    const int64_t version = objects_[Root(parent)].writes;
    views_.push_back(node);
    const bool dropped = sharing == Sharing::kMaybeSame;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNoValue) continue;
      Object& object = objects_[node.outputs[i]];
      object.parent = parent;
      object.view = static_cast<int32_t>(views_.size()) - 1;
      object.output = static_cast<int32_t>(i);
      object.undecided = sharing != Sharing::kView;
      object.version = version;
      // kMaybeSame applies to contiguous sources; other views may transpose.
      object.contiguous =
          dropped || (objects_[parent].contiguous && KeepsContiguous(node));
      if (dropped) {
        REFRACT_ASSIGN_OR_RETURN(object.contents, ReadObject(parent));
      }
    }
    if (!dropped) graph_.nodes.push_back(std::move(node));
    return absl::OkStatus();
  }

  // From now on every name of the object means the view.
  absl::Status VisitReshape(Node& node, const std::string& functional) {
    const Argument* source = SourceArg(node);
    if (source == nullptr || !std::holds_alternative<ValueRef>(*source) ||
        node.outputs.size() != 1 || node.outputs[0] == kNoValue) {
      return absl::UnimplementedError(
          "changes shapes in place, but not of exactly one tensor; use the "
          "operator without _ at its end");
    }
    const ValueId object = same_[std::get<ValueRef>(*source).id];
    const ValueId result = node.outputs[0];
    node.op = functional;
    REFRACT_RETURN_IF_ERROR(ReadArguments(node));
    REFRACT_RETURN_IF_ERROR(VisitView(node, object, Sharing::kView));
    for (ValueId& same : same_) {
      if (same == object) same = result;
    }
    return absl::OkStatus();
  }

  // Whether another part of the same split keeps its contents when `object` is
  // written.
  bool IsUntouchedPart(const Object& other, ValueId object,
                       int64_t version) const {
    const Object& written = objects_[object];
    return other.parent == written.parent && other.view == written.view &&
           other.output != written.output && other.version == version &&
           written.view >= 0 && GivesDisjointParts(views_[written.view]);
  }

  bool MayOverlapItself(ValueId object) const {
    for (; objects_[object].parent != kNoValue;
         object = objects_[object].parent) {
      const int32_t view = objects_[object].view;
      if (view >= 0 && MayOverlap(views_[view])) return true;
    }
    return false;
  }

  absl::Status VisitWrite(Node& node, const std::string& functional) {
    const Argument* source = SourceArg(node);
    if (source == nullptr || !std::holds_alternative<ValueRef>(*source) ||
        node.outputs.size() > 1) {
      return absl::UnimplementedError(
          "writes in place, but not into exactly one tensor; use the operator "
          "without _ at its end");
    }
    const ValueId object = same_[std::get<ValueRef>(*source).id];
    const ValueId result = node.outputs.empty() ? kNoValue : node.outputs[0];
    node.op = functional;
    if (SharingOf(graph_, node, false) == Sharing::kSame) {
      // detach_, or dropout_ that is switched off.
      if (result != kNoValue) same_[result] = object;
      return absl::OkStatus();
    }
    REFRACT_RETURN_IF_ERROR(ReadArguments(node));
    const std::string writer = node.name;
    const ValueId before = std::get<ValueRef>(*SourceArg(node)).id;
    ValueId contents = result;
    if (result == kNoValue || same_[result] != result) {
      contents = NewValue(object, node.name);
    }
    if (!CopiesAll(node, contents)) {
      const bool keeps_dtype = KeepsDtype(graph_, node);
      node.outputs = {contents};
      graph_.nodes.push_back(std::move(node));
      // The result takes the old object's place, so it must keep the object's
      // dtype: a functional operator may promote where the write in place would
      // not.
      if (!keeps_dtype) {
        contents = Emit({.op = "aten.type_as.default",
                         .args = {{"self", ValueRef{contents}},
                                  {"other", ValueRef{before}}}},
                        object, absl::StrCat(writer, "_cast"));
      }
    }
    if (result != kNoValue) same_[result] = object;
    return Write(object, contents, writer);
  }

  // copy_ of a tensor with the same dtype and shape as the overwritten one: the
  // new contents are that tensor's.
  bool CopiesAll(const Node& node, ValueId& contents) const {
    if (node.op != "aten.copy.default") return false;
    const Argument* arg = node.FindArg("src");
    if (arg == nullptr || !std::holds_alternative<ValueRef>(*arg)) return false;
    const ValueId src = std::get<ValueRef>(*arg).id;
    const Value& from = graph_.value(src);
    const Value& to = graph_.value(std::get<ValueRef>(*SourceArg(node)).id);
    if (from.dtype == base::DType::kUnknown || from.dtype != to.dtype ||
        !from.has_shape || !to.has_shape || !(from.shape == to.shape)) {
      return false;
    }
    contents = src;
    return true;
  }

  absl::Status Write(ValueId object, ValueId contents,
                     const std::string& writer) {
    const ValueId root = Root(object);
    // Old contents of the parents, into which the new contents are put.
    // Read before the write counts, because reading brings stale parents up to
    // date.
    std::vector<std::pair<ValueId, ValueId>> parents;
    ValueId child = object;
    while (objects_[child].parent != kNoValue && !objects_[child].undecided) {
      child = objects_[child].parent;
      // An earlier write is missing in this parent, which must not be read.
      if (!objects_[child].lost.empty()) break;
      REFRACT_ASSIGN_OR_RETURN(const ValueId old, ReadObject(child));
      parents.push_back({child, old});
    }
    if (child == root && graph_.value(root).is_weight()) {
      return absl::UnimplementedError(
          absl::StrCat("writes into the weight ", graph_.value(root).weight,
                       ", and a model that changes its state cannot be served; "
                       "call model.eval() before the export: batch "
                       "normalisation counts batches in training mode"));
    }
    const int64_t version = ++objects_[root].writes;
    objects_[root].writer = writer;
    auto update = [&](ValueId id, ValueId value) {
      objects_[id].contents = value;
      objects_[id].version = version;
    };
    if (!MayOverlapItself(object)) {
      for (Object& other : objects_) {
        // The other parts of a split are up to date without a new view.
        if (IsUntouchedPart(other, object, version - 1)) {
          other.version = version;
        }
      }
    }
    update(object, contents);
    child = object;
    for (const auto& [parent, old] : parents) {
      if (objects_[child].view >= 0) {
        absl::StatusOr<Node> inverse =
            InverseOf(views_[objects_[child].view], objects_[child].output, old,
                      contents);
        if (!inverse.ok()) {
          if (MayOverlapItself(object)) return inverse.status();
          // An error only if the written memory is read.
          for (ValueId id = parent; id != kNoValue; id = objects_[id].parent) {
            objects_[id].lost = std::string(inverse.status().message());
          }
          return absl::OkStatus();
        }
        contents =
            Emit(*std::move(inverse), parent, absl::StrCat(writer, "_through"));
      }
      update(parent, contents);
      child = parent;
    }
    // Above an undecided link it is unknown whether the write arrived.
    if (objects_[child].undecided) {
      const std::string reason = Undecided(writer, child);
      for (ValueId id = objects_[child].parent; id != kNoValue;
           id = objects_[id].parent) {
        objects_[id].lost = reason;
      }
    }
    return absl::OkStatus();
  }

  // Redirects the operands of `node` to contents.
  absl::Status ReadArguments(Node& node) {
    for (NamedArgument& arg : node.args) {
      if (auto* ref = std::get_if<ValueRef>(&arg.value)) {
        REFRACT_ASSIGN_OR_RETURN(ref->id, Read(ref->id));
      } else if (auto* list = std::get_if<ValueList>(&arg.value)) {
        for (ValueId& id : *list) {
          if (id == kNoValue) continue;
          REFRACT_ASSIGN_OR_RETURN(id, Read(id));
        }
      } else if (auto* ints = std::get_if<IntList>(&arg.value)) {
        for (IntOrValue& item : *ints) {
          if (item.value == kNoValue) continue;
          REFRACT_ASSIGN_OR_RETURN(item.value, Read(item.value));
        }
      }
    }
    return absl::OkStatus();
  }

  // Operators allocate row-major results, but pointwise operators follow the
  // strides of their operands.
  void MarkContiguous(const Node& node) {
    bool contiguous = true;
    if (ClassOf(node.op) == OpClass::kElementwise) {
      for (ValueId id : InputsOf(node)) {
        // Contents of this graph may be newer than the objects.
        contiguous &= static_cast<size_t>(id) >= objects_.size() ||
                      objects_[id].contiguous ||
                      graph_.value(id).kind != ValueKind::kTensor;
      }
    }
    for (ValueId output : node.outputs) {
      if (output != kNoValue) objects_[output].contiguous = contiguous;
    }
  }

  // Appends `node` with one result that is described as `like`.
  ValueId Emit(Node node, ValueId like, const std::string& name) {
    node.name = names_.Unique(name);
    const ValueId value = NewValue(like, node.name);
    node.outputs = {value};
    graph_.nodes.push_back(std::move(node));
    return value;
  }

  ValueId NewValue(ValueId like, const std::string& name) {
    Value value;
    value.name = names_.Unique(absl::StrCat(name, "_value"));
    value.dtype = graph_.value(like).dtype;
    value.has_shape = graph_.value(like).has_shape;
    value.shape = graph_.value(like).shape;
    return graph_.AddValue(std::move(value));
  }

  Graph& graph_;
  // By value id of the given graph; contents made here have no object.
  std::vector<Object> objects_;
  // Identical objects: the result of relu_(x) is x.
  std::vector<ValueId> same_;
  std::vector<Node> views_;
  NodeAppender names_;
};

}  // namespace

absl::Status Functionalize(Graph& graph) {
  REFRACT_RETURN_IF_ERROR(ValidateGraph(graph));
  REFRACT_RETURN_IF_ERROR(ScaleLookUpsByMaxNorm(graph));
  REFRACT_RETURN_IF_ERROR(PadNestedTensors(graph));
  REFRACT_RETURN_IF_ERROR(Functionalizer(graph).Run());
  RemoveUnused(graph);
  return ValidateGraph(graph);
}

}  // namespace refract::models
