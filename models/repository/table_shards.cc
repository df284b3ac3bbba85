#include "models/repository/table_shards.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "models/graph/graph.h"
#include "models/graph/op_traits.h"
#include "models/repository/split_plan.h"
#include "models/tables/id_index.h"

namespace refract::models {
namespace {

// The operand that `node` reads rows of, if it looks up one table.
ValueId TableOperand(const Graph& graph, const Node& node) {
  if (ClassOf(graph, node) != OpClass::kEmbedding) return kNoValue;
  const EmbeddingArgs args = EmbeddingArgsOf(node.op);
  // index_select is a look-up where its operand is a table.
  const bool selects = node.op == "aten.index_select.default";
  if (args.weight.empty() && !selects) return kNoValue;
  return node.ValueArg(selects ? "self" : args.weight);
}

// Whether `node`, a look-up, leaves out a row that the graph does not name.
bool SkipsAComputedRow(const Node& node) {
  if (EmbeddingArgsOf(node.op).offsets.empty()) return false;
  const Argument* const padding = node.FindArg("padding_idx");
  return padding != nullptr && !std::holds_alternative<None>(*padding) &&
         !std::holds_alternative<int64_t>(*padding);
}

}  // namespace

std::optional<size_t> TableShards::sole_owner() const {
  for (size_t k = 0; k < ends.size(); ++k) {
    // ends.back() is the number of all rows.
    if (rows(k) == ends.back()) return k;
  }
  return std::nullopt;
}

size_t OwnerOfId(int64_t id, size_t num_shards) {
  // Another hash than IdIndex has: with the same, the ids of one shard would
  // fill only a part of its buckets.
  const uint64_t hash =
      MixId(static_cast<int64_t>(static_cast<uint64_t>(id) ^ 0x9E3779B97F4A7C15u));
  // Multiplication in place of a remainder: the hash's high bits choose the
  // shard.
  return static_cast<size_t>(
      static_cast<unsigned __int128>(hash) * num_shards >> 64);
}

std::string WhyNotDivisible(const Graph& graph, const SplitPlan& plan,
                            absl::string_view table, bool by_ids) {
  bool known = false;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.weight != table) continue;
    known = true;
    if (value.dtype != base::DType::kFloat32) {
      return absl::StrCat("it is ", base::Name(value.dtype), ", not float32");
    }
    if (!value.has_shape || value.shape.size() != 2 ||
        !value.shape[0].constant() || !value.shape[1].constant()) {
      return "it is not a matrix of fixed sizes";
    }
    if (std::find(graph.outputs.begin(), graph.outputs.end(),
                  static_cast<ValueId>(id)) != graph.outputs.end()) {
      return "it is an output of the model";
    }
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      const std::vector<ValueId> inputs = InputsOf(node);
      const auto uses = std::count(inputs.begin(), inputs.end(),
                                   static_cast<ValueId>(id));
      if (uses == 0) continue;
      // A second operand that is the table is not read by look-up.
      if (uses > 1 ||
          TableOperand(graph, node) != static_cast<ValueId>(id)) {
        return absl::StrCat("node ", node.name, " (", node.op,
                            ") reads it other than by a look-up");
      }
      if (by_ids && SkipsAComputedRow(node)) {
        return absl::StrCat("ids name its rows, and node ", node.name,
                            " computes its padding index");
      }
      if (plan.stages[n] != Stage::kCnPre) {
        return absl::StrCat("node ", node.name,
                            " looks it up in another stage than CN-pre");
      }
    }
  }
  return known ? "" : "the model has no weight of that name";
}

absl::Status CheckShards(const Graph& graph, const SplitPlan& plan) {
  if (plan.num_shards == 0 && plan.shards.empty()) return absl::OkStatus();
  if (plan.num_shards < 2 || plan.num_shards > kMaxShards) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan divides tables over ", plan.num_shards,
                     " CPU nodes; 2 to ", kMaxShards, " are possible"));
  }
  std::set<absl::string_view> seen;
  for (const TableShards& shards : plan.shards) {
    const auto error = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the plan divides table '", shards.table, "' over CPU nodes: ", why));
    };
    if (!seen.insert(shards.table).second)
      return error("the plan lists it twice");
    if (const std::string why =
            WhyNotDivisible(graph, plan, shards.table, shards.by_ids);
        !why.empty()) {
      return error(why);
    }
    const auto value = std::find_if(
        graph.values.begin(), graph.values.end(),
        [&](const Value& v) { return v.weight == shards.table; });
    const int64_t rows = *value->shape[0].constant();
    // Ascending ends that end at the last row give each row one owner; a shard
    // may be left without rows.
    if (shards.ends.size() != plan.num_shards || shards.ends.front() < 0 ||
        !std::is_sorted(shards.ends.begin(), shards.ends.end()) ||
        shards.ends.back() != rows) {
      return error(absl::StrCat("its ", rows,
                                " rows do not each belong to exactly one "
                                "shard; run refract partition --shards again"));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::models
