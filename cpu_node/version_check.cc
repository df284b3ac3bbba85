#include "cpu_node/version_check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/integers.h"
#include "base/process/mapped_file.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "cpu_node/served_model.h"
#include "models/graph/op_traits.h"
#include "models/repository/requests/golden.h"
#include "models/repository/requests/request_files.h"
#include "runtime/answers_apart.h"
#include "runtime/batch_padding.h"
#include "runtime/program.h"
#include "runtime/tensor_elements.h"

namespace refract::cpu_node {
namespace {

// Seed of each warm-up request's numbers: equal after a restart.
constexpr uint32_t kSeed = 1;

// Text of the shapes of a request, in an error. A request may have hundreds of
// inputs, and the reason that follows must be readable.
constexpr size_t kMaxShapesBytes = 512;

// Fills in numbers from 0 to 1, or ids of [0, rows). Other integers are 0 or 1.
void FillRandom(base::Tensor& tensor, int64_t rows, std::mt19937& random) {
  if (base::IsFloatingPoint(tensor.dtype())) {
    runtime::FillWith(tensor, [&](size_t) {
      return static_cast<float>(random() % 1025) / 1024;
    });
    return;
  }
  const bool are_ids = rows > 0 && base::IsInt32OrInt64(tensor.dtype());
  const auto bound = static_cast<uint64_t>(are_ids ? rows : 2);
  runtime::FillWith(tensor, [&](size_t) { return random() % bound; });
}

// Fills in offsets of bags of equal size: row `row` of a matrix, or all if it
// is negative.
void FillOffsets(base::Tensor& offsets, int64_t row, bool include_last,
                 int64_t entries) {
  if (!base::IsInt32OrInt64(offsets.dtype())) return;
  const int64_t count =
      row < 0 ? offsets.view().num_elements() : offsets.dims().back();
  const int64_t first = std::max<int64_t>(row, 0) * count;
  const int64_t bags = std::max<int64_t>(1, count - (include_last ? 1 : 0));
  for (int64_t i = 0; i < count; ++i) {
    base::SetInt(offsets, first + i, entries * std::min(i, bags) / bags);
  }
}

// Fills in lengths of bags that hold `entries` in all, as equal as can be.
void FillLengths(base::Tensor& lengths, int64_t entries) {
  if (!base::IsInt32OrInt64(lengths.dtype())) return;
  const int64_t bags = lengths.view().num_elements();
  for (int64_t i = 0; i < bags; ++i) {
    base::SetInt(lengths, i, entries / bags + (i < entries % bags ? 1 : 0));
  }
}

absl::Status ReadRaw(const std::string& path, base::Tensor& tensor) {
  REFRACT_ASSIGN_OR_RETURN(const auto file, base::MappedFile::Open(path));
  if (file->bytes().size() != tensor.bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file->bytes().size(),
                     " bytes, the input has ", tensor.bytes()));
  }
  if (tensor.bytes() > 0) {
    std::memcpy(tensor.data(), file->bytes().data(), tensor.bytes());
  }
  return absl::OkStatus();
}

// `folder`: has the input data files.
absl::StatusOr<std::vector<base::Tensor>> InputsOf(
    const models::WarmUpRequest& request, const models::Graph& graph,
    const std::string& folder) {
  std::mt19937 random(kSeed);
  const std::vector<models::IdInput> uses = models::FindIdInputs(graph);
  std::vector<base::Tensor> inputs;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const models::WarmUpRequest::Input& given = request.inputs[i];
    const models::Value& value = graph.value(graph.inputs[i]);
    const bool is_tensor = value.kind == models::ValueKind::kTensor;
    REFRACT_ASSIGN_OR_RETURN(
        base::Tensor tensor,
        base::Tensor::Allocate(is_tensor ? value.dtype : base::DType::kInt64,
                               given.dims));
    if (tensor.bytes() > 0) std::memset(tensor.data(), 0, tensor.bytes());
    if (given.data == models::WarmUpRequest::Data::kFile) {
      REFRACT_RETURN_IF_ERROR(
          ReadRaw(absl::StrCat(folder, "/", given.file), tensor));
    } else if (given.data == models::WarmUpRequest::Data::kRandom) {
      // An input may select rows of several tables: its ids must lie in the
      // smallest table.
      int64_t rows = 0;
      for (const models::IdInput& use : uses) {
        if (use.input != graph.inputs[i] || use.is_offsets) continue;
        rows = rows == 0 ? use.rows : std::min(rows, use.rows);
      }
      FillRandom(tensor, rows, random);
    }
    inputs.push_back(std::move(tensor));
  }
  // Offsets and lengths after ids: they follow from the number of ids.
  for (const models::IdInput& use : uses) {
    const auto index = [&](models::ValueId id) {
      return static_cast<size_t>(
          std::find(graph.inputs.begin(), graph.inputs.end(), id) -
          graph.inputs.begin());
    };
    if (!use.is_offsets) {
      const size_t lengths = index(use.lengths);
      if (lengths < inputs.size() && request.inputs[lengths].data ==
                                         models::WarmUpRequest::Data::kRandom) {
        FillLengths(inputs[lengths],
                    inputs[index(use.input)].view().num_elements());
      }
      continue;
    }
    const size_t offsets = index(use.input);
    if (request.inputs[offsets].data != models::WarmUpRequest::Data::kRandom) {
      continue;
    }
    // Offsets in a row divide the ids of a list, or of the same row.
    const size_t ids = index(use.ids);
    int64_t entries = 0;
    if (use.row >= 0 && (inputs[offsets].dims().size() != 2 ||
                         inputs[offsets].dims()[0] <= use.row)) {
      continue;  // dims of another shape, which the model refuses
    }
    if (ids < inputs.size() && !inputs[ids].dims().empty()) {
      entries = use.row < 0 ? inputs[ids].view().num_elements()
                            : inputs[ids].dims().back();
    }
    FillOffsets(inputs[offsets], use.row, use.include_last_offset, entries);
  }
  return inputs;
}

}  // namespace

