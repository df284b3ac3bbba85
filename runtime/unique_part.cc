#include "runtime/unique_part.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/constants.h"
#include "models/graph/op_traits.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/wire/elements.h"

namespace refract::runtime {
namespace {

using models::NodeId;
using models::ValueId;

bool IsLookUp(const models::Graph& graph, NodeId node) {
  return models::ClassOf(graph, graph.nodes[node]) ==
         models::OpClass::kEmbedding;
}

// The nodes of `nodes` that `outputs` need, in order.
std::vector<NodeId> NeededBy(const models::Graph& graph,
                             const std::vector<NodeId>& nodes,
                             const std::vector<ValueId>& outputs) {
  std::set<ValueId> wanted(outputs.begin(), outputs.end());
  std::vector<NodeId> needed;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    const std::vector<ValueId>& results = graph.nodes[*node].outputs;
    if (std::none_of(results.begin(), results.end(),
                     [&](ValueId id) { return wanted.contains(id); })) {
      continue;
    }
    needed.push_back(*node);
    for (const ValueId id : models::InputsOf(graph.nodes[*node])) {
      wanted.insert(id);
    }
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

// Dtype and dims of one row of `value`, dimension 0 being 1; nullopt if the
// size of a row differs between requests.
std::optional<base::TensorSpec> RowOf(const models::Value& value) {
  if (value.kind != models::ValueKind::kTensor || !value.has_shape ||
      value.shape.empty()) {
    return std::nullopt;
  }
  base::TensorSpec row{value.dtype, {1}};
  for (size_t d = 1; d < value.shape.size(); ++d) {
    const std::optional<int64_t> dim = value.shape[d].constant();
    if (!dim.has_value()) return std::nullopt;
    row.dims.push_back(*dim);
  }
  return row;
}

void SetOffset(base::DType dtype, size_t i, int64_t offset, std::byte* to) {
  if (dtype == base::DType::kInt32) {
    const auto narrow = static_cast<int32_t>(offset);
    std::memcpy(to + i * sizeof(narrow), &narrow, sizeof(narrow));
  } else {
    std::memcpy(to + i * sizeof(offset), &offset, sizeof(offset));
  }
}

}  // namespace

UniquePart::Request::Request(const UniquePart& part)
    : context_(*part.before_),
      only_ids_context_(*part.only_ids_),
      rows_(part.values_.size()),
      indexes_(part.num_crossing_, nullptr) {}

bool UniquePart::Request::has_index() const {
  return std::any_of(indexes_.begin(), indexes_.end(),
                     [](const wire::UniqueRows* rows) { return rows; });
}

absl::StatusOr<std::unique_ptr<const UniquePart>> UniquePart::Create(
    const models::Graph& graph, const models::SplitPlan& plan,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options) {
  std::unique_ptr<UniquePart> result(new UniquePart());
  const Part pre = Part::CnPre(graph, plan);
  result->graph_ = graph;
  result->part_ = pre;
  result->num_crossing_ = plan.up.size();
  result->num_inputs_ = pre.inputs.size();
  Part before;
  before.inputs = graph.inputs;
  for (size_t i = 0; i < plan.up.size(); ++i) {
    const models::WireForm form = plan.up_form(i);
    if (models::RecordOf(form.type).may_not_fit) return nullptr;
    if (form.unique_rows && !result->Add(graph, plan, i, before)) {
      return nullptr;
    }
  }
  if (result->values_.empty()) return nullptr;
  before.nodes = NeededBy(graph, pre.nodes, before.outputs);
  for (const NodeId node : before.nodes) {
    if (IsLookUp(graph, node)) return nullptr;
  }
  result->part_.nodes =
      NeededBy(result->graph_, pre.nodes, result->part_.outputs);
  REFRACT_ASSIGN_OR_RETURN(result->before_,
                           Program::Compile(graph, before, weights, options));
  Part only_ids;
  const auto added = absl::MakeConstSpan(result->part_.inputs)
                         .subspan(result->num_inputs_);
  only_ids.inputs.assign(added.begin(), added.end());
  for (const Value& value : result->values_) {
    const NodeId producer = graph.value(plan.up[value.number]).producer;
    if (producer != models::kNoNode && IsLookUp(graph, producer)) {
      only_ids.nodes.push_back(producer);
    }
  }
  std::sort(only_ids.nodes.begin(), only_ids.nodes.end());
  REFRACT_ASSIGN_OR_RETURN(
      result->only_ids_, Program::Compile(result->graph_, only_ids,
                                          std::move(weights), options));
  result->requests_ = std::make_unique<base::Pool<Request>>(
      [part = result.get()] { return std::make_unique<Request>(*part); });
  return result;
}

// Adds inputs to graph_ for value `number` of the plan: the distinct ids if a
// look-up produces it, else its distinct rows. False: CN-pre computes all rows.
bool UniquePart::Add(const models::Graph& graph, const models::SplitPlan& plan,
                     size_t number, Part& before) {
  const ValueId id = plan.up[number];
  const models::Value& crossing = graph.value(id);
  const std::optional<base::TensorSpec> row = RowOf(crossing);
  if (!row.has_value()) return false;
  Value value;
  value.number = number;
  value.row_bytes = base::ByteSize(row->dtype, row->dims).value_or(0);
  value.wire_row_bytes = wire::WireRowBytes(*row, plan.up_form(number).type);
  if (value.row_bytes == 0) return false;
  // A symbol per value: each has its own number of distinct rows.
  const models::SymExpr rows =
      models::SymExpr::Symbol(absl::StrCat("unique_rows_", number));
  // Makes an input of part_ from the value `from`, which before_ returns.
  const auto give = [&](ValueId from, models::SymExpr first_dim) {
    const auto found =
        std::find(before.outputs.begin(), before.outputs.end(), from);
    const size_t place = found - before.outputs.begin();
    if (found == before.outputs.end()) before.outputs.push_back(from);
    models::Value input = graph.value(from);
    // Errors name the input of the request.
    input.name = cpu::SourceName(graph, from);
    input.producer = models::kNoNode;
    input.shape[0] = std::move(first_dim);
    part_.inputs.push_back(graph_.AddValue(std::move(input)));
    return std::make_pair(place, part_.inputs.back());
  };
  const auto is_dense = [&](ValueId from) {
    return from != models::kNoValue && RowOf(graph.value(from)).has_value() &&
           !graph.value(from).is_weight();
  };

  const NodeId producer = crossing.producer;
  if (producer == models::kNoNode || !IsLookUp(graph, producer)) {
    if (!is_dense(id)) return false;
    const auto [place, input] = give(id, rows);
    value.given = place;
    part_.outputs[number] = input;
    values_.push_back(value);
    return true;
  }
  // A reader of the rows on this node would need all of them.
  if (std::count(part_.outputs.begin(), part_.outputs.end(), id) > 1) {
    return false;
  }
  for (const NodeId reader : part_.nodes) {
    const std::vector<ValueId> read = models::InputsOf(graph.nodes[reader]);
    if (std::find(read.begin(), read.end(), id) != read.end()) return false;
  }
  models::Node& node = graph_.nodes[producer];
  const models::EmbeddingArgs args = models::EmbeddingArgsOf(node.op);
  if (args.weight.empty()) return false;
  value.in_bags = !args.offsets.empty();
  const ValueId table = node.ValueArg(args.weight);
  const ValueId ids = node.ValueArg(args.indices);
  if (table == models::kNoValue || !graph.value(table).is_weight() ||
      !is_dense(ids) || node.outputs[0] != id) {
    return false;
  }
  if (value.in_bags) {
    const ValueId offsets = node.ValueArg(args.offsets);
    const models::Argument* const last = node.FindArg("include_last_offset");
    const models::Argument* const weights = node.FindArg("per_sample_weights");
    if (!is_dense(offsets) || graph.value(ids).shape.size() != 1 ||
        graph.value(offsets).shape.size() != 1 || ids == offsets ||
        (weights != nullptr &&
         !std::holds_alternative<models::None>(*weights)) ||
        (last != nullptr && !std::holds_alternative<bool>(*last))) {
      return false;
    }
    value.last_offset = last != nullptr && std::get<bool>(*last);
    const auto [ids_place, ids_input] =
        give(ids, models::SymExpr::Symbol(absl::StrCat("unique_ids_", number)));
    const auto [offsets_place, offsets_input] =
        give(offsets, value.last_offset ? rows + 1 : rows);
    value.given = ids_place;
    value.offsets = offsets_place;
    models::ReplaceInput(node, ids, ids_input);
    models::ReplaceInput(node, offsets, offsets_input);
  } else {
    const auto [place, input] = give(ids, rows);
    value.given = place;
    models::ReplaceInput(node, ids, input);
  }
  graph_.values[id].shape[0] = rows;
  values_.push_back(value);
  return true;
}

// Finds the equal rows of `value`. False: all rows must be sent.
bool UniquePart::FindRows(const Value& value, Request& request,
                          wire::UniqueRows& rows) const {
  const base::TensorView& given = request.given_[value.given];
  int64_t count = given.dims[0];
  if (value.in_bags) {
    const base::TensorView& offsets = request.given_[value.offsets];
    count = offsets.dims[0] - (value.last_offset ? 1 : 0);
    // The look-up reports wrong offsets and ids behind the last bag.
    const int64_t ids = given.num_elements();
    if (count < 1 || !cpu::CheckOffsets("", offsets, ids).ok() ||
        (value.last_offset && cpu::IntAt(offsets, count) != ids)) {
      return false;
    }
  }
  if (count < 2 || count > INT32_MAX || given.bytes == 0) return false;
  const size_t each = given.bytes / static_cast<size_t>(given.dims[0]);
  const auto* const data = reinterpret_cast<const char*>(given.data);
  request.keys_.clear();
  for (int64_t i = 0; i < count; ++i) {
    if (!value.in_bags) {
      request.keys_.emplace_back(data + i * each, each);
      continue;
    }
    const base::TensorView& offsets = request.given_[value.offsets];
    const int64_t begin = cpu::IntAt(offsets, i);
    const int64_t end = i + 1 < offsets.dims[0] ? cpu::IntAt(offsets, i + 1)
                                                : given.num_elements();
    request.keys_.emplace_back(data + begin * each, (end - begin) * each);
  }
  request.finder_.Find(request.keys_, rows);
  return rows.Shortens(value.wire_row_bytes);
}

absl::Status UniquePart::AddInputs(
    bool distinct, Request& request,
    std::vector<base::TensorView>& inputs) const {
  REFRACT_RETURN_IF_ERROR(
      before_->Run(inputs, {}, request.context_, request.given_));
  request.indexes_.assign(num_crossing_, nullptr);
  size_t room = 0;
  for (const Value& value : values_) {
    room += wire::RoundUp(request.given_[value.given].bytes);
    if (value.in_bags) {
      room += wire::RoundUp(request.given_[value.offsets].bytes);
    }
  }
  if (request.distinct_.size() < room) {
    request.distinct_ = base::AlignedBuffer(std::bit_ceil(room));
  }
  std::byte* to = request.distinct_.data();
  size_t expanded = 0;
  for (size_t v = 0; v < values_.size(); ++v) {
    const Value& value = values_[v];
    base::TensorView ids = request.given_[value.given];
    wire::UniqueRows& rows = request.rows_[v];
    // The receiver refuses messages that expand to more than kMaxExpandedBytes.
    const auto grown = [&] {
      return static_cast<size_t>(rows.num_rows) *
             (value.row_bytes + wire::kExpandedRowExtra);
    };
    if (!distinct || !FindRows(value, request, rows) ||
        expanded + grown() > wire::kMaxExpandedBytes) {
      inputs.push_back(ids);
      if (value.in_bags) inputs.push_back(request.given_[value.offsets]);
      continue;
    }
    expanded += grown();
    request.indexes_[value.number] = &rows;
    std::byte* const begin = to;
    for (const int32_t row : rows.first) {
      const absl::string_view key = request.keys_[row];
      std::memcpy(to, key.data(), key.size());
      to += key.size();
    }
    const size_t bytes = to - begin;
    to = begin + wire::RoundUp(bytes);
    ids.dims[0] = static_cast<int64_t>(
        bytes / (ids.bytes / static_cast<size_t>(ids.dims[0])));
    ids.data = begin;
    ids.bytes = bytes;
    inputs.push_back(ids);
    if (!value.in_bags) continue;
    base::TensorView offsets = request.given_[value.offsets];
    const size_t entry = base::SizeOf(offsets.dtype);
    const size_t count = rows.first.size() + (value.last_offset ? 1 : 0);
    int64_t offset = 0;
    for (size_t i = 0; i < count; ++i) {
      SetOffset(offsets.dtype, i, offset, to);
      if (i == rows.first.size()) break;
      offset += static_cast<int64_t>(request.keys_[rows.first[i]].size() /
                                     base::SizeOf(ids.dtype));
    }
    offsets.data = to;
    offsets.dims[0] = static_cast<int64_t>(count);
    offsets.bytes = count * entry;
    to += wire::RoundUp(offsets.bytes);
    inputs.push_back(offsets);
  }
  return absl::OkStatus();
}

absl::Status UniquePart::CountAllIds(uint64_t tables_at, Request& request,
                                     std::vector<base::TensorView>& inputs,
                                     RunStats& stats) const {
  request.only_ids_context_.set_tables_at(tables_at);
  const auto count = [&](RunStats& counts) {
    std::vector<base::TensorView> none;
    return only_ids_->Run(absl::MakeConstSpan(inputs).subspan(num_inputs_), {},
                          request.only_ids_context_, none, &counts);
  };
  RunStats distinct;
  RunStats all;
  REFRACT_RETURN_IF_ERROR(count(distinct));
  inputs.resize(num_inputs_);
  REFRACT_RETURN_IF_ERROR(AddInputs(/*distinct=*/false, request, inputs));
  REFRACT_RETURN_IF_ERROR(count(all));
  stats.replaced_ids += all.replaced_ids - distinct.replaced_ids;
  return absl::OkStatus();
}

}  // namespace refract::runtime
