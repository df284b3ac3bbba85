#include "models/repository/split_plan.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "models/graph/constants.h"
#include "models/graph/graph_proto.h"
#include "models/graph/op_traits.h"
#include "models/rows/row_dependence.h"
#include "proto/graph.pb.h"
#include "proto/split_plan.pb.h"

namespace refract::models {
namespace {

// The newest that this program reads. Plans without wire forms are written as
// version 1, which older programs read too.
constexpr uint32_t kPlanFormatVersion = 2;

int Number(Stage stage) { return static_cast<int>(stage); }

// Stage of the producer of `id`; inputs and weights exist from the start.
Stage StageOfProducer(const Graph& graph, const SplitPlan& plan, ValueId id) {
  const NodeId producer = graph.value(id).producer;
  return producer == kNoNode ? Stage::kCnPre : plan.stages[producer];
}

struct Crossings {
  std::vector<ValueId> up;
  std::vector<ValueId> down;
};

// The values that cross, by ascending id, which is the order of tensors in
// messages. A value crosses once, however many nodes read it. Values from
// CN-pre to CN-post stay on the CPU node and do not cross.
Crossings FindCrossings(const Graph& graph, const SplitPlan& plan) {
  const size_t count = graph.values.size();
  const std::vector<bool> constant = ConstantNodes(graph);
  // Constants are computed where they are read and never cross
  // (models/graph/constants.h).
  const auto is_constant = [&](ValueId id) {
    const Value& value = graph.value(id);
    return value.is_weight() ||
           (value.producer != kNoNode && constant[value.producer]);
  };
  std::vector<bool> up(count, false);
  std::vector<bool> down(count, false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Stage stage = plan.stages[n];
    // A constant is computed by its readers, and so are its operands.
    if (stage == Stage::kCnPre || constant[n]) continue;
    for (const ValueId id : InputsOf(graph.nodes[n])) {
      if (is_constant(id)) continue;
      const Stage from = StageOfProducer(graph, plan, id);
      if (stage == Stage::kHn && from == Stage::kCnPre) up[id] = true;
      if (stage == Stage::kCnPost && from == Stage::kHn) down[id] = true;
    }
  }
  for (const ValueId id : graph.outputs) {
    if (!is_constant(id) && StageOfProducer(graph, plan, id) == Stage::kHn) {
      down[id] = true;
    }
  }
  Crossings result;
  for (size_t id = 0; id < count; ++id) {
    if (up[id]) result.up.push_back(static_cast<ValueId>(id));
    if (down[id]) result.down.push_back(static_cast<ValueId>(id));
  }
  return result;
}

absl::Status CheckEdges(const Graph& graph, const SplitPlan& plan) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId id : InputsOf(graph.nodes[n])) {
      const Stage from = StageOfProducer(graph, plan, id);
      if (from <= plan.stages[n]) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("node ", graph.nodes[n].name, " in stage ",
                       Number(plan.stages[n]), " reads value ",
                       graph.value(id).name, " made in stage ", Number(from),
                       "; no node may read from a later stage; run refract "
                       "partition again"));
    }
  }
  return absl::OkStatus();
}

// Look-ups of one table may be on the HN, if the partitioner found room for it;
// look-ups of many tables at once (fbgemm's) may not. Their operands are not
// after them, because stages never fall.
absl::Status CheckPlacement(const Graph& graph, const SplitPlan& plan) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const Stage stage = plan.stages[n];
    if (Number(stage) > Number(Stage::kCnPost)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "node ", node.name, " has stage ", Number(stage), ", not 0, 1 or 2"));
    }
    const OpClass op_class = ClassOf(graph, node);
    const bool is_look_up = op_class == OpClass::kEmbedding;
    const bool may_run_on_hn =
        MayRunOnHn(op_class) ||
        (is_look_up && !EmbeddingArgsOf(node.op).weight.empty());
    if (stage == Stage::kHn && !may_run_on_hn) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node.name, " (", node.op, ", ", Name(op_class),
                       ") must not run on the HN"));
    }
    if (stage == Stage::kHn && ReadsRowFormat(graph, node)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "node ", node.name, " (", node.op,
          ") must not run on the HN: it reads a table in a row format, which "
          "only CPUs read; run refract partition again"));
    }
    if (is_look_up && stage == Stage::kCnPost) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", node.name, " (", node.op,
                       ", embedding) must run in stage 0 or 1, not in stage ",
                       Number(stage)));
    }
  }
  return absl::OkStatus();
}

