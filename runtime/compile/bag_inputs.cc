// Finds bags by their readers: a vector of entries and a vector of offsets
// belong together if embedding_bag operators read them together and nothing
// else reads them.

#include "runtime/compile/bag_inputs.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "models/operators/operator.h"

namespace refract::runtime {
namespace {

using models::ValueId;

// The value of include_last_offset; nullopt: not a literal.
std::optional<bool> IncludesLast(const models::Node& node) {
  const models::Argument* const argument = node.FindArg("include_last_offset");
  if (argument == nullptr || std::holds_alternative<models::None>(*argument)) {
    return false;
  }
  const bool* const flag = std::get_if<bool>(argument);
  if (flag == nullptr) return std::nullopt;
  return *flag;
}

// A vector whose length is independent of the batch.
bool IsRagged(const models::Value& value, const std::string& batch) {
  if (value.kind != models::ValueKind::kTensor || !value.has_shape ||
      value.shape.size() != 1 || value.shape[0].is_unknown() ||
      value.shape[0].constant().has_value()) {
    return false;
  }
  return !Mentions(value.shape[0], batch);
}

bool IsOffsets(const models::Value& value, const std::string& batch,
               bool include_last) {
  const models::SymExpr rows = models::SymExpr::Symbol(batch);
  return value.kind == models::ValueKind::kTensor && value.has_shape &&
         value.shape.size() == 1 &&
         (value.dtype == base::DType::kInt64 ||
          value.dtype == base::DType::kInt32) &&
         value.shape[0] ==
             (include_last ? rows + models::SymExpr(int64_t{1}) : rows);
}

template <typename T>
absl::Status CheckAndMoveTyped(T* offsets, int64_t rows, bool include_last,
                               int64_t begin, int64_t end, int64_t first) {
  // The offsets come from a client: a kernel would read entries of other
  // requests, or memory behind them, if a single offset were not checked.
  const auto invalid = [](auto... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("offsets of bags: ", what...));
  };
  if (first + (end - begin) > std::numeric_limits<T>::max()) {
    return invalid(
        "the bags have more entries than the offsets' element type can count");
  }
  // `last` is the offset before; offsets must not fall, or a bag would have a
  // negative length.
  int64_t last = begin;
  for (int64_t row = 0; row < rows + (include_last ? 1 : 0); ++row) {
    const int64_t offset = offsets[row];
    if (row == 0 && offset != begin)
      return invalid("the first offset is not the first entry's position but ",
                     offset);
    if (offset < last || offset > end) {
      return invalid("offset ", row, " is ", offset, " after the offset ", last,
                     ", where the bags have ", end, " entries");
    }
    last = offset;
    offsets[row] = static_cast<T>(offset - begin + first);
  }
  if (include_last && last != end) {
    return invalid("the last offset is ", last, ", but the bags have ", end,
                   " entries");
  }
  return absl::OkStatus();
}

}  // namespace

bool Mentions(const models::SymExpr& expr, const std::string& symbol) {
  const std::vector<std::string> symbols = expr.Symbols();
  return std::find(symbols.begin(), symbols.end(), symbol) != symbols.end();
}

absl::Status CheckAndMove(base::DType dtype, std::byte* offsets, int64_t rows,
                          bool include_last, int64_t begin, int64_t end,
                          int64_t first) {
  return dtype == base::DType::kInt64
             ? CheckAndMoveTyped(reinterpret_cast<int64_t*>(offsets), rows,
                                 include_last, begin, end, first)
             : CheckAndMoveTyped(reinterpret_cast<int32_t*>(offsets), rows,
                                 include_last, begin, end, first);
}

bool IsBag(const models::Node& node) {
  return models::OperatorOf(node.op).rows == models::RowRule::kEmbeddingBag;
}

