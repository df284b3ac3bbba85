#include "tools/import/golden.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/requests/golden.h"
#include "models/repository/requests/request_files.h"
#include "models/rows/row_dependence.h"
#include "models/shapes/specialised.h"
#include "runtime/answers_apart.h"
#include "runtime/batch_padding.h"
#include "runtime/compile/batch_layout.h"
#include "tools/run/reference.h"

namespace refract::tools {
namespace {

using models::GoldenRequest;
using models::Graph;

// Largest tables that PyTorch decodes for the sample: it holds tables of halves
// and quantized rows as float32. For larger tables --expect takes answers from
// the machine on which the model was made.
constexpr uint64_t kMostDecodedBytes = uint64_t{1} << 30;
// Constants below this number are part of many models: "x / 2".
constexpr int64_t kTellingRows = 3;

size_t TensorBytes(absl::Span<const base::Tensor> tensors) {
  size_t bytes = 0;
  for (const base::Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

absl::StatusOr<std::vector<base::Tensor>> CopiesOf(
    absl::Span<const base::TensorView> views) {
  std::vector<base::Tensor> copies;
  for (const base::TensorView& view : views) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor copy, base::Tensor::CopyOf(view));
    copies.push_back(std::move(copy));
  }
  return copies;
}

// Numbers of rows of the golden requests: the sample, the fewest rows that the
// model takes, and half of the sample; fewer rows if the sample is large. If
// rows are not independent, the sample alone.
absl::StatusOr<std::vector<GoldenRequest>> RequestsOf(
    absl::Span<const base::Tensor> sample, const Graph& graph) {
  const std::vector<base::TensorView> views = models::ViewsOf(sample);
  const runtime::BatchLayout layout(graph, runtime::Part::Whole(graph),
                                    models::RowDependenceOf(graph));
  const std::optional<int64_t> rows =
      layout.why_not().empty() ? layout.Rows(views) : std::nullopt;
  const size_t bytes = TensorBytes(sample);
  std::vector<GoldenRequest> requests;
  if (!rows.has_value() || *rows < 1) {
    if (bytes > kMostGoldenBytes) return requests;
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs, CopiesOf(views));
    requests.push_back({.inputs = std::move(inputs)});
    return requests;
  }
  // Golden requests are kept with the version and answered by every node at
  // load, so their size is bounded. A sample that is too large is cut to as many
  // rows as fit.
  const double share = static_cast<double>(kMostGoldenBytes) /
                       static_cast<double>(std::max<size_t>(bytes, 1));
  const int64_t least = std::max<int64_t>(graph.min_batch, 1);
  const int64_t most =
      share >= 1 ? *rows
                 : static_cast<int64_t>(share * static_cast<double>(*rows));
  std::vector<int64_t> counts;
  // Several sizes: a value that the file fixes to the sample's size shows only
  // in an answer of another size.
  for (const int64_t count : {most, least, (most + 1) / 2}) {
    const bool known =
        std::find(counts.begin(), counts.end(), count) != counts.end();
    if (count >= least && count <= most && !known) counts.push_back(count);
  }
  runtime::RowBuffers buffers;
  for (const int64_t count : counts) {
    REFRACT_ASSIGN_OR_RETURN(const absl::Span<const base::TensorView> slice,
                             layout.Slice(views, 0, count, buffers));
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs, CopiesOf(slice));
    // Rows may differ in length.
    if (TensorBytes(inputs) > kMostGoldenBytes) continue;
    requests.push_back({.inputs = std::move(inputs)});
  }
  return requests;
}

// Bytes that PyTorch takes for tables that are not float32 on disk.
uint64_t DecodedBytes(const models::WeightTable& weights) {
  uint64_t bytes = 0;
  for (const models::WeightEntry& entry : weights.entries) {
    if (!entry.rows.has_value()) continue;
    uint64_t size = sizeof(float);
    for (const int64_t extent : entry.sizes) {
      size *= static_cast<uint64_t>(extent);
    }
    bytes += size;
  }
  return bytes;
}

// Fills the outputs of `requests` that PyTorch answers. Returns the first
// error.
absl::Status AskPyTorch(const GoldenOptions& options, const Graph& graph,
                        std::vector<GoldenRequest>& requests) {
  ReferenceRun run{.model_file = options.model_file,
                   .tables_dir = options.tables_dir,
                   .op_libraries = options.op_libraries};
  for (size_t r = 0; r < requests.size(); ++r) {
    run.inputs.push_back(absl::StrCat(options.scratch, "/", r, ".x"));
    run.outputs.push_back(absl::StrCat(options.scratch, "/", r, ".y"));
    std::vector<std::pair<std::string, base::TensorView>> tensors;
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      tensors.emplace_back(graph.value(graph.inputs[i]).name,
                           requests[r].inputs[i].view());
    }
    REFRACT_RETURN_IF_ERROR(models::WriteSafetensors(run.inputs[r], tensors));
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<absl::Status> ran,
                           RunReference(run));
  absl::Status first_error;
  for (size_t r = 0; r < requests.size(); ++r) {
    if (!ran[r].ok()) {
      if (first_error.ok()) first_error = ran[r];
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const models::SafetensorsFile file,
                             models::SafetensorsFile::Open(run.outputs[r]));
    for (const std::string& name : graph.output_names) {
      // An output without an entry stays of unknown type: PyTorch's answer for
      // it is not recorded, and it is not compared.
      base::Tensor& output = requests[r].outputs.emplace_back();
      const models::SafetensorsEntry* const entry = file.Find(name);
      if (entry == nullptr) continue;
      REFRACT_ASSIGN_OR_RETURN(output, base::Tensor::CopyOf(file.View(*entry)));
    }
  }
  return first_error;
}