// Compares the lists of the file with the lists that the stages need. The order
// counts: a tensor of a message is found by its position.
absl::Status CheckCrossings(const Graph& graph,
                            const std::vector<ValueId>& stored,
                            const std::vector<ValueId>& needed,
                            absl::string_view direction) {
  const size_t count = std::max(stored.size(), needed.size());
  for (size_t i = 0; i < count; ++i) {
    // kNoValue stands for the end of the shorter list.
    const ValueId found = i < stored.size() ? stored[i] : kNoValue;
    const ValueId wanted = i < needed.size() ? needed[i] : kNoValue;
    if (found == wanted) continue;
    const auto name = [&](ValueId id) -> std::string {
      if (id == kNoValue) return "nothing";
      if (id < 0 || id >= static_cast<ValueId>(graph.values.size())) {
        return absl::StrCat("value ", id, ", which the graph lacks,");
      }
      return absl::StrCat("value ", graph.value(id).name);
    };
    return absl::InvalidArgumentError(
        absl::StrCat(name(found), " crosses ", direction, " at position ", i,
                     ", but the stages of the nodes need ", name(wanted),
                     "; refract partition makes a plan that fits"));
  }
  for (const ValueId id : needed) {
    if (!MayCross(graph.value(id))) {
      return absl::InvalidArgumentError(
          absl::StrCat("value ", graph.value(id).name, " crosses ", direction,
                       ", but messages cannot carry its element type"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckForms(const Graph& graph, const std::vector<ValueId>& ids,
                        const std::vector<WireForm>& forms,
                        absl::string_view direction, bool unique_rows_allowed) {
  if (!forms.empty() && forms.size() != ids.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(forms.size(), " wire forms for ", ids.size(),
                     " values that cross ", direction));
  }
  // A value with unique rows takes two tensors of a message: the rows and their
  // index.
  size_t tensors = ids.size();
  for (size_t i = 0; i < forms.size(); ++i) {
    const Value& value = graph.value(ids[i]);
    REFRACT_RETURN_IF_ERROR(CheckWireForm(value, forms[i]));
    if (!forms[i].unique_rows) continue;
    ++tensors;
    if (!unique_rows_allowed) {
      return absl::InvalidArgumentError(absl::StrCat(
          "value ", value.name, " crosses ", direction,
          " with unique rows, which are possible only from CN to HN"));
    }
    if (tensors > kMaxMessageTensors) {
      return absl::InvalidArgumentError(absl::StrCat(
          "value ", value.name, " crosses ", direction, " with unique rows: a ",
          "message has room for ", kMaxMessageTensors, " tensors"));
    }
  }
  return absl::OkStatus();
}

void AddForms(const std::vector<WireForm>& forms, base::DigestBuilder& digest) {
  digest.AddInt(forms.size());
  for (const WireForm form : forms) {
    digest.AddInt(static_cast<uint64_t>(form.type));
    digest.AddInt(form.unique_rows ? 1 : 0);
  }
}

// A hand-edited plan must not allow merging where rows depend on each other.
absl::Status CheckRowClaims(const RowDependence& claimed,
                            const RowDependence& found,
                            absl::string_view what) {
  if ((!claimed.may_split || found.may_split) &&
      (!claimed.may_coalesce || found.may_coalesce)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the plan says that rows of ", what,
                   claimed.may_coalesce && !found.may_coalesce
                       ? " may be merged with those of other requests"
                       : " may be executed in several pieces",
                   ": ", found.why));
}

// Names, types and symbolic shapes: two graphs that agree in them read the same
// messages in the same way. Counts are added before lists, so that an element
// cannot move from one list to the next without a change of the digest.
void AddSchema(const Graph& graph, const std::vector<ValueId>& ids,
               base::DigestBuilder& digest) {
  digest.AddInt(ids.size());
  for (const ValueId id : ids) {
    const Value& value = graph.value(id);
    digest.AddString(value.name);
    digest.AddInt(static_cast<uint64_t>(value.kind));
    digest.AddInt(static_cast<uint64_t>(value.dtype));
    digest.AddInt(value.has_shape ? 1 : 0);
    digest.AddInt(value.shape.size());
    for (const SymExpr& extent : value.shape) {
      digest.AddString(extent.ToString());
    }
  }
}

void Store(WireForm form, proto::SplitPlan::WireForm& stored) {
  stored.set_type(static_cast<uint32_t>(form.type));
  stored.set_unique_rows(form.unique_rows);
}

void Store(const WireMeasurement& measured,
           proto::SplitPlan::Measurement& stored) {
  stored.set_sample(measured.sample);
  stored.set_requests(measured.requests);
  if (measured.bound) stored.set_bound(*measured.bound);
  for (const WireError& error : measured.errors) {
    proto::SplitPlan::OutputError* entry = stored.add_errors();
    entry->set_output(error.output);
    entry->set_max_abs(error.max_abs);
    entry->set_largest_value(error.largest_value);
  }
}

WireMeasurement MeasurementFrom(const proto::SplitPlan::Measurement& stored) {
  WireMeasurement measured;
  measured.sample = stored.sample();
  measured.requests = stored.requests();
  if (stored.has_bound()) measured.bound = stored.bound();
  for (const proto::SplitPlan::OutputError& entry : stored.errors()) {
    measured.errors.push_back(
        {entry.output(), entry.max_abs(), entry.largest_value()});
  }
  return measured;
}

absl::Status Malformed(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

}  // namespace

bool SplitPlan::uses_hn() const {
  return std::find(stages.begin(), stages.end(), Stage::kHn) != stages.end();
}

bool SplitPlan::has_wire_forms() const {
  const auto other = [](WireForm form) { return !form.is_plain(); };
  return std::any_of(up_forms.begin(), up_forms.end(), other) ||
         std::any_of(down_forms.begin(), down_forms.end(), other);
}

bool MayCross(const Value& value) {
  switch (value.kind) {
    case ValueKind::kTensor:
      return value.dtype != base::DType::kUnknown;
    case ValueKind::kSymInt:
      return true;
    case ValueKind::kSymFloat:
    case ValueKind::kSymBool:
      return false;
  }
  return false;
}

void ComputeCrossings(const Graph& graph, SplitPlan& plan) {
  Crossings crossings = FindCrossings(graph, plan);
  plan.up = std::move(crossings.up);
  plan.down = std::move(crossings.down);
  plan.up_forms.clear();
  plan.down_forms.clear();
  plan.measured.reset();
}

absl::Status ValidatePlan(const Graph& graph, const base::Digest& model,
                          const SplitPlan& plan) {
  if (!(plan.model == model)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan was made for model ", plan.model.ToHex(),
                     ", this model is ", model.ToHex()));
  }
  if (plan.stages.size() != graph.nodes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", plan.stages.size(),
                     " stages for a graph of ", graph.nodes.size(), " nodes"));
  }
  // Checks go from coarse to fine, because later checks index with values that
  // earlier checks have found valid: stages, then edges, crossings, forms.
  REFRACT_RETURN_IF_ERROR(CheckPlacement(graph, plan));
  REFRACT_RETURN_IF_ERROR(CheckEdges(graph, plan));
  const Crossings needed = FindCrossings(graph, plan);
  REFRACT_RETURN_IF_ERROR(
      CheckCrossings(graph, plan.up, needed.up, "CN to HN"));
  REFRACT_RETURN_IF_ERROR(
      CheckCrossings(graph, plan.down, needed.down, "HN to CN"));
  REFRACT_RETURN_IF_ERROR(CheckForms(graph, plan.up, plan.up_forms, "CN to HN",
                                     /*unique_rows_allowed=*/true));
  REFRACT_RETURN_IF_ERROR(CheckForms(graph, plan.down, plan.down_forms,
                                     "HN to CN",
                                     /*unique_rows_allowed=*/false));
  REFRACT_RETURN_IF_ERROR(CheckShards(graph, plan));
  // A plan may claim less than the graph shows; only a claim that permits
  // merging or cutting is derived again, as the derivation walks the whole
  // graph.
  const auto allows = [](const RowDependence& rows) {
    return rows.may_split || rows.may_coalesce;
  };
  if (allows(plan.rows)) {
    REFRACT_RETURN_IF_ERROR(
        CheckRowClaims(plan.rows, FindRowDependence(graph), "the model"));
  }
  if (allows(plan.hn_rows)) {
    REFRACT_RETURN_IF_ERROR(CheckRowClaims(
        plan.hn_rows, FindHnRowDependence(graph, plan), "the HN part"));
  }
  return absl::OkStatus();
}

