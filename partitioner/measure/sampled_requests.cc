#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/rows/row_dependence.h"
#include "partitioner/measure/request_source.h"
#include "tools/loadgen/random.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::SymExpr;
using models::Value;
using models::ValueId;

// How an input follows from the items that were drawn.
enum class Role : uint8_t {
  kWhole,    // the same whatever the batch
  kRows,     // rows of item after item
  kOffsets,  // where each item's bag begins
  kBagRows,  // one row per id of a bag
};

struct Input {
  std::string name;
  Role role = Role::kWhole;
  int64_t entries = 1;        // kRows: rows of an item
  int offsets = -1;           // kBagRows: the input with the offsets
  bool include_last = false;  // kOffsets
};

int64_t OffsetAt(const base::Tensor& offsets, size_t i) {
  if (offsets.dtype() == base::DType::kInt32) {
    return reinterpret_cast<const int32_t*>(offsets.data())[i];
  }
  return reinterpret_cast<const int64_t*>(offsets.data())[i];
}

void SetOffset(base::Tensor& offsets, size_t i, int64_t value) {
  if (offsets.dtype() == base::DType::kInt32) {
    offsets.as<int32_t>()[i] = static_cast<int32_t>(value);
  } else {
    offsets.as<int64_t>()[i] = value;
  }
}

bool HasSymbol(const SymExpr& extent, const std::string& symbol) {
  const std::vector<std::string> symbols = extent.Symbols();
  return std::count(symbols.begin(), symbols.end(), symbol) > 0;
}

// Makes requests of `batch` items from samples: items are drawn with
// replacement from one sample, and each input is put together from the parts
// that belong to the drawn items. An item has rows of each kRows input and one
// bag of each kOffsets input; the bag is a range of rows of each kBagRows
// input. Ids of an item stay together over all inputs, so that a request looks
// like traffic.
class Sampled final : public RequestSource {
 public:
  Sampled(std::vector<Input> inputs,
          std::vector<std::vector<base::Tensor>> samples,
          std::vector<int64_t> items, std::map<std::string, int64_t> sizes,
          uint64_t seed)
      : inputs_(std::move(inputs)),
        samples_(std::move(samples)),
        items_(std::move(items)),
        sizes_(std::move(sizes)),
        random_(seed, "samples") {
    int64_t all = 0;
    for (const int64_t items : items_) all += items;
    description_ = absl::StrCat("items of ", samples_.size(),
                                samples_.size() == 1 ? " file" : " files",
                                " with ", all, " in all, drawn at random");
  }

