#include "models/graph/graph_proto.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/graph.pb.h"

namespace refract::models {
namespace {

// Stored text of an unknown size (graph.proto, Value.shape).
constexpr absl::string_view kUnknownSize = "?";

void SetArgument(const Argument& from, proto::Argument& to) {
  struct Setter {
    proto::Argument& to;
    void operator()(None) const { to.set_none(true); }
    void operator()(ValueRef ref) const { to.set_value_ref(ref.id); }
    void operator()(int64_t i) const { to.set_int_value(i); }
    void operator()(double f) const { to.set_float_value(f); }
    void operator()(bool b) const { to.set_bool_value(b); }
    void operator()(const std::string& s) const { to.set_string_value(s); }
    void operator()(base::DType dtype) const {
      to.set_dtype(static_cast<uint32_t>(dtype));
    }
    void operator()(const ValueList& ids) const {
      auto& list = *to.mutable_values();
      for (ValueId id : ids) list.add_ids(id);
    }
    void operator()(const IntList& ints) const {
      auto& list = *to.mutable_ints();
      for (const IntOrValue& item : ints) {
        // An item is a literal, or a value's id plus one: 0 is the default of
        // an absent field and means "no value", as kNoValue is -1.
        proto::IntOrValue& added = *list.add_items();
        if (item.value == kNoValue) {
          added.set_literal(item.literal);
        } else {
          added.set_value(item.value + 1);
        }
      }
    }
    void operator()(const FloatList& floats) const {
      auto& list = *to.mutable_floats();
      for (double f : floats) list.add_items(f);
    }
    void operator()(const BoolList& bools) const {
      auto& list = *to.mutable_bools();
      for (bool b : bools) list.add_items(b);
    }
    void operator()(const StringList& strings) const {
      auto& list = *to.mutable_strings();
      for (const std::string& s : strings) list.add_items(s);
    }
  };
  std::visit(Setter{to}, from);
}

template <typename... Parts>
absl::Status InvalidProto(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("graph: ", parts...));
}

absl::StatusOr<Argument> ArgumentFromProto(const proto::Argument& from) {
  switch (from.value_case()) {
    case proto::Argument::kNone:
      return Argument(None{});
    case proto::Argument::kValueRef:
      return Argument(ValueRef{from.value_ref()});
    case proto::Argument::kIntValue:
      return Argument(int64_t{from.int_value()});
    case proto::Argument::kFloatValue:
      return Argument(from.float_value());
    case proto::Argument::kBoolValue:
      return Argument(from.bool_value());
    case proto::Argument::kStringValue:
      return Argument(from.string_value());
    case proto::Argument::kDtype:
      if (from.dtype() >= base::kNumDTypes) {
        return InvalidProto("dtype ", from.dtype(), " is not known");
      }
      return Argument(static_cast<base::DType>(from.dtype()));
    case proto::Argument::kValues: {
      ValueList list(from.values().ids().begin(), from.values().ids().end());
      for (ValueId id : list) {
        if (id < kNoValue)
          return InvalidProto("value ", id, " is out of range");
      }
      return Argument(std::move(list));
    }
    case proto::Argument::kInts: {
      IntList list;
      for (const proto::IntOrValue& item : from.ints().items()) {
        if (item.value() < 0) {
          return InvalidProto("value ", item.value(), " is out of range");
        }
        list.push_back({item.literal(), item.value() - 1});
      }
      return Argument(std::move(list));
    }
    case proto::Argument::kFloats:
      return Argument(FloatList(from.floats().items().begin(),
                                from.floats().items().end()));
    case proto::Argument::kBools:
      return Argument(
          BoolList(from.bools().items().begin(), from.bools().items().end()));
    case proto::Argument::kStrings:
      return Argument(StringList(from.strings().items().begin(),
                                 from.strings().items().end()));
    case proto::Argument::VALUE_NOT_SET:
      break;
  }
  return InvalidProto("argument ", from.name(), " has no value");
}

absl::StatusOr<base::DType> DTypeFromProto(uint32_t code) {
  if (code >= base::kNumDTypes) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", code, " is not known"));
  }
  return static_cast<base::DType>(code);
}

