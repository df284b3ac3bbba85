#include "gpu_node/model/warm_up.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/integers.h"
#include "base/status_macros.h"
#include "gpu_node/model/device_model.h"
#include "models/repository/requests/request_files.h"
#include "runtime/answers_apart.h"
#include "runtime/compile/bag_inputs.h"
#include "runtime/tensor_elements.h"

namespace refract::gpu_node {
namespace {

using base::Tensor;
using base::TensorView;
using models::ViewsOf;

constexpr int kRunsEach = 3;

// Rows of VerifyRows()'s two requests, beyond the least number of rows.
constexpr int64_t kMoreRows[] = {2, 5};  // added to the least

// Mean bag entries per row.
constexpr int64_t kEntriesPerRow = 2;

// Values of all symbols for a request of `rows` rows: the batch is `rows`; a
// size in `sizes` has its value there; bags have two entries per row; any other
// size is the smallest that its symbol allows, at least 1.
models::SymbolBindings BindingsFor(const models::Graph& graph,
                                   const runtime::Part& part,
                                   const runtime::FoundBags& bags, int64_t rows,
                                   const models::SymbolBindings& sizes) {
  models::SymbolBindings bindings;
  const auto learn = [&](const models::SymExpr& expr) {
    for (const std::string& symbol : expr.Symbols()) {
      int64_t value = 1;
      for (const models::SymbolRange& range : graph.symbols) {
        if (range.symbol == symbol) value = std::max(value, range.min);
      }
      const auto given = sizes.find(symbol);
      if (given != sizes.end()) value = given->second;
      bindings[symbol] = symbol == graph.batch_symbol ? rows : value;
    }
  };
  for (const models::ValueId id : part.inputs) {
    for (const models::SymExpr& size : graph.value(id).shape) learn(size);
    learn(graph.value(id).sym_value);
  }
  for (const runtime::BagInputs& bag : bags.bags) {
    for (const size_t i : bag.entries) {
      for (const std::string& symbol :
           graph.value(part.inputs[i]).shape[0].Symbols()) {
        if (sizes.contains(symbol)) continue;
        bindings[symbol] = std::max(bindings[symbol], kEntriesPerRow * rows);
        for (const models::SymbolRange& range : graph.symbols) {
          if (range.symbol != symbol) continue;
          bindings[symbol] = std::min(bindings[symbol], range.max);
        }
      }
    }
  }
  return bindings;
}

// Fills in offsets of consecutive bags, some of them empty: each bag begins up
// to two entries before its even position, but not before the previous bag.
void FillOffsets(Tensor& offsets, bool include_last, int64_t entries,
                 std::mt19937& random) {
  const int64_t rows = offsets.view().num_elements() - include_last;
  int64_t last = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t even = entries / rows * row;
    const int64_t jitter = row > 0 ? static_cast<int64_t>(random() % 3) : 0;
    last = std::max(last, even - jitter);
    base::SetInt(offsets, row, last);
  }
  if (include_last) base::SetInt(offsets, rows, entries);
}

// Fills in offsets whose bags are not rows.
void FillOtherOffsets(const models::Graph& graph, const runtime::Part& part,
                      std::vector<Tensor>& inputs, std::mt19937& random) {
  const auto input = [&](const models::Node& node,
                         const char* name) -> Tensor* {
    const auto found =
        std::find(part.inputs.begin(), part.inputs.end(), node.ValueArg(name));
    return found == part.inputs.end()
               ? nullptr
               : &inputs[static_cast<size_t>(found - part.inputs.begin())];
  };
  for (const models::NodeId n : part.nodes) {
    const models::Node& node = graph.nodes[n];
    if (!runtime::IsBag(node)) continue;
    Tensor* const offsets = input(node, "offsets");
    const models::Argument* const last = node.FindArg("include_last_offset");
    const auto* const flag =
        last == nullptr ? nullptr : std::get_if<bool>(last);
    const bool include_last = flag != nullptr && *flag;
    if (offsets == nullptr || offsets->dims().size() != 1 ||
        !base::IsInt32OrInt64(offsets->dtype()) ||
        offsets->dims()[0] < (include_last ? 2 : 1)) {
      continue;
    }
    const Tensor* const ids = input(node, "indices");
    const bool known = ids != nullptr && ids->dims().size() == 1;
    FillOffsets(*offsets, include_last, known ? ids->dims()[0] : 0, random);
  }
}

void Fill(Tensor& tensor, int64_t least_integer, std::mt19937& random) {
  if (base::IsFloatingPoint(tensor.dtype())) {
    runtime::FillWith(tensor, [&](size_t) {
      return static_cast<float>(random() % 2048) / 1024.0f - 1.0f;
    });
    return;
  }
  const int64_t least =
      base::IsInt32OrInt64(tensor.dtype()) ? least_integer : 0;
  runtime::FillWith(tensor, [&](size_t) {
    return std::max(static_cast<int64_t>(random() % 2), least);
  });
}

absl::StatusOr<std::vector<Tensor>> RunOnce(const runtime::Program& program,
                                            runtime::RunContext& context,
                                            absl::Span<const TensorView> in) {
  std::vector<TensorView> outputs;
  const std::vector<std::byte*> nowhere(program.part().outputs.size(), nullptr);
  REFRACT_RETURN_IF_ERROR(program.Run(in, nowhere, context, outputs));
  std::vector<Tensor> copies;
  for (const TensorView& output : outputs) {
    REFRACT_ASSIGN_OR_RETURN(Tensor copy, Tensor::CopyOf(output));
    copies.push_back(std::move(copy));
  }
  return copies;
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> MakeInputs(
    const models::Graph& graph, const runtime::Part& part, int64_t rows,
    uint32_t seed, const models::SymbolBindings& sizes, int64_t least_integer) {
  std::mt19937 random(seed);
  const runtime::FoundBags bags = runtime::FindBagInputs(graph, part);
  const models::SymbolBindings bindings =
      BindingsFor(graph, part, bags, rows, sizes);
  std::vector<Tensor> inputs;
  for (const models::ValueId id : part.inputs) {
    const models::Value& value = graph.value(id);
    if (value.kind == models::ValueKind::kSymInt) {
      REFRACT_ASSIGN_OR_RETURN(const int64_t size,
                               value.sym_value.Evaluate(bindings));
      REFRACT_ASSIGN_OR_RETURN(Tensor scalar,
                               Tensor::Allocate(base::DType::kInt64, {}));
      scalar.as<int64_t>()[0] = size;
      inputs.push_back(std::move(scalar));
      continue;
    }
    if (value.kind != models::ValueKind::kTensor || !value.has_shape ||
        value.dtype == base::DType::kUnknown) {
      return absl::FailedPreconditionError(
          absl::StrCat("the shape of input '", value.name, "' is not known"));
    }
    base::Dims dims;
    for (const models::SymExpr& size : value.shape) {
      REFRACT_ASSIGN_OR_RETURN(const int64_t dim, size.Evaluate(bindings));
      dims.push_back(dim);
    }
    REFRACT_ASSIGN_OR_RETURN(Tensor tensor,
                             Tensor::Allocate(value.dtype, dims));
    Fill(tensor, least_integer, random);
    inputs.push_back(std::move(tensor));
  }
  for (const runtime::BagInputs& bag : bags.bags) {
    // Last, because offsets end with the number of entries, whose tensors exist
    // now.
    FillOffsets(inputs[bag.offsets], bag.include_last,
                inputs[bag.entries[0]].dims()[0], random);
  }
  if (!bags.why_not.empty()) FillOtherOffsets(graph, part, inputs, random);
  return inputs;
}

int64_t LeastInteger(const models::Graph& graph,
                     const runtime::Program& program) {
  const int64_t rows = std::max<int64_t>(graph.min_batch, 1);
  runtime::RunContext context(program);
  const auto takes = [&](int64_t least) {
    const auto inputs =
        MakeInputs(graph, program.part(), rows + kMoreRows[0], 1, {}, least);
    return inputs.ok() && RunOnce(program, context, ViewsOf(*inputs)).ok();
  };
  return !takes(0) && takes(1) ? 1 : 0;
}

MeasuredTimes WarmUp(const DeviceModel& model, const WarmUpOptions& options) {
  MeasuredTimes times;
  const models::Graph& graph = model.model().graph;
  const runtime::Program& program = model.program();
  if (graph.batch_symbol.empty()) return times;
  int64_t most = options.max_rows;
  for (const models::SymbolRange& range : graph.symbols) {
    if (range.symbol == graph.batch_symbol) most = std::min(most, range.max);
  }
  runtime::RunContext context(program);
  const absl::Time begin = options.clock->Now();
  int64_t rows = std::min(std::max<int64_t>(graph.min_batch, 1), most);
  while (true) {
    const auto inputs =
        MakeInputs(graph, program.part(), rows, 1, {}, model.least_integer());
    if (!inputs.ok()) return times;
    absl::Duration fastest = absl::InfiniteDuration();
    // The first run grows buffers and reads weights, and is not counted.
    for (int run = 0; run <= kRunsEach; ++run) {
      const absl::Time from = options.clock->Now();
      if (!RunOnce(program, context, ViewsOf(*inputs)).ok()) return times;
      const absl::Time to = options.clock->Now();
      if (run > 0) fastest = std::min(fastest, to - from);
      if (to - begin > options.budget) break;
    }
    // The fastest run: slower runs were disturbed by other work of the machine.
    if (fastest < absl::InfiniteDuration()) times.push_back({rows, fastest});
    const absl::Duration spent = options.clock->Now() - begin;
    // Four times the rows take about four times as long, in each run.
    if (rows >= most || fastest == absl::InfiniteDuration() ||
        spent + 4 * (kRunsEach + 1) * fastest > options.budget) {
      return times;
    }
    rows = std::min(rows > most / 4 ? most : rows * 4, most);
  }
}

absl::Status VerifyRows(const models::Graph& graph,
                        const runtime::Program& program,
                        const runtime::BatchLayout& layout,
                        int64_t least_integer, double* difference) {
  *difference = 0;
  const int64_t least = std::max<int64_t>(graph.min_batch, 1);
  const int64_t counts[] = {least + kMoreRows[0], least + kMoreRows[1]};
  // Two requests of different lengths and contents. Rows that mix would change
  // a result of one request when the other is beside it.
  std::vector<std::vector<Tensor>> requests;
  std::vector<std::vector<TensorView>> views;
  std::vector<std::vector<Tensor>> alone;
  runtime::RunContext context(program);
  for (int i = 0; i < 2; ++i) {
    REFRACT_ASSIGN_OR_RETURN(
        std::vector<Tensor> inputs,
        MakeInputs(graph, program.part(), counts[i], i + 1, {}, least_integer));
    requests.push_back(std::move(inputs));
    views.push_back(ViewsOf(requests.back()));
    if (i == 0) continue;
    // Requests are merged only if their inputs without rows are equal.
    if (layout.MergeKey(views[0]) != layout.MergeKey(views[1])) {
      for (size_t k = 0; k < views[1].size(); ++k) {
        if (layout.IsSameForAll(k)) views[1][k] = views[0][k];
      }
    }
  }
  // Runs two requests alone, then both as one batch, and compares row by row.
  for (int i = 0; i < 2; ++i) {
    REFRACT_ASSIGN_OR_RETURN(std::vector<Tensor> outputs,
                             RunOnce(program, context, views[i]));
    alone.push_back(std::move(outputs));
  }
  runtime::RowBuffers buffers;
  REFRACT_ASSIGN_OR_RETURN(const absl::Span<const TensorView> merged,
                           layout.Gather({views[0], views[1]}, buffers));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<Tensor> together,
                           RunOnce(program, context, merged));
  for (size_t k = 0; k < together.size(); ++k) {
    int64_t first = 0;
    for (int i = 0; i < 2; ++i) {
      const base::Dims& dims = together[k].dims();
      if (dims.empty() || dims[0] != counts[0] + counts[1] ||
          alone[i][k].dims().empty() || alone[i][k].dims()[0] != counts[i]) {
        return absl::FailedPreconditionError(
            absl::StrCat("output ", k, " does not have one entry per row"));
      }
      TensorView part = together[k].view();
      const runtime::RowRange range =
          runtime::RangeOfRows(part, first, counts[i]);
      part.data += range.offset;
      part.bytes = range.bytes;
      first += counts[i];
      const runtime::Apart apart = runtime::Compare(alone[i][k].view(), part);
      *difference = std::max(*difference, apart.largest);
      if (!apart.ok()) {
        return absl::FailedPreconditionError(
            absl::StrCat("rows of output ", k, " differ by ", apart.largest,
                         " when they are computed together with other rows"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::gpu_node