// Records the answers of PyTorch to the sample. A note says why a request has
// no recorded answer.
absl::Status Record(const GoldenOptions& options,
                    absl::Span<const base::Tensor> sample,
                    models::ImportedModel& model,
                    std::vector<GoldenRequest>& golden) {
  const auto note = [&](const auto&... why) {
    model.notes.push_back(absl::StrCat(
        "no answers of PyTorch are recorded for nodes to be checked with: ",
        why...));
  };
  if (DecodedBytes(model.weights) > kMostDecodedBytes) {
    note("PyTorch would hold the tables as float32, more than ",
         kMostDecodedBytes >> 20, " MiB; give --expect FILE");
    return absl::OkStatus();
  }
  REFRACT_ASSIGN_OR_RETURN(std::vector<GoldenRequest> requests,
                           RequestsOf(sample, model.graph));
  if (requests.empty()) {
    note("the sample is larger than ", kMostGoldenBytes >> 10,
         " KiB and cannot be cut; give a smaller request with --expect FILE");
    return absl::OkStatus();
  }
  const absl::Status asked = AskPyTorch(options, model.graph, requests);
  std::erase_if(requests, [](const GoldenRequest& request) {
    return TensorBytes(request.outputs) > kMostGoldenBytes ||
           std::none_of(request.outputs.begin(), request.outputs.end(),
                        [](const base::Tensor& output) {
                          return output.dtype() != base::DType::kUnknown;
                        });
  });
  // PyTorch answered the sample and refused fewer rows: the answers that it
  // gave are recorded.
  if (requests.empty()) {
    note(asked.ok() ? "the answers are too large; give --expect FILE"
                    : asked.message());
  }
  for (GoldenRequest& request : requests) {
    golden.push_back(std::move(request));
  }
  return absl::OkStatus();
}

// Makes `golden` a file of the version.
absl::Status Keep(const GoldenOptions& options,
                  std::vector<GoldenRequest>& golden,
                  models::ImportedModel& model) {
  if (golden.empty()) return absl::OkStatus();
  const std::string& scratch = options.scratch;
  // PyTorch was asked with row numbers; nodes are asked with ids.
  for (GoldenRequest& request : golden) {
    if (options.ids == nullptr || options.ids->empty()) break;
    REFRACT_RETURN_IF_ERROR(models::RowNumbersToIds(
        model.graph, *options.ids, absl::MakeSpan(request.inputs)));
  }
  // Joins the files of the version, which import copies into the repository
  // with their digests.
  const std::string path = absl::StrCat(scratch, "/", models::kGoldenFile);
  REFRACT_RETURN_IF_ERROR(models::WriteGolden(path, model.graph, golden));
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    return absl::InternalError(absl::StrCat(path, ": ", error.message()));
  }
  model.weights.files.push_back({path, bytes, base::Digest{}});
  return absl::OkStatus();
}

absl::Status Verify(const GoldenRequest& request, const Graph& graph,
                    runtime::RequestRunner& runner) {
  auto ran = runner.Run(models::ViewsOf(request.inputs));
  if (!ran.ok()) return ran.status();
  return runtime::CompareWithRecorded(graph, models::ViewsOf(*ran),
                                      models::ViewsOf(request.outputs),
                                      runtime::Tolerance());
}

// "batches of 33, 1"
std::string BatchesText(const Graph& graph,
                        absl::Span<const GoldenRequest> requests) {
  std::vector<std::string> rows;
  for (const GoldenRequest& request : requests) {
    rows.push_back(absl::StrCat(RowsOf(graph, request.inputs).value_or(1)));
  }
  return absl::StrCat("batches of ", absl::StrJoin(rows, ", "));
}

// Operands of arithmetic; not sizes, dimensions and options.
bool IsOperand(absl::string_view name) {
  static const auto& names = *new absl::flat_hash_set<absl::string_view>{
      "self",       "other", "alpha", "beta", "value",
      "fill_value", "input", "min",   "max",  "exponent"};
  return names.contains(name);
}