absl::StatusOr<Value> ValueFromProto(const proto::Value& from) {
  Value value;
  value.name = from.name();
  if (from.kind() > static_cast<uint32_t>(ValueKind::kSymBool)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind ", from.kind(), " is not known"));
  }
  value.kind = static_cast<ValueKind>(from.kind());
  REFRACT_ASSIGN_OR_RETURN(value.dtype, DTypeFromProto(from.dtype()));
  value.has_shape = from.has_shape();
  for (const std::string& size : from.shape()) {
    if (size == kUnknownSize) {
      value.shape.push_back(SymExpr());
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(SymExpr parsed, SymExpr::Parse(size));
    value.shape.push_back(std::move(parsed));
  }
  if (!from.sym_value().empty()) {
    REFRACT_ASSIGN_OR_RETURN(value.sym_value, SymExpr::Parse(from.sym_value()));
  }
  value.weight = from.weight();
  value.row_bytes = from.row_bytes();
  if (value.row_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", value.row_bytes, " bytes"));
  }
  return value;
}

absl::Status NodesFromProto(const proto::Graph& from, Graph& graph) {
  for (const proto::Node& stored : from.nodes()) {
    Node node;
    node.name = stored.name();
    node.op = stored.op();
    for (const proto::Argument& argument : stored.args()) {
      auto parsed = ArgumentFromProto(argument);
      if (!parsed.ok()) {
        return base::Annotate(parsed.status(),
                              absl::StrCat("node ", node.name));
      }
      node.args.push_back({argument.name(), *std::move(parsed)});
    }
    const NodeId id = static_cast<NodeId>(graph.nodes.size());
    for (ValueId output : stored.outputs()) {
      node.outputs.push_back(output);
      if (output == kNoValue) continue;
      if (output < 0 || static_cast<size_t>(output) >= graph.values.size()) {
        return InvalidProto("node ", node.name, ": output ", output,
                            " is out of range");
      }
      if (graph.values[output].producer != kNoNode) {
        return InvalidProto("value ", graph.values[output].name,
                            " is computed twice");
      }
      // Producers are not stored: they follow from the nodes' outputs.
      graph.values[output].producer = id;
    }
    node.output_is_list = stored.output_is_list();
    graph.nodes.push_back(std::move(node));
  }
  return absl::OkStatus();
}

absl::StatusOr<RowLayout> RowsOf(const proto::WeightEntry& from) {
  REFRACT_ASSIGN_OR_RETURN(const RowFormat format,
                           RowFormatNamed(from.row_format()));
  if (from.sizes_size() != 2 || from.row_bytes() <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", from.row_bytes(), " bytes in ",
                     from.sizes_size(), " dimensions"));
  }
  return LayoutOf(format, from.sizes(1), from.row_bytes());
}

}  // namespace

proto::Graph ToProto(const Graph& graph) {
  proto::Graph stored;
  for (const Value& value : graph.values) {
    proto::Value& to = *stored.add_values();
    to.set_name(value.name);
    to.set_kind(static_cast<uint32_t>(value.kind));
    to.set_dtype(static_cast<uint32_t>(value.dtype));
    to.set_has_shape(value.has_shape);
    for (const SymExpr& size : value.shape) to.add_shape(size.ToString());
    if (!value.sym_value.is_unknown()) {
      to.set_sym_value(value.sym_value.ToString());
    }
    to.set_weight(value.weight);
    to.set_row_bytes(value.row_bytes);
  }
  for (const Node& node : graph.nodes) {
    proto::Node& to = *stored.add_nodes();
    to.set_name(node.name);
    to.set_op(node.op);
    for (const NamedArgument& arg : node.args) {
      proto::Argument& argument = *to.add_args();
      argument.set_name(arg.name);
      SetArgument(arg.value, argument);
    }
    for (ValueId output : node.outputs) to.add_outputs(output);
    to.set_output_is_list(node.output_is_list);
  }
  for (ValueId id : graph.inputs) stored.add_inputs(id);
  for (ValueId id : graph.outputs) stored.add_outputs(id);
  for (const std::string& name : graph.output_names) {
    stored.add_output_names(name);
  }
  for (const SymbolRange& range : graph.symbols) {
    proto::SymbolRange& to = *stored.add_symbols();
    to.set_symbol(range.symbol);
    to.set_min(range.min);
    to.set_max(range.max);
  }
  stored.set_batch_symbol(graph.batch_symbol);
  stored.set_min_batch(graph.min_batch);
  stored.set_source(static_cast<uint32_t>(graph.source));
  for (const OpLibrary& library : graph.op_libraries) {
    proto::OpLibrary& to = *stored.add_op_libraries();
    to.set_name(library.name);
    to.mutable_digest()->set_low(library.digest.low);
    to.mutable_digest()->set_high(library.digest.high);
  }
  // Omitted if never determined, as in files of older versions.
  if (!(graph.rows == RowDependence())) {
    *stored.mutable_rows() = ToProto(graph.rows);
  }
  return stored;
}

proto::RowDependence ToProto(const RowDependence& rows) {
  proto::RowDependence stored;
  stored.set_use(static_cast<uint32_t>(rows.use));
  stored.set_may_split(rows.may_split);
  stored.set_may_coalesce(rows.may_coalesce);
  stored.set_node(rows.node);
  stored.set_why(rows.why);
  return stored;
}