FoundBags FindBagInputs(const models::Graph& graph, const Part& part) {
  FoundBags found;
  std::map<ValueId, size_t> inputs;
  for (size_t i = 0; i < part.inputs.size(); ++i) inputs[part.inputs[i]] = i;
  const auto name = [&](ValueId id) {
    return absl::StrCat("'", graph.value(id).name, "'");
  };
  // Offsets → (include_last, entries), and the offsets of each entry.
  std::map<ValueId, std::pair<bool, std::set<ValueId>>> groups;
  std::map<ValueId, ValueId> offsets_of;
  for (const models::NodeId n : part.nodes) {
    const models::Node& node = graph.nodes[n];
    if (!IsBag(node)) continue;
    const ValueId ids = node.ValueArg("indices");
    const ValueId offsets = node.ValueArg("offsets");
    const ValueId weights = node.ValueArg("per_sample_weights");
    // One id per row, or a matrix of ids: rows as in other tensors. The row
    // rules judge values computed within the part.
    if (!inputs.contains(ids) ||
        !IsRagged(graph.value(ids), graph.batch_symbol)) {
      continue;
    }
    const std::optional<bool> include_last = IncludesLast(node);
    if (!inputs.contains(offsets) || !include_last.has_value() ||
        !IsOffsets(graph.value(offsets), graph.batch_symbol, *include_last)) {
      found.why_not = absl::StrCat("the bags of ", name(ids),
                                   " have computed offsets, and the node moves "
                                   "only offsets that a request brings");
      return found;
    }
    // Bags with the same offsets form one group: their entries are moved
    // together.
    auto& group =
        groups.try_emplace(offsets, *include_last, std::set<ValueId>())
            .first->second;
    bool fits = group.first == *include_last;
    for (const ValueId entry : {ids, weights}) {
      if (entry == models::kNoValue) continue;
      fits = fits && inputs.contains(entry) && graph.value(entry).has_shape &&
             graph.value(entry).shape.size() == 1 &&
             graph.value(entry).shape[0] == graph.value(ids).shape[0] &&
             offsets_of.try_emplace(entry, offsets).first->second == offsets;
      group.second.insert(entry);
    }
    if (!fits) {
      found.why_not = absl::StrCat("the bags of ", name(ids),
                                   " have more than one input of offsets, or "
                                   "the offsets have other bags, too");
      return found;
    }
  }
  // Entries and offsets must have no other readers.
  for (const models::NodeId n : part.nodes) {
    const models::Node& node = graph.nodes[n];
    for (const ValueId id : models::InputsOf(node)) {
      const bool is_entry = offsets_of.contains(id);
      if (!is_entry && !groups.contains(id)) continue;
      const bool as_entry =
          IsBag(node) && (id == node.ValueArg("indices") ||
                          id == node.ValueArg("per_sample_weights"));
      const bool as_offsets = IsBag(node) && id == node.ValueArg("offsets");
      if (is_entry ? as_entry && !as_offsets : as_offsets && !as_entry) {
        continue;
      }
      found.why_not = absl::StrCat(
          name(id), " holds entries or offsets of bags and is also read by ",
          node.name);
      return found;
    }
  }
  for (const ValueId id : part.outputs) {
    if (!offsets_of.contains(id) && !groups.contains(id)) continue;
    found.why_not = absl::StrCat(
        name(id),
        " holds entries or offsets of bags and is a result of the part");
    return found;
  }
  for (const auto& [offsets, group] : groups) {
    BagInputs& bag = found.bags.emplace_back();
    bag.offsets = inputs.at(offsets);
    bag.include_last = group.first;
    // All entries of a group must have one length.
    const models::SymExpr* length = nullptr;
    for (const ValueId entry : group.second) {
      bag.entries.push_back(inputs.at(entry));
      const models::SymExpr& own = graph.value(entry).shape[0];
      if (length != nullptr && !(*length == own)) {
        found.why_not =
            absl::StrCat("inputs of different lengths share the offsets ",
                         name(offsets), " of their bags");
        return found;
      }
      length = &own;
    }
  }
  return found;
}

}  // namespace refract::runtime
