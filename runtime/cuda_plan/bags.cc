#include "runtime/cuda_plan/bags.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/look_ups/ids.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::TensorView;

// Exporters write "no limit" as a huge number.
constexpr int64_t kNoLimit = int64_t{1} << 31;
// Most entries of an input: sizes on the device have 31 bits.
constexpr int64_t kMostEntries = int64_t{1} << 30;

std::optional<int64_t> DeclaredMost(const models::Graph& graph,
                                    const models::SymExpr& size) {
  for (const models::SymbolRange& range : graph.symbols) {
    if (size.symbol() != range.symbol || range.max >= kNoLimit) continue;
    return std::max<int64_t>(range.max, 1);
  }
  return std::nullopt;
}

int64_t NumEntries(const BagRoom& room, absl::Span<const TensorView> inputs) {
  return inputs[room.part.entries[0]].dims[0];
}
int64_t NumRows(const BagRoom& room, absl::Span<const TensorView> inputs) {
  return inputs[room.part.offsets].dims[0] - (room.part.include_last ? 1 : 0);
}

// Begin of the bag of `row`, which is the end of the row before.
int64_t BeginOf(const BagRoom& room, absl::Span<const TensorView> inputs,
                int64_t row) {
  const bool given = room.part.include_last || row < NumRows(room, inputs);
  return given ? cpu::IntAt(inputs[room.part.offsets], row)
               : NumEntries(room, inputs);
}

}  // namespace

std::vector<BagRoom> RoomForBags(const models::Graph& graph, const Part& part,
                                 const std::vector<BagInputs>& bags,
                                 int64_t most, int64_t bytes) {
  struct Want {
    int64_t entries, bytes_each;
  };
  std::vector<Want> wants;
  std::vector<BagRoom> rooms;
  for (const BagInputs& bag : bags) {
    BagRoom& room = rooms.emplace_back();
    room.part = bag;
    const models::Value& first = graph.value(part.inputs[bag.entries[0]]);
    room.entries = first.name;
    const std::optional<int64_t> declared = DeclaredMost(graph, first.shape[0]);
    Want& want = wants.emplace_back();
    want.entries = std::min({declared.value_or(kMostEntries), kMostEntries,
                             std::max<int64_t>(most, 1)});
    room.declared = declared == want.entries;
    want.bytes_each = 0;
    for (const size_t i : bag.entries) {
      want.bytes_each +=
          static_cast<int64_t>(base::SizeOf(graph.value(part.inputs[i]).dtype));
    }
  }
  // Equal room for all, except inputs that need less.
  const auto fits = [&](int64_t entries) {
    int64_t left = bytes;
    for (const Want& want : wants) {
      const int64_t taken = std::min(want.entries, entries);
      if (want.bytes_each > 0 && taken > left / want.bytes_each) return false;
      left -= taken * want.bytes_each;
    }
    return true;
  };
  // The largest room per group for which all groups fit, by bisection: fits()
  // is true up to it. A group that wants less leaves its rest to the others.
  int64_t low = 1;
  int64_t high = kMostEntries;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  for (size_t i = 0; i < rooms.size(); ++i) {
    rooms[i].capacity = std::min(wants[i].entries, low);
    rooms[i].declared &= rooms[i].capacity == wants[i].entries;
  }
  return rooms;
}

