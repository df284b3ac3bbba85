#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/shapes/infer.h"
#include "models/shapes/interpreter.h"
#include "models/shapes/probe.h"
#include "models/shapes/row_picker.h"

namespace refract::models {
namespace {

// Kernels round differently for one row and for many; a specialised graph is
// wrong by far more.
constexpr double kRelative = 1e-3;
constexpr double kAbsolute = 1e-4;

bool Close(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::fabs(a - b) <= kAbsolute + kRelative * std::fabs(b);
}

// Compares row 0 of two tensors; `a` has `a_rows` and `b` has `b_rows`. Tensors
// without rows have nothing to compare.
bool SameFirstRow(const base::Tensor& a, int64_t a_rows, const base::Tensor& b,
                  int64_t b_rows) {
  if (b.dims().empty() || b.dims()[0] != b_rows) return true;
  // A constant with as many entries as one of the batches has rows.
  if (a_rows != b_rows && a.dims() == b.dims()) return true;
  if (a.dims().size() != b.dims().size() || a.dims()[0] != a_rows ||
      a.bytes() * b_rows != b.bytes() * a_rows) {
    return false;
  }
  const size_t bytes = a.bytes() / a_rows;
  if (a.dtype() == base::DType::kFloat32) {
    for (size_t i = 0; i < bytes / sizeof(float); ++i) {
      if (!Close(a.view().as<float>()[i], b.view().as<float>()[i])) {
        return false;
      }
    }
    return true;
  }
  if (a.dtype() == base::DType::kFloat64) {
    for (size_t i = 0; i < bytes / sizeof(double); ++i) {
      if (!Close(a.view().as<double>()[i], b.view().as<double>()[i])) {
        return false;
      }
    }
    return true;
  }
  // Half floats round at about kRelative; fp32 models would show such defects.
  if (base::IsFloatingPoint(a.dtype())) return true;
  return std::memcmp(a.data(), b.data(), bytes) == 0;
}

bool SameFirstRows(const InterpreterRun& a, int64_t a_rows,
                   const InterpreterRun& b, int64_t b_rows) {
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    if (!SameFirstRow(a.outputs[i], a_rows, b.outputs[i], b_rows)) return false;
  }
  return true;
}

absl::Status RunRows(const Interpreter& interpreter, const RowPicker& picker,
                     const std::vector<int64_t>& rows, InterpreterRun& run,
                     std::vector<base::Tensor>* made = nullptr) {
  REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs, picker.Pick(rows));
  std::vector<base::TensorView> views;
  for (const base::Tensor& input : inputs) views.push_back(input.view());
  const absl::Status status = interpreter.Run(views, run);
  if (made != nullptr) *made = std::move(inputs);
  return status;
}

}  // namespace

absl::Status CheckRows(absl::Span<const NamedTensor> sample,
                       const WeightStore& weights, Graph& graph,
                       std::vector<std::string>& notes) {
  if (graph.batch_symbol.empty()) return absl::OkStatus();
  REFRACT_ASSIGN_OR_RETURN(const ProbeMaker maker,
                           ProbeMaker::Create(graph, sample));
  const auto picker = RowPicker::Create(graph, maker);
  if (absl::IsUnimplemented(picker.status())) {
    notes.push_back(
        absl::StrCat("a batch of 1 was not compared with larger batches: ",
                     picker.status().message()));
    return absl::OkStatus();
  }
  if (!picker.ok()) return picker.status();
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<const Interpreter> interpreter,
                           Interpreter::Create(graph, weights));
  if (!picker->CanPick({0})) {
    notes.push_back(
        "a batch of 1 was not compared with larger batches: the bags of the "
        "sample's first row have different numbers of ids, which fit into no "
        "matrix");
    return absl::OkStatus();
  }
  InterpreterRun two;
  InterpreterRun three;
  absl::Status tried = RunRows(*interpreter, *picker, {0, 0}, two);
  if (tried.ok()) tried = RunRows(*interpreter, *picker, {0, 0, 0}, three);
  // Row 0 beside three other rows of the sample: enough to notice a mean or
  // softmax over the batch, few enough for an import.
  std::vector<InterpreterRun> beside;
  for (int64_t row = 1; row < std::min<int64_t>(picker->rows(), 4); ++row) {
    if (!tried.ok() || !picker->CanPick({0, row})) continue;
    beside.emplace_back();
    tried = RunRows(*interpreter, *picker, {0, row}, beside.back());
  }
  if (!tried.ok()) {
    // The sizes run, as the exporter or the probes have proved: rows were not
    // separated correctly. Or the model needs more than two rows.
    notes.push_back(
        absl::StrCat("a batch of 1 was not compared with larger batches: ",
                     tried.message()));
    return absl::OkStatus();
  }
  // A sum over the batch grows with it: then one row rightly differs from two.
  bool mixes = !SameFirstRows(two, 2, three, 3);
  for (const InterpreterRun& run : beside) {
    mixes |= !SameFirstRows(two, 2, run, 2);
  }
  if (mixes) {
    graph.rows = {.use = RowUse::kTogether,
                  .why =
                      "the sample's rows get other results beside other rows, "
                      "so rows depend on each other"};
  }
  if (graph.min_batch > 2) return absl::OkStatus();
  InterpreterRun one;
  std::vector<base::Tensor> single;
  const absl::Status status = RunRows(*interpreter, *picker, {0}, one, &single);
  std::string problem;
  if (!status.ok()) {
    problem = std::string(status.message());
  } else if (!SameFirstRows(one, 1, two, 2) && !mixes) {
    problem =
        "a row alone gets another result than in a batch of two equal rows";
  }
  if (problem.empty()) picker->LowerLimits(single, graph);
  if (!problem.empty()) {
    graph.min_batch = 2;
    notes.push_back(absl::StrCat("requests need 2 rows or more: ", problem));
  } else if (graph.min_batch == 2) {
    graph.min_batch = 1;
    notes.push_back(
        "the export requires a batch of 2 or more, but the graph gives the "
        "same results at a batch of 1, so it is served");
  }
  return absl::OkStatus();
}

}  // namespace refract::models