base::Digest SchemaDigest(const Graph& graph, const SplitPlan& plan) {
  base::DigestBuilder digest;
  AddSchema(graph, plan.up, digest);
  AddSchema(graph, plan.down, digest);
  // Plans without forms keep the digest of the time before forms existed.
  if (plan.has_wire_forms()) {
    AddForms(plan.up_forms, digest);
    AddForms(plan.down_forms, digest);
  }
  return digest.Finish();
}

absl::Status SavePlan(const Graph& graph, const SplitPlan& plan,
                      absl::string_view path) {
  if (plan.stages.size() != graph.nodes.size()) {
    return Malformed(path, "the plan to save is for another graph");
  }
  proto::SplitPlan stored;
  stored.set_format_version(plan.has_wire_forms() ? kPlanFormatVersion : 1);
  stored.mutable_model()->set_low(plan.model.low);
  stored.mutable_model()->set_high(plan.model.high);
  stored.set_method(plan.method);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    proto::SplitPlan::NodeStage* stage = stored.add_stages();
    stage->set_node(graph.nodes[n].name);
    stage->set_stage(static_cast<uint32_t>(plan.stages[n]));
  }
  for (const ValueId id : plan.up) stored.add_up(graph.value(id).name);
  for (const ValueId id : plan.down) stored.add_down(graph.value(id).name);
  if (plan.has_wire_forms()) {
    for (const WireForm form : plan.up_forms) {
      Store(form, *stored.add_up_forms());
    }
    for (const WireForm form : plan.down_forms) {
      Store(form, *stored.add_down_forms());
    }
  }
  if (plan.measured) Store(*plan.measured, *stored.mutable_measured());
  stored.set_num_shards(static_cast<uint32_t>(plan.num_shards));
  for (const TableShards& shards : plan.shards) {
    proto::SplitPlan::TableShards* entry = stored.add_shards();
    entry->set_table(shards.table);
    for (const int64_t end : shards.ends) entry->add_ends(end);
    entry->set_by_ids(shards.by_ids);
  }
  *stored.mutable_rows() = ToProto(plan.rows);
  *stored.mutable_hn_rows() = ToProto(plan.hn_rows);

  // A node that loads meanwhile reads the old plan or the new plan, never half
  // of one.
  return base::ReplaceText(path, stored.SerializeAsString());
}

