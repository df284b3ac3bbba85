#include "runtime/cuda/program/merge_tables.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

namespace refract::runtime::cuda {
namespace {

// A launch gives every table equally many blocks. A sequence of 200 ids per
// item beside 59 single ids would have a 60th of them.
constexpr int64_t kMostUnlike = 4;

bool IsAlike(const BagsOp&, const BagsOp&) { return true; }
bool IsAlike(const TakesOp& a, const TakesOp& b) {
  const int64_t one = a.takes[0].inner;
  const int64_t other = b.takes[0].inner;
  return one <= kMostUnlike * other && other <= kMostUnlike * one;
}

// Moves `from`'s tables to the end of `to`'s if all fit into one launch.
template <typename TableOp, typename Table>
bool Join(Op& from, Op& to, std::vector<Table> TableOp::*tables, size_t most) {
  auto* const source = std::get_if<TableOp>(&from.kind);
  auto* const target = std::get_if<TableOp>(&to.kind);
  if (source == nullptr || target == nullptr || source->rows != target->rows ||
      (source->*tables).size() + (target->*tables).size() > most ||
      !IsAlike(*source, *target)) {
    return false;
  }
  std::move((source->*tables).begin(), (source->*tables).end(),
            std::back_inserter(target->*tables));
  return true;
}

}  // namespace

void MergeTables(DeviceProgram& program, int64_t max_batch) {
  std::vector<Op> merged;
  // Per root: the number of operators of `merged` after which all its writes so
  // far are done. No value is written twice, so reads delay no writes.
  std::vector<size_t> behind(program.values.size(), 0);
  const auto behind_of = [&](ValueId id) -> size_t& {
    return behind[static_cast<size_t>(program.value(id).root)];
  };
  // The kernel counts the bags of all tables in 32 bits.
  const auto most_bags = [&](const Op& op) -> size_t {
    const auto* const bags = std::get_if<BagsOp>(&op.kind);
    if (bags == nullptr) return 0;
    const int64_t rows = std::max<int64_t>(bags->rows.At(max_batch), 1);
    const int64_t most = std::numeric_limits<int32_t>::max() / rows;
    return static_cast<size_t>(std::min<int64_t>(most, kMaxBagTables));
  };
  for (Op& op : program.ops) {
    const size_t bag_tables = most_bags(op);
    const std::vector<ValueId> outputs = OutputsOf(op);
    size_t place = 0;
    for (const ValueId id : InputsOf(op)) {
      place = std::max(place, behind_of(id));
    }
    while (place < merged.size() &&
           !Join(op, merged[place], &TakesOp::takes, kMaxTakeTables) &&
           !Join(op, merged[place], &BagsOp::bags, bag_tables)) {
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