// The value of a weight of one element.
std::optional<double> NumberOf(const models::WeightView& weight) {
  if (weight.rows.has_value() || weight.data == nullptr ||
      !std::all_of(weight.sizes.begin(), weight.sizes.end(),
                   [](int64_t extent) { return extent == 1; })) {
    return std::nullopt;
  }
  const auto read = [&weight](auto value) {
    std::memcpy(&value, weight.data, sizeof(value));
    return static_cast<double>(value);
  };
  switch (weight.dtype) {
    case base::DType::kFloat32:
      return read(float());
    case base::DType::kFloat64:
      return read(double());
    case base::DType::kInt32:
      return read(int32_t());
    case base::DType::kInt64:
      return read(int64_t());
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<int64_t> RowsOf(const Graph& graph,
                              absl::Span<const base::Tensor> inputs) {
  if (graph.batch_symbol.empty()) return std::nullopt;
  const models::SymExpr batch = models::SymExpr::Symbol(graph.batch_symbol);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const models::Value& input = graph.value(graph.inputs[i]);
    for (size_t d = 0; d < input.shape.size(); ++d) {
      // The first dimension that is the batch symbol alone, not an expression
      // of it.
      if (input.shape[d].ToString() == batch.ToString()) {
        return inputs[i].dims()[d];
      }
    }
  }
  return std::nullopt;
}

std::vector<std::string> ConstantsLikeRows(const Graph& graph,
                                           const models::WeightStore& weights,
                                           int64_t rows) {
  std::vector<std::string> notes;
  if (rows < kTellingRows) return notes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Node& node = graph.nodes[n];
    for (const models::NamedArgument& arg : node.args) {
      if (!IsOperand(arg.name)) continue;
      std::optional<double> number;
      if (const auto* i = std::get_if<int64_t>(&arg.value)) {
        number = static_cast<double>(*i);
      } else if (const auto* f = std::get_if<double>(&arg.value)) {
        number = *f;
      } else if (const auto* ref = std::get_if<models::ValueRef>(&arg.value)) {
        const models::Value& value = graph.value(ref->id);
        if (!value.is_weight()) continue;
        const auto weight = weights.GetAsStored(value.weight);
        if (weight.ok()) number = NumberOf(*weight);
      }
      if (number != static_cast<double>(rows)) continue;
      notes.push_back(absl::StrCat(
          models::DescribeNode(graph, static_cast<models::NodeId>(n)),
          ": the constant ", rows, " (argument ", arg.name,
          ") equals the rows of the sample. If the model computed it from the "
          "size of the batch, answers for other sizes are wrong: check it with "
          "answers for another size, --expect FILE"));
      // One note per node is enough.
      break;
    }
  }
  return notes;
}

absl::Status AddGolden(const GoldenOptions& options,
                       absl::Span<const base::Tensor> sample,
                       runtime::RequestRunner& runner,
                       models::ImportedModel& model) {
  std::vector<GoldenRequest> golden;
  // Answers that the user gives come first. A difference ends the import: the
  // version would serve other scores than the original model.
  for (const std::string& file : options.expected) {
    REFRACT_ASSIGN_OR_RETURN(GoldenRequest request,
                             models::ReadExpected(file, model.graph));
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(Verify(request, model.graph, runner), file));
    if (std::max(TensorBytes(request.inputs), TensorBytes(request.outputs)) >
        kMostGoldenBytes) {
      model.notes.push_back(absl::StrCat(
          file, ": agrees, and is not kept for nodes: it is larger than ",
          kMostGoldenBytes >> 10, " KiB"));
      continue;
    }
    golden.push_back(std::move(request));
  }
  const std::optional<int64_t> first =
      golden.empty() ? std::nullopt : RowsOf(model.graph, golden[0].inputs);
  const bool one_size =
      first.has_value() &&
      std::all_of(golden.begin(), golden.end(),
                  [&](const GoldenRequest& request) {
                    return RowsOf(model.graph, request.inputs) == first;
                  });
  if (one_size) {
    model.notes.push_back(
        absl::StrCat("--expect: all answers are for ", *first,
                     " rows; a request of another size would show values that "
                     "the model file fixes to this size"));
  }
  if (!options.record || sample.empty()) {
    return Keep(options, golden, model);
  }
  const size_t expected = golden.size();
  REFRACT_RETURN_IF_ERROR(Record(options, sample, model, golden));
  const auto recorded = absl::MakeConstSpan(golden).subspan(expected);
  for (const GoldenRequest& request : recorded) {
    REFRACT_RETURN_IF_ERROR(base::Annotate(
        Verify(request, model.graph, runner),
        absl::StrCat(options.model_file, ": PyTorch answers a batch of ",
                     RowsOf(model.graph, request.inputs).value_or(1),
                     " differently")));
  }
  if (!recorded.empty()) {
    model.notes.push_back(absl::StrCat(
        "answers of PyTorch are recorded for nodes to be checked with: ",
        BatchesText(model.graph, recorded)));
  }
  return Keep(options, golden, model);
}

}  // namespace refract::tools
