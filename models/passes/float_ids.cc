#include "models/passes/float_ids.h"

#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "models/graph/op_traits.h"

namespace refract::models {
namespace {

// Bits of the significand, the hidden bit included; 0: no float type.
int Precision(base::DType dtype) {
  switch (dtype) {
    case base::DType::kFloat64:
      return 53;
    case base::DType::kFloat32:
      return 24;
    case base::DType::kFloat16:
      return 11;
    case base::DType::kBFloat16:
      return 8;
    default:
      return 0;
  }
}

// "clamp" of "aten.clamp.default"; empty for operators that are not ATen's.
absl::string_view AtenName(absl::string_view op) {
  if (!absl::StartsWith(op, "aten.")) return "";
  op.remove_prefix(5);
  return op.substr(0, op.find('.'));
}

struct LookUp {
  ValueId table = kNoValue;
  std::vector<ValueId> ids;
};

std::optional<LookUp> LookUpOf(const Graph& graph, const Node& node) {
  if (ClassOf(graph, node) != OpClass::kEmbedding) return std::nullopt;
  const EmbeddingArgs args = EmbeddingArgsOf(node.op);
  if (!args.weight.empty()) {
    return LookUp{node.ValueArg(args.weight), {node.ValueArg(args.indices)}};
  }
  LookUp gather{node.ValueArg("self"), {}};
  if (const ValueId index = node.ValueArg("index"); index != kNoValue) {
    gather.ids.push_back(index);
  }
  const Argument* list = node.FindArg("indices");
  if (const auto* ids = list ? std::get_if<ValueList>(list) : nullptr) {
    // The first index selects the row.
    if (!ids->empty()) gather.ids.push_back(ids->front());
  }
  return gather;
}

// Whether the operator passes values on, perhaps rounded or bounded.
bool KeepsValues(const Node& node) {
  static const auto& names = *new absl::flat_hash_set<absl::string_view>{
      "to",         "_to_copy", "type_as", "clone",        "contiguous",
      "copy",       "repeat",   "tile",    "index_select", "lift_fresh_copy",
      "expand",     "round",    "floor",   "ceil",         "trunc",
      "fix",        "clamp",    "clip",    "clamp_min",    "clamp_max",
      "abs",        "relu",     "flip",    "roll",         "nan_to_num",
      "masked_fill"};
  return ClassOf(node.op) == OpClass::kView ||
         names.contains(AtenName(node.op));
}

bool JoinsValues(const Node& node) {
  const absl::string_view name = AtenName(node.op);
  return name == "cat" || name == "stack" || name == "concat" ||
         name == "hstack" || name == "column_stack" || name == "where";
}

class Tracer {
 public:
  explicit Tracer(const Graph& graph) : graph_(graph) {}

  // Float inputs that reach `id`.
  void Trace(ValueId id, FloatIds found, std::vector<FloatIds>& all) {
    std::vector<std::pair<ValueId, FloatIds>> pending = {{id, found}};
    absl::flat_hash_set<ValueId> seen;
    while (!pending.empty()) {
      auto [current, here] = pending.back();
      pending.pop_back();
      if (current == kNoValue || !seen.insert(current).second) continue;
      const Value& value = graph_.value(current);
      if (value.is_weight() || value.kind != ValueKind::kTensor) continue;
      const int precision = Precision(value.dtype);
      // The narrowest float type on the way decides which integers survive.
      if (precision > 0 && (here.dtype == base::DType::kUnknown ||
                            precision < Precision(here.dtype))) {
        here.dtype = value.dtype;
      }
      if (value.producer == kNoNode) {
        // An integer input has exact ids, unless a float type came between.
        if (here.dtype == base::DType::kUnknown) continue;
        here.input = value.name;
        // A significand of p bits has all integers up to 2^p; 2^p + 1 is the
        // first that it rounds.
        here.limit = int64_t{1} << Precision(here.dtype);
        all.push_back(here);
        continue;
      }
      const Node& node = graph_.nodes[value.producer];
      if (JoinsValues(node)) {
        for (const ValueId input : InputsOf(node)) {
          // where(): the condition chooses between ids and is none itself.
          if (input != node.ValueArg("condition"))
            pending.push_back({input, here});
        }
        continue;
      }
      if (!KeepsValues(node)) continue;
      const std::vector<ValueId> inputs = InputsOf(node);
      if (inputs.empty()) continue;
      if (here.column < 0) {
        here.column = ColumnOf(graph_, node, current).value_or(-1);
      }
      pending.push_back({inputs.front(), here});
    }
  }

 private:
  const Graph& graph_;
};

}  // namespace

std::vector<FloatIds> FindFloatIds(const Graph& graph) {
  std::vector<FloatIds> all;
  Tracer tracer(graph);
  for (const Node& node : graph.nodes) {
    const std::optional<LookUp> look_up = LookUpOf(graph, node);
    if (!look_up || look_up->table == kNoValue) continue;
    const Value& table = graph.value(look_up->table);
    if (!table.has_shape || table.shape.empty()) continue;
    const std::optional<int64_t> rows = table.shape[0].constant();
    if (!rows) continue;
    FloatIds found;
    found.node = node.name;
    found.table = table.is_weight() ? table.weight : table.name;
    found.rows = *rows;
    for (const ValueId id : look_up->ids) tracer.Trace(id, found, all);
  }
  // An input that reaches a table by several look-ups is reported once.
  std::set<std::tuple<std::string, std::string, int64_t>> seen;
  std::erase_if(all, [&](const FloatIds& use) {
    return !seen.insert({use.table, use.input, use.column}).second;
  });
  return all;
}

absl::Status CheckFloatIds(const Graph& graph) {
  for (const FloatIds& use : FindFloatIds(graph)) {
    if (use.rows <= use.limit) continue;
    const std::string column =
        use.column < 0 ? "" : absl::StrCat(" column ", use.column, " of");
    return absl::InvalidArgumentError(absl::StrCat(
        "table ", use.table, " has ", use.rows, " rows, but its ids come from",
        column, " input ", use.input, " as ", base::Name(use.dtype),
        ", which names whole numbers only up to ", use.limit, " (node ",
        use.node, "); give the model ids as integers"));
  }
  return absl::OkStatus();
}

}  // namespace refract::models