absl::Status CheckBags(absl::Span<const BagCheck> checks,
                       absl::Span<const TensorView> inputs) {
  RunStats stats;
  for (const BagCheck& check : checks) {
    if (check.ids < 0) continue;
    const TensorView& ids = inputs[static_cast<size_t>(check.ids)];
    absl::Status status;
    if (check.offsets >= 0) {
      status = cpu::CheckOffsets(check.offsets_name,
                                 inputs[static_cast<size_t>(check.offsets)],
                                 ids.num_elements());
    }
    if (status.ok()) {
      const cpu::TableUse use = {check.table, check.policy};
      status = use.Check(ids, check.table_rows, stats).status();
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

bool HasRoom(absl::Span<const BagRoom> rooms,
             absl::Span<const TensorView> inputs, std::vector<int64_t>& taken) {
  taken.resize(rooms.size());
  for (size_t i = 0; i < rooms.size(); ++i) {
    const int64_t entries = NumEntries(rooms[i], inputs);
    if (entries > rooms[i].capacity - taken[i]) return false;
    taken[i] += entries;
  }
  return true;
}

bool EndWithEntries(absl::Span<const BagRoom> rooms,
                    absl::Span<const TensorView> inputs) {
  return std::all_of(rooms.begin(), rooms.end(), [&](const BagRoom& room) {
    return BeginOf(room, inputs, NumRows(room, inputs)) ==
           NumEntries(room, inputs);
  });
}

absl::StatusOr<int64_t> RowsWithRoom(absl::Span<const BagRoom> rooms,
                                     absl::Span<const TensorView> inputs,
                                     int64_t first, int64_t most) {
  int64_t count = most;
  for (const BagRoom& room : rooms) {
    const int64_t begin = BeginOf(room, inputs, first);
    // Offsets do not fall.
    int64_t fitting = 0;
    int64_t high = count;
    while (fitting < high) {
      const int64_t middle = fitting + (high - fitting + 1) / 2;
      if (BeginOf(room, inputs, first + middle) - begin <= room.capacity) {
        fitting = middle;
      } else {
        high = middle - 1;
      }
    }
    if (fitting < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input '", room.entries, "': the bag of row ", first, " has ",
          BeginOf(room, inputs, first + 1) - begin, " entries, more than the ",
          room.capacity,
          room.declared ? " that the model declares"
                        : " that the device has memory for (--max-size)"));
    }
    count = fitting;
  }
  return count;
}

absl::Status FillBags(absl::Span<const BagRoom> rooms, cuda::Instance& instance,
                      cuda::SlotId slot, absl::Span<const TensorView> inputs,
                      int64_t to, int64_t from, int64_t count) {
  for (const BagRoom& room : rooms) {
    const TensorView& offsets = inputs[room.part.offsets];
    const auto width = static_cast<int64_t>(base::SizeOf(offsets.dtype));
    std::byte* const place =
        instance.input(slot, room.offsets_input) + to * width;
    // The end written by the rows before.
    TensorView before = offsets;
    before.data = place;
    const int64_t base = to == 0 ? 0 : cpu::IntAt(before, 0);
    const int64_t begin = from == 0 ? 0 : BeginOf(room, inputs, from);
    const int64_t end = BeginOf(room, inputs, from + count);
    if (begin < 0 || end < begin || end > NumEntries(room, inputs) ||
        end - begin > room.capacity - base) {
      return absl::InvalidArgumentError(
          absl::StrCat("bags of input '", room.entries, "': entries ", begin,
                       " to ", end, " of ", NumEntries(room, inputs)));
    }
    // Copied first and checked in the copy, because a peer may still write to
    // the request. Begin and end were read before; CheckAndMove() refuses a
    // copy that contradicts them.
    std::memcpy(place, offsets.data + from * width,
                static_cast<size_t>(count * width));
    REFRACT_RETURN_IF_ERROR(CheckAndMove(offsets.dtype, place, count,
                                         /*include_last=*/false, begin, end,
                                         base));
    // The end of the last bag. Both element types are little-endian, and a
    // count of entries has 31 bits.
    const int64_t last = end - begin + base;
    std::memcpy(place + count * width, &last, static_cast<size_t>(width));
    for (size_t e = 0; e < room.entry_inputs.size(); ++e) {
      const TensorView& entries = inputs[room.part.entries[e]];
      const auto size = static_cast<int64_t>(base::SizeOf(entries.dtype));
      if (end > begin) {
        std::memcpy(instance.input(slot, room.entry_inputs[e]) + base * size,
                    entries.data + begin * size,
                    static_cast<size_t>((end - begin) * size));
      }
      // Grows with each request that is added to the slot.
      instance.SetCount(slot, room.entry_inputs[e], base + end - begin);
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::runtime::cuda_plan
