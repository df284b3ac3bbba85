#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/integers.h"
#include "base/status_macros.h"
#include "models/shapes/row_picker.h"
#include "partitioner/costs/work.h"
#include "partitioner/measure/request_source.h"
#include "tools/loadgen/random.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::RaggedInput;
using models::SymExpr;
using models::Value;

// A sample, and the picker of its items.
struct Sample {
  std::vector<base::Tensor> tensors;
  models::ProbeMaker maker;
  std::optional<models::RowPicker> picker;
};

// Makes requests of `batch` items from samples: items are drawn with
// replacement from one sample. Ids of an item stay together over all inputs, so
// that a request looks like traffic.
class Sampled final : public RequestSource {
 public:
  Sampled(std::vector<Sample> samples, std::map<std::string, int64_t> sizes,
          uint64_t seed)
      : samples_(std::move(samples)),
        sizes_(std::move(sizes)),
        random_(seed, "samples") {
    int64_t all = 0;
    for (const Sample& sample : samples_) all += sample.picker->rows();
    description_ = absl::StrCat("items of ", samples_.size(),
                                samples_.size() == 1 ? " file" : " files",
                                " with ", all, " in all, drawn at random");
  }

  absl::StatusOr<std::vector<base::Tensor>> Make(int64_t batch) override {
    // All items of a request come from one sample, because inputs without items
    // have one value per request.
    const models::RowPicker& picker =
        *samples_[random_.Below(samples_.size())].picker;
    std::vector<int64_t> drawn(batch);
    for (int64_t& item : drawn) item = random_.Below(picker.rows());
    if (!picker.CanPick(drawn)) {
      return absl::InvalidArgumentError(
          "the bags of drawn items have different numbers of ids, which fit "
          "into no matrix; leave out --inputs");
    }
    return picker.Pick(drawn);
  }

  const std::map<std::string, int64_t>& sizes() const override {
    return sizes_;
  }
  const std::string& description() const override { return description_; }

 private:
  const std::vector<Sample> samples_;
  const std::map<std::string, int64_t> sizes_;
  loadgen::Random random_;
  std::string description_;
};

// `offsets` rise from 0 to the number of rows of `rows`.
bool AreOffsetsOf(const base::TensorView& offsets,
                  const base::TensorView& rows) {
  if (!base::IsInt32OrInt64(offsets.dtype) || offsets.dims.size() != 1 ||
      rows.dims.empty()) {
    return false;
  }
  int64_t last = 0;
  for (int64_t k = 0; k < offsets.dims[0]; ++k) {
    const int64_t offset = base::IntAt(offsets, k);
    if (k == 0 ? offset != 0 : offset < last) return false;
    last = offset;
  }
  return last == rows.dims[0];
}

// The bags that the samples agree on, and offsets that no embedding bag reads,
// as of histories that a model pools by its own operators: [batch + 1] numbers
// that are in every sample offsets of the rows of inputs of one size. Where
// inputs of two sizes would do, the input is refused by name.
std::vector<std::optional<RaggedInput>> FindOffsets(
    const Graph& graph, const std::vector<Sample>& samples) {
  const size_t count = graph.inputs.size();
  std::vector<std::optional<RaggedInput>> ragged;
  std::vector<bool> divided(count, false);
  for (size_t i = 0; i < count; ++i) {
    ragged.push_back(samples.front().maker.ragged(i));
    const auto agrees = [&](const Sample& sample) {
      return sample.maker.ragged(i) == ragged[i];
    };
    if (!std::all_of(samples.begin(), samples.end(), agrees)) {
      // Numbers that are lengths or offsets in one sample alone are that by
      // chance. Offsets of one sample that fit all samples are offsets.
      ragged[i].reset();
      for (const Sample& sample : samples) {
        const std::optional<RaggedInput>& found = sample.maker.ragged(i);
        if (found && found->is_offsets && found->lists.empty() &&
            std::all_of(samples.begin(), samples.end(), [&](const Sample& s) {
              return AreOffsetsOf(s.tensors[i].view(),
                                  s.tensors[found->ids].view());
            })) {
          ragged[i] = found;
        }
      }
    }
    if (!ragged[i]) continue;
    divided[ragged[i]->ids] = true;
    for (const size_t list : ragged[i]->lists) divided[list] = true;
  }
  const SymExpr entries = SymExpr::Symbol(graph.batch_symbol) + SymExpr(1);
  for (size_t i = 0; i < count; ++i) {
    const Value& offsets = graph.value(graph.inputs[i]);
    if (ragged[i] || offsets.shape.size() != 1 ||
        !(offsets.shape[0] == entries)) {
      continue;
    }
    std::map<std::string, size_t> rows;  // an input by its size
    for (size_t j = 0; j < count; ++j) {
      const Value& other = graph.value(graph.inputs[j]);
      if (divided[j] || other.shape.empty()) continue;
      const auto size = other.shape[0].symbol();
      if (size && *size != graph.batch_symbol &&
          std::all_of(samples.begin(), samples.end(), [&](const Sample& s) {
            return AreOffsetsOf(s.tensors[i].view(), s.tensors[j].view());
          })) {
        rows.emplace(*size, j);
      }
    }
    if (rows.size() != 1) continue;
    ragged[i] = RaggedInput{.ids = rows.begin()->second,
                            .is_offsets = true,
                            .include_last_offset = true};
  }
  return ragged;
}

// Average numbers per item over all samples, rounded, for the names in shapes.
std::map<std::string, int64_t> SizesOf(const Graph& graph,
                                       const std::vector<Sample>& samples) {
  const std::map<std::string, int64_t> rows = RowSymbols(graph);
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
      for (const Sample& sample : samples) {
        // A symbol of rows counts those of all items together, another one
        // holds for each sample.
        total += static_cast<double>(sample.tensors[i].dims()[d]);
        count += rows.contains(*symbol)
                     ? static_cast<double>(sample.picker->rows())
                     : 1;
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
  std::vector<Sample> prepared;
  for (std::vector<base::Tensor>& tensors : samples) {
    std::vector<models::NamedTensor> named;
    for (size_t i = 0; i < tensors.size(); ++i) {
      named.push_back({graph.value(graph.inputs[i]).name, tensors[i].view()});
    }
    Sample& sample = prepared.emplace_back();
    REFRACT_ASSIGN_OR_RETURN(sample.maker,
                             models::ProbeMaker::Create(graph, named));
    sample.tensors = std::move(tensors);
  }
  const auto ragged = FindOffsets(graph, prepared);
  for (Sample& sample : prepared) {
    auto picker = models::RowPicker::Create(graph, sample.maker, ragged);
    const absl::Status status =
        picker.ok() ? picker->CheckBags(graph) : picker.status();
    if (!status.ok()) {
      return base::Annotate(
          status, absl::StrCat("file ", &sample - prepared.data() + 1));
    }
    sample.picker = *std::move(picker);
  }
  std::map<std::string, int64_t> sizes = SizesOf(graph, prepared);
  return std::make_unique<Sampled>(std::move(prepared), std::move(sizes), seed);
}

}  // namespace refract::partitioner