absl::StatusOr<SplitPlan> LoadPlan(const Graph& graph, absl::string_view path) {
  REFRACT_ASSIGN_OR_RETURN(const std::string bytes, base::ReadText(path));
  proto::SplitPlan stored;
  if (!stored.ParseFromString(bytes)) {
    return Malformed(path, "is no split plan, or is truncated");
  }
  if (stored.format_version() < 1 ||
      stored.format_version() > kPlanFormatVersion) {
    return Malformed(
        path, absl::StrCat("has format version ", stored.format_version(),
                           "; this program reads versions 1 to ",
                           kPlanFormatVersion));
  }
  SplitPlan plan;
  plan.model = {stored.model().low(), stored.model().high()};
  plan.method = stored.method();

  absl::flat_hash_map<absl::string_view, size_t> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    nodes.emplace(graph.nodes[n].name, n);
  }
  if (static_cast<size_t>(stored.stages_size()) != graph.nodes.size()) {
    return Malformed(
        path, absl::StrCat("has ", stored.stages_size(),
                           " nodes, the graph has ", graph.nodes.size()));
  }
  plan.stages.resize(graph.nodes.size());
  std::vector<bool> seen(graph.nodes.size(), false);
  for (const proto::SplitPlan::NodeStage& entry : stored.stages()) {
    const auto it = nodes.find(entry.node());
    if (it == nodes.end()) {
      return Malformed(path, absl::StrCat("names node ", entry.node(),
                                          ", which the graph lacks"));
    }
    // With as many entries as nodes and no node twice, each node has a stage.
    if (seen[it->second]) {
      return Malformed(path,
                       absl::StrCat("names node ", entry.node(), " twice"));
    }
    if (entry.stage() > static_cast<uint32_t>(Stage::kCnPost)) {
      return Malformed(path, absl::StrCat("node ", entry.node(), " has stage ",
                                          entry.stage(), ", not 0, 1 or 2"));
    }
    seen[it->second] = true;
    plan.stages[it->second] = static_cast<Stage>(entry.stage());
  }

  absl::flat_hash_map<absl::string_view, ValueId> values;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    values.emplace(graph.values[id].name, static_cast<ValueId>(id));
  }
  const auto read_crossings =
      [&](const google::protobuf::RepeatedPtrField<std::string>& names,
          std::vector<ValueId>& ids) -> absl::Status {
    for (const std::string& name : names) {
      const auto it = values.find(name);
      if (it == values.end()) {
        return Malformed(path, absl::StrCat("names value ", name,
                                            ", which the graph lacks"));
      }
      ids.push_back(it->second);
    }
    return absl::OkStatus();
  };
  REFRACT_RETURN_IF_ERROR(read_crossings(stored.up(), plan.up));
  REFRACT_RETURN_IF_ERROR(read_crossings(stored.down(), plan.down));
  const auto read_forms =
      [&](const google::protobuf::RepeatedPtrField<proto::SplitPlan::WireForm>&
              entries,
          std::vector<WireForm>& forms) -> absl::Status {
    for (const proto::SplitPlan::WireForm& entry : entries) {
      if (entry.type() >= kNumWireTypes) {
        return Malformed(path, absl::StrCat("has wire type ", entry.type(),
                                            ", which this program lacks"));
      }
      forms.push_back(
          {static_cast<WireType>(entry.type()), entry.unique_rows()});
    }
    return absl::OkStatus();
  };
  REFRACT_RETURN_IF_ERROR(read_forms(stored.up_forms(), plan.up_forms));
  REFRACT_RETURN_IF_ERROR(read_forms(stored.down_forms(), plan.down_forms));
  if (stored.has_measured()) {
    plan.measured = MeasurementFrom(stored.measured());
  }
  plan.num_shards = stored.num_shards();
  for (const proto::SplitPlan::TableShards& entry : stored.shards()) {
    plan.shards.push_back({.table = entry.table(),
                           .ends = {entry.ends().begin(), entry.ends().end()},
                           .by_ids = entry.by_ids()});
  }
  // Required fields: a file without them is truncated, or of an older program.
  if (!stored.has_rows() || !stored.has_hn_rows()) {
    return Malformed(path,
                     "does not say whether rows depend on each other; write "
                     "it again with refract partition");
  }
  REFRACT_ASSIGN_OR_RETURN(plan.rows, FromProto(stored.rows()));
  REFRACT_ASSIGN_OR_RETURN(plan.hn_rows, FromProto(stored.hn_rows()));
  return plan;
}