  absl::StatusOr<std::vector<base::Tensor>> Make(int64_t batch) override {
    // All items of a request come from one sample, because kWhole inputs have
    // one value per request.
    const size_t from = random_.Below(samples_.size());
    const std::vector<base::Tensor>& sample = samples_[from];
    std::vector<size_t> drawn(batch);
    for (size_t& item : drawn) item = random_.Below(items_[from]);
    std::vector<base::Tensor> request;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Input& input = inputs_[i];
      absl::StatusOr<base::Tensor> tensor;
      switch (input.role) {
        case Role::kWhole:
          tensor = base::Tensor::CopyOf(sample[i].view());
          break;
        case Role::kRows:
          tensor = Rows(sample[i], drawn, input.entries);
          break;
        case Role::kOffsets:
          tensor = Offsets(sample, input, i, drawn);
          break;
        case Role::kBagRows:
          tensor = Rows(sample[i], IdsOf(sample, input.offsets,
                                         sample[i].dims()[0], drawn));
          break;
      }
      if (!tensor.ok()) {
        return base::Annotate(tensor.status(),
                              absl::StrCat("input ", input.name));
      }
      request.push_back(*std::move(tensor));
    }
    return request;
  }

  const std::map<std::string, int64_t>& sizes() const override {
    return sizes_;
  }
  const std::string& description() const override { return description_; }

 private:
  // Copies of `rows` of `from`, in this order; repeated rows are allowed. A row
  // has `entries` entries of dimension 0.
  static absl::StatusOr<base::Tensor> Rows(const base::Tensor& from,
                                           const std::vector<size_t>& rows,
                                           int64_t entries = 1) {
    base::Dims dims = from.dims();
    const size_t row_bytes =
        dims[0] == 0 ? 0
                     : from.bytes() / static_cast<size_t>(dims[0] / entries);
    dims[0] = static_cast<int64_t>(rows.size()) * entries;
    REFRACT_ASSIGN_OR_RETURN(base::Tensor result,
                             base::Tensor::Allocate(from.dtype(), dims));
    for (size_t i = 0; i < rows.size() && row_bytes > 0; ++i) {
      std::memcpy(result.data() + i * row_bytes,
                  from.data() + rows[i] * row_bytes, row_bytes);
    }
    return result;
  }

  // First and one past the last id of a bag.
  std::pair<int64_t, int64_t> Bag(const base::Tensor& offsets, size_t item,
                                  int64_t num_ids) const {
    const size_t count = static_cast<size_t>(offsets.dims()[0]);
    // Without include_last the last bag ends at the last id.
    return {OffsetAt(offsets, item),
            item + 1 < count ? OffsetAt(offsets, item + 1) : num_ids};
  }

  // Row numbers of the ids in the bags of the drawn items, bag after bag.
  std::vector<size_t> IdsOf(const std::vector<base::Tensor>& sample,
                            int offsets, int64_t num_ids,
                            const std::vector<size_t>& drawn) const {
    std::vector<size_t> ids;
    for (const size_t item : drawn) {
      const auto [begin, end] = Bag(sample[offsets], item, num_ids);
      for (int64_t id = begin; id < end; ++id) ids.push_back(id);
    }
    return ids;
  }

  // Where the bags of the drawn items begin when they lie one after the other:
  // running sums of their lengths, from 0.
  absl::StatusOr<base::Tensor> Offsets(const std::vector<base::Tensor>& sample,
                                       const Input& input, size_t index,
                                       const std::vector<size_t>& drawn) const {
    // Any input of ids with these offsets has the number of ids; ItemsOf() has
    // checked the offsets against all of them.
    int64_t num_ids = 0;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].offsets == static_cast<int>(index)) {
        num_ids = sample[i].dims()[0];
      }
    }
    const size_t count = drawn.size() + (input.include_last ? 1 : 0);
    REFRACT_ASSIGN_OR_RETURN(
        base::Tensor result,
        base::Tensor::Allocate(sample[index].dtype(),
                               {static_cast<int64_t>(count)}));
    int64_t next = 0;
    for (size_t i = 0; i < count; ++i) {
      SetOffset(result, i, next);
      if (i == drawn.size()) break;
      const auto [begin, end] = Bag(sample[index], drawn[i], num_ids);
      next += end - begin;
    }
    return result;
  }

  const std::vector<Input> inputs_;
  const std::vector<std::vector<base::Tensor>> samples_;
  const std::vector<int64_t> items_;
  const std::map<std::string, int64_t> sizes_;
  loadgen::Random random_;
  std::string description_;
};

// `offsets` rise from 0 to the number of rows of `rows`.
bool AreOffsetsOf(const base::Tensor& offsets, const base::Tensor& rows) {
  if (offsets.dtype() != base::DType::kInt32 &&
      offsets.dtype() != base::DType::kInt64) {
    return false;
  }
  if (offsets.dims().size() != 1 || rows.dims().empty()) return false;
  int64_t last = 0;
  for (size_t k = 0; k < static_cast<size_t>(offsets.dims()[0]); ++k) {
    const int64_t offset = OffsetAt(offsets, k);
    if (k == 0 ? offset != 0 : offset < last) return false;
    last = offset;
  }
  return last == rows.dims()[0];
}

