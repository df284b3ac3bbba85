#include "runtime/cuda/merge_tables.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

namespace refract::runtime::cuda {
namespace {

// Moves `from`'s tables to the end of `to`'s where all fit into one launch.
template <typename TableOp, typename Table>
bool Join(Op& from, Op& to, std::vector<Table> TableOp::*tables, size_t most) {
  auto* const source = std::get_if<TableOp>(&from.kind);
  auto* const target = std::get_if<TableOp>(&to.kind);
  if (source == nullptr || target == nullptr || source->rows != target->rows ||
      (source->*tables).size() + (target->*tables).size() > most) {
    return false;
  }
  std::move((source->*tables).begin(), (source->*tables).end(),
            std::back_inserter(target->*tables));
  return true;
}

}  // namespace

void MergeTables(Program& program) {
  std::vector<Op> merged;
  // Of each root: behind how many operators of `merged` all that was written to
  // it so far is there. Nothing is written twice, so reads hold up no writes.
  std::vector<size_t> behind(program.values.size(), 0);
  const auto behind_of = [&](ValueId id) -> size_t& {
    return behind[static_cast<size_t>(program.value(id).root)];
  };
  for (Op& op : program.ops) {
    const std::vector<ValueId> outputs = OutputsOf(op);
    size_t place = 0;
    for (const ValueId id : InputsOf(op)) {
      place = std::max(place, behind_of(id));
    }
    while (place < merged.size() &&
           !Join(op, merged[place], &TakesOp::takes, kMaxTakeTables) &&
           !Join(op, merged[place], &BagsOp::bags, kMaxBagTables)) {
      ++place;
    }
    if (place == merged.size()) merged.push_back(std::move(op));
    for (const ValueId id : outputs) {
      behind_of(id) = std::max(behind_of(id), place + 1);
    }
  }
  program.ops = std::move(merged);
}

}  // namespace refract::runtime::cuda