bool HasPlan(absl::string_view folder) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(folder, "/", kSplitPlanFile),
                                 error);
}

absl::Status CheckMessageRoom(const SplitPlan& plan) {
  const size_t most = std::max(plan.up.size(), plan.down.size());
  if (most <= kMaxMessageTensors) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the plan sends ", most, " tensors from ",
                   plan.up.size() == most ? "CN to HN" : "HN to CN",
                   " in a message, which has room for ", kMaxMessageTensors,
                   "; refract partition looks for plans that fit"));
}

absl::Status ActivatePlan(const Graph& graph, const base::Digest& model,
                          const SplitPlan& plan, const std::string& folder) {
  REFRACT_RETURN_IF_ERROR(ValidatePlan(graph, model, plan));
  REFRACT_RETURN_IF_ERROR(CheckMessageRoom(plan));
  const std::string path = absl::StrCat(folder, "/", kSplitPlanFile);
  if (HasPlan(folder)) {
    // Kept as it is, valid or not.
    REFRACT_ASSIGN_OR_RETURN(const std::string former, base::ReadText(path));
    REFRACT_RETURN_IF_ERROR(
        base::ReplaceText(absl::StrCat(folder, "/", kFormerPlanFile), former));
  }
  return SavePlan(graph, plan, path);
}

}  // namespace refract::models