// Offsets that no embedding bag reads, as of histories that a model pools by
// its own operators: [batch + 1] numbers that are in every sample offsets of
// the rows of inputs of one size. Where inputs of two sizes would do, the input
// keeps its role and is refused by name.
void FindOwnOffsets(const Graph& graph,
                    const std::vector<std::vector<base::Tensor>>& samples,
                    std::vector<Input>& inputs) {
  const SymExpr entries = SymExpr::Symbol(graph.batch_symbol) + SymExpr(1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& offsets = graph.value(graph.inputs[i]);
    if (inputs[i].role != Role::kWhole || offsets.shape.size() != 1 ||
        !(offsets.shape[0] == entries)) {
      continue;
    }
    std::map<std::string, std::vector<size_t>> rows;  // by their size
    for (size_t j = 0; j < inputs.size(); ++j) {
      const Value& other = graph.value(graph.inputs[j]);
      if (inputs[j].role != Role::kWhole || other.shape.empty()) continue;
      const auto size = other.shape[0].symbol();
      if (!size || *size == graph.batch_symbol) continue;
      if (std::all_of(samples.begin(), samples.end(), [&](const auto& sample) {
            return AreOffsetsOf(sample[i], sample[j]);
          })) {
        rows[*size].push_back(j);
      }
    }
    if (rows.size() != 1) continue;
    inputs[i].role = Role::kOffsets;
    inputs[i].include_last = true;
    for (const size_t j : rows.begin()->second) {
      inputs[j].role = Role::kBagRows;
      inputs[j].offsets = static_cast<int>(i);
    }
  }
}

// The role of every input. Bags come first, from the graph's embedding bags and
// from the samples; then inputs that are shaped like the ids of a bag; then
// inputs whose first dimension is the batch. All others must not depend on the
// batch.
absl::StatusOr<std::vector<Input>> Classify(
    const Graph& graph, const std::vector<std::vector<base::Tensor>>& samples) {
  const std::vector<models::IdInput> id_inputs = models::FindIdInputs(graph);
  const bool alone =
      models::RowDependenceOf(graph).use == models::RowUse::kAlone;
  std::vector<Input> inputs(graph.inputs.size());
  const auto index_of = [&](ValueId id) {
    return static_cast<int>(
        std::find(graph.inputs.begin(), graph.inputs.end(), id) -
        graph.inputs.begin());
  };
  for (const models::IdInput& id_input : id_inputs) {
    if (!id_input.is_offsets || id_input.ids == models::kNoValue) continue;
    // Bags are drawn from lists. A matrix of offsets is refused below.
    if (id_input.row >= 0) continue;
    const int offsets = index_of(id_input.input);
    inputs[offsets].role = Role::kOffsets;
    inputs[offsets].include_last = id_input.include_last_offset;
    inputs[index_of(id_input.ids)].role = Role::kBagRows;
    inputs[index_of(id_input.ids)].offsets = offsets;
  }
  FindOwnOffsets(graph, samples, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = graph.value(graph.inputs[i]);
    inputs[i].name = value.name;
    if (inputs[i].role != Role::kWhole || value.shape.empty()) continue;
    // Inputs with one entry for each id of a bag, such as its weight: the first
    // dimension is the same expression as that of the ids.
    for (size_t j = 0; j < inputs.size(); ++j) {
      const Value& other = graph.value(graph.inputs[j]);
      if (inputs[j].role == Role::kBagRows && j != i && other.has_shape &&
          !other.shape.empty() && !value.shape[0].constant() &&
          value.shape[0].symbol() != graph.batch_symbol &&
          value.shape[0] == other.shape[0]) {
        inputs[i].role = Role::kBagRows;
        inputs[i].offsets = inputs[j].offsets;
      }
    }
    if (inputs[i].role != Role::kWhole) continue;
    const int64_t entries =
        models::EntriesPerItem(graph, id_inputs, graph.inputs[i], 0);
    if (entries == 1 || (entries > 1 && alone)) {
      inputs[i].role = Role::kRows;
      inputs[i].entries = entries;
    }
    for (size_t d = inputs[i].role == Role::kRows ? 1 : 0;
         d < value.shape.size(); ++d) {
      if (HasSymbol(value.shape[d], graph.batch_symbol)) {
        return absl::InvalidArgumentError(
            absl::StrCat("input ", value.name, ": items cannot be drawn from ",
                         value.shape[d].ToString(), " in dimension ", d,
                         "; leave out --inputs"));
      }
    }
  }
  return inputs;
}