absl::StatusOr<RowDependence> FromProto(const proto::RowDependence& stored) {
  if (stored.use() > static_cast<uint32_t>(RowUse::kTogether)) {
    return absl::InvalidArgumentError(
        absl::StrCat("row use ", stored.use(), " is not known"));
  }
  RowDependence rows;
  rows.use = static_cast<RowUse>(stored.use());
  rows.may_split = stored.may_split();
  rows.may_coalesce = stored.may_coalesce();
  rows.node = stored.node();
  rows.why = stored.why();
  // Nodes act on the permissions, so a file must not permit what its use
  // excludes.
  if ((rows.may_split || rows.may_coalesce) && rows.use != RowUse::kAlone) {
    return absl::InvalidArgumentError(
        "rows that depend on other rows must not be split or merged");
  }
  return rows;
}

absl::StatusOr<Graph> FromProto(const proto::Graph& stored) {
  Graph graph;
  for (const proto::Value& value : stored.values()) {
    auto parsed = ValueFromProto(value);
    if (!parsed.ok()) {
      return base::Annotate(parsed.status(),
                            absl::StrCat("graph: value ", value.name()));
    }
    graph.AddValue(*std::move(parsed));
  }
  REFRACT_RETURN_IF_ERROR(NodesFromProto(stored, graph));
  graph.inputs.assign(stored.inputs().begin(), stored.inputs().end());
  graph.outputs.assign(stored.outputs().begin(), stored.outputs().end());
  graph.output_names.assign(stored.output_names().begin(),
                            stored.output_names().end());
  for (const proto::SymbolRange& range : stored.symbols()) {
    graph.symbols.push_back({range.symbol(), range.min(), range.max()});
  }
  graph.batch_symbol = stored.batch_symbol();
  graph.min_batch = stored.min_batch();
  if (stored.source() > static_cast<uint32_t>(SourceFormat::kTorchScript)) {
    return InvalidProto("source ", stored.source(), " is not known");
  }
  graph.source = static_cast<SourceFormat>(stored.source());
  for (const proto::OpLibrary& library : stored.op_libraries()) {
    graph.op_libraries.push_back(
        {library.name(), {library.digest().low(), library.digest().high()}});
  }
  REFRACT_ASSIGN_OR_RETURN(graph.rows, FromProto(stored.rows()));
  // Ids were only range-checked where they index an array above;
  // ValidateGraph() checks every reference before a pass follows it.
  REFRACT_RETURN_IF_ERROR(ValidateGraph(graph));
  return graph;
}

proto::WeightTable ToProto(const WeightTable& weights) {
  proto::WeightTable stored;
  for (const WeightEntry& entry : weights.entries) {
    proto::WeightEntry& to = *stored.add_entries();
    to.set_name(entry.name);
    to.set_file(entry.file);
    to.set_offset(entry.offset);
    to.set_bytes(entry.bytes);
    to.set_dtype(static_cast<uint32_t>(entry.dtype));
    for (int64_t size : entry.sizes) to.add_sizes(size);
    for (int64_t stride : entry.strides) to.add_strides(stride);
    to.set_storage_offset(entry.storage_offset);
    if (entry.rows) {
      to.set_row_format(std::string(NameOf(entry.rows->format)));
      to.set_row_bytes(entry.rows->stride);
    }
  }
  for (const WeightFile& file : weights.files) {
    proto::WeightFile& to = *stored.add_files();
    to.set_file(file.file);
    to.set_bytes(file.bytes);
    to.mutable_digest()->set_low(file.digest.low);
    to.mutable_digest()->set_high(file.digest.high);
  }
  return stored;
}

absl::StatusOr<WeightTable> FromProto(const proto::WeightTable& stored) {
  WeightTable weights;
  for (const proto::WeightEntry& from : stored.entries()) {
    WeightEntry entry;
    entry.name = from.name();
    entry.file = from.file();
    entry.offset = from.offset();
    entry.bytes = from.bytes();
    auto dtype = DTypeFromProto(from.dtype());
    if (!dtype.ok()) {
      return base::Annotate(dtype.status(),
                            absl::StrCat("weight ", from.name()));
    }
    entry.dtype = *dtype;
    entry.sizes.assign(from.sizes().begin(), from.sizes().end());
    entry.strides.assign(from.strides().begin(), from.strides().end());
    entry.storage_offset = from.storage_offset();
    if (!from.row_format().empty()) {
      auto rows = RowsOf(from);
      if (!rows.ok()) {
        return base::Annotate(rows.status(),
                              absl::StrCat("weight ", from.name()));
      }
      entry.rows = *rows;
    }
    if (entry.name.empty() || entry.file.empty() ||
        entry.sizes.size() != entry.strides.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight \"", entry.name,
                       "\" has no name, no file or not a stride per size"));
    }
    weights.entries.push_back(std::move(entry));
  }
  for (const proto::WeightFile& from : stored.files()) {
    if (from.file().empty()) {
      return absl::InvalidArgumentError("a weight file has no name");
    }
    weights.files.push_back({from.file(),
                             from.bytes(),
                             {from.digest().low(), from.digest().high()}});
  }
  return weights;
}

}  // namespace refract::models
