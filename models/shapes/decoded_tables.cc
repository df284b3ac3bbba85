#include "models/shapes/decoded_tables.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "models/graph/op_traits.h"
#include "models/tables/decode_row.h"

namespace refract::models {
namespace {

template <typename Id>
void DecodeRows(const WeightView& table, absl::Span<const Id> ids,
                float* values) {
  const int64_t dim = table.rows->dim;
  for (const Id id : ids) {
    if (id < 0 || id >= table.sizes[0]) continue;
    DecodeRow(*table.rows, table.data + id * table.rows->stride,
              {values + id * dim, static_cast<size_t>(dim)});
  }
}

}  // namespace

DecodedTables::~DecodedTables() {
  for (const Table& table : tables_) munmap(table.values, table.bytes);
}

absl::Status DecodedTables::Replace(const Graph& graph,
                                    std::vector<WeightView>& weights) {
  absl::flat_hash_map<ValueId, size_t> places;  // indexes into tables_
  for (size_t id = 0; id < weights.size(); ++id) {
    WeightView& view = weights[id];
    if (!view.rows) continue;
    Table table;
    table.stored = view;
    table.bytes =
        static_cast<size_t>(view.sizes[0] * view.sizes[1]) * sizeof(float);
    // An empty mapping is an error.
    table.bytes = std::max<size_t>(table.bytes, 1);
    void* const address =
        mmap(nullptr, table.bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "table ", graph.values[id].weight, ": no address space for ",
          table.bytes, " bytes of decoded rows: ", std::strerror(errno)));
    }
    table.values = static_cast<float*>(address);
    // From here on the view is an ordinary float32 table, which LibTorch reads.
    view.rows.reset();
    view.data = reinterpret_cast<const std::byte*>(table.values);
    places[static_cast<ValueId>(id)] = tables_.size();
    tables_.push_back(std::move(table));
  }
  if (places.empty()) return absl::OkStatus();
  for (const Node& node : graph.nodes) {
    const EmbeddingArgs args = EmbeddingArgsOf(node.op);
    // A gather from a weight is a look-up as well.
    const ValueId table =
        node.ValueArg(args.weight.empty() ? "self" : args.weight);
    const ValueId ids =
        node.ValueArg(args.weight.empty() ? "index" : args.indices);
    const auto place = places.find(table);
    if (place == places.end() || ids == kNoValue) continue;
    // An id tensor may be looked up in several tables.
    readers_[ids].push_back(place->second);
  }
  return absl::OkStatus();
}

void DecodedTables::Read(ValueId ids, const base::TensorView& tensor) const {
  const auto readers = readers_.find(ids);
  if (readers == readers_.end()) return;
  for (const size_t reader : readers->second) {
    const Table& table = tables_[reader];
    if (tensor.dtype == base::DType::kInt32) {
      DecodeRows(table.stored, tensor.as<int32_t>(), table.values);
    } else if (tensor.dtype == base::DType::kInt64) {
      DecodeRows(table.stored, tensor.as<int64_t>(), table.values);
    }
  }
}

}  // namespace refract::models