// Checks one sample against the roles, and gives its number of items.
absl::StatusOr<int64_t> ItemsOf(const std::vector<Input>& inputs,
                                const std::vector<base::Tensor>& sample) {
  // All inputs with items must agree on their number. Offsets must not fall and
  // must not exceed the number of ids: Bag() and Rows() rely on it.
  std::optional<int64_t> items;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    if (input.role != Role::kRows && input.role != Role::kOffsets) continue;
    const int64_t entries = input.role == Role::kRows ? input.entries : 1;
    const int64_t size = sample[i].dims()[0];
    if (size % entries != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", input.name, " has ", size,
                       " rows, and each item has ", entries));
    }
    const int64_t rows = size / entries - (input.include_last ? 1 : 0);
    if (rows < 1 || (items && *items != rows)) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", input.name, " has ", rows, " items, ",
                       items ? absl::StrCat("others have ", *items)
                             : std::string("but at least 1 is needed")));
    }
    items = rows;
    if (input.role != Role::kOffsets) continue;
    if (sample[i].dtype() != base::DType::kInt32 &&
        sample[i].dtype() != base::DType::kInt64) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", input.name, ": offsets must be integers"));
    }
    const Input* first = nullptr;  // of the inputs with a row per id
    int64_t ids = 0;
    for (size_t j = 0; j < inputs.size(); ++j) {
      if (inputs[j].offsets != static_cast<int>(i)) continue;
      if (first == nullptr) {
        first = &inputs[j];
        ids = sample[j].dims()[0];
      } else if (sample[j].dims()[0] != ids) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input ", inputs[j].name, " has ", sample[j].dims()[0],
            " rows, and input ", first->name, " of the same bags has ", ids));
      }
      int64_t last = 0;
      for (int64_t k = 0; k < sample[i].dims()[0]; ++k) {
        const int64_t offset = OffsetAt(sample[i], static_cast<size_t>(k));
        if (offset < last || offset > sample[j].dims()[0]) {
          return absl::InvalidArgumentError(absl::StrCat(
              "input ", input.name, ": offset ", offset,
              " is below the one before it or above the number of ids, ",
              sample[j].dims()[0], ", of input ", inputs[j].name));
        }
        last = offset;
      }
    }
  }
  if (!items) {
    return absl::InvalidArgumentError("no input has one row per item");
  }
  return *items;
}

// Average numbers per item over all samples, rounded, for the names in shapes.
std::map<std::string, int64_t> SizesOf(
    const Graph& graph, const std::vector<std::vector<base::Tensor>>& samples,
    const std::vector<int64_t>& items) {
  std::map<std::string, int64_t> sizes;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Value& value = graph.value(graph.inputs[i]);
    for (size_t d = 0; d < value.shape.size(); ++d) {
      const auto symbol = value.shape[d].symbol();
      if (!symbol || *symbol == graph.batch_symbol || sizes.contains(*symbol)) {
        continue;
      }
      double total = 0;
      double count = 0;
      for (size_t s = 0; s < samples.size(); ++s) {
        // In the first dimension a symbol counts rows of all items together,
        // elsewhere its value holds for each sample.
        total += static_cast<double>(samples[s][i].dims()[d]);
        count += d == 0 ? static_cast<double>(items[s]) : 1;
      }
      sizes[*symbol] = std::max<int64_t>(1, std::llround(total / count));
    }
  }
  return sizes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RequestSource>> SampledRequests(
    const Graph& graph, std::vector<std::vector<base::Tensor>> samples,
    uint64_t seed) {
  if (graph.batch_symbol.empty()) {
    return absl::InvalidArgumentError(
        "the model has no batch dimension, so items cannot be drawn");
  }
  REFRACT_ASSIGN_OR_RETURN(std::vector<Input> inputs, Classify(graph, samples));
  std::vector<int64_t> items;
  for (const std::vector<base::Tensor>& sample : samples) {
    const absl::StatusOr<int64_t> count = ItemsOf(inputs, sample);
    if (!count.ok()) {
      return base::Annotate(count.status(),
                            absl::StrCat("file ", items.size() + 1));
    }
    items.push_back(*count);
  }
  std::map<std::string, int64_t> sizes = SizesOf(graph, samples, items);
  return std::make_unique<Sampled>(std::move(inputs), std::move(samples),
                                   std::move(items), std::move(sizes), seed);
}

}  // namespace refract::partitioner