absl::StatusOr<std::vector<CheckRequest>> CheckRequestsOf(
    const models::LoadedModel& model, const models::CheckSettings& settings) {
  std::vector<CheckRequest> requests;
  if (model.folder.empty()) return requests;  // a test made the model
  REFRACT_ASSIGN_OR_RETURN(
      std::vector<models::GoldenRequest> golden,
      models::ReadGolden(absl::StrCat(model.folder, "/", models::kGoldenFile),
                         model.graph));
  for (models::GoldenRequest& request : golden) {
    requests.push_back(
        {.label = absl::StrCat("golden request ", requests.size() + 1),
         .inputs = std::move(request.inputs),
         .outputs = std::move(request.outputs)});
  }
  const std::string folder = absl::StrCat(
      std::filesystem::path(model.folder).parent_path().string(), "/warmup");
  for (const models::WarmUpRequest& request : settings.warm_up) {
    const std::string label = absl::StrCat("model_warmup '", request.name, "'");
    auto inputs = InputsOf(request, model.graph, folder);
    if (!inputs.ok()) return base::Annotate(inputs.status(), label);
    requests.push_back(
        {.label = label, .times = request.count, .inputs = *std::move(inputs)});
  }
  return requests;
}

absl::Status CheckAnswers(const ServedModel& model,
                          absl::FunctionRef<bool()> compare,
                          ExecuteForCheck execute) {
  const models::Graph& graph = model.model().graph;
  const auto& plan = model.model().plan;
  const runtime::Tolerance tolerance =
      runtime::ToleranceOf(model.model().config,
                           model.split() && plan.has_value() ? &*plan : nullptr,
                           model.check_settings().golden_tolerance);
  runtime::PaddedBatch padded;
  for (const CheckRequest& request : model.checks()) {
    const std::vector<base::TensorView> inputs =
        models::ViewsOf(request.inputs);
    const absl::Status status = base::WithinMemory([&]() -> absl::Status {
      for (int i = 0; i < request.times; ++i) {
        // As in Engine: small batches get rows before the first part and lose
        // them after the last.
        REFRACT_RETURN_IF_ERROR(model.padding().Pad(inputs, padded));
        REFRACT_ASSIGN_OR_RETURN(const absl::Span<base::TensorView> outputs,
                                 execute(padded.inputs()));
        model.padding().Trim(padded, outputs);
        // A warm-up request has no recorded answers: it only must not fail.
        if (request.outputs.empty() || !compare()) continue;
        REFRACT_RETURN_IF_ERROR(runtime::CompareWithRecorded(
            graph, outputs, models::ViewsOf(request.outputs), tolerance));
      }
      return absl::OkStatus();
    });
    if (status.ok()) continue;
    std::string shapes;
    for (size_t i = 0; i < inputs.size(); ++i) {
      absl::StrAppend(&shapes, i == 0 ? "" : ", ",
                      graph.value(graph.inputs[i]).name,
                      base::DimsToString(inputs[i].dims));
    }
    return base::Annotate(
        status, absl::StrCat(request.label, " (",
                             base::Shorten(shapes, kMaxShapesBytes), ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckWhole(const ServedModel& model) {
  const CompiledPart& part = model.whole();
  runtime::ContextPool::Lease context = part.Acquire();
  std::vector<base::TensorView> inputs;
  std::vector<base::TensorView> outputs;
  return CheckAnswers(model, /*compare=*/[] { return true; },
                      [&](absl::Span<const base::TensorView> padded)
                          -> absl::StatusOr<absl::Span<base::TensorView>> {
                        model.WholeInputs(padded, inputs);
                        REFRACT_RETURN_IF_ERROR(
                            part.program().Run(inputs, {}, *context, outputs));
                        return absl::MakeSpan(outputs);
                      });
}

}  // namespace refract::cpu_node
