#include "tools/import/import_model.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/graph/index_ranges.h"
#include "models/graph/op_traits.h"
#include "models/graph/script_region.h"
#include "models/operators/operator.h"
#include "models/passes/name_sizes.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/requests/request_files.h"
#include "models/repository/weights.h"
#include "models/rows/row_dependence.h"
#include "models/shapes/infer.h"
#include "models/table_ids.h"
#include "models/torch_export/import.h"
#include "models/torchscript/import.h"
#include "runtime/batch_padding.h"
#include "runtime/split_run.h"
#include "runtime/torch/op_library.h"
#include "tools/import/golden.h"

namespace refract::tools {
namespace {

using models::Graph;
using models::ImportedModel;
using models::Node;

// Path of the sample; empty when there is none. An export contains its shapes,
// so a file that happens to lie beside it is not read.
std::string FindSample(const ImportRequest& request, models::ArchiveKind kind) {
  if (!request.sample_file.empty()) return request.sample_file;
  if (kind == models::ArchiveKind::kTorchExport) return "";
  const std::filesystem::path beside =
      std::filesystem::path(request.model_file).parent_path() /
      "sample.safetensors";
  std::error_code error;
  return std::filesystem::exists(beside, error) ? beside.string() : "";
}

// `sample_file`: may be empty.
absl::StatusOr<ImportedModel> ReadModel(const ImportRequest& request,
                                        models::ArchiveKind kind,
                                        const std::string& sample_file) {
  const std::string& path = request.model_file;
  if (kind == models::ArchiveKind::kTorchExport) {
    if (!request.keys.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       ": an export has its keys; leave --keys out, which is "
                       "for TorchScript"));
    }
    return models::ImportTorchExport(path);
  }
  if (sample_file.empty()) {
    return models::ImportTorchScript(path, {}, request.keys);
  }
  REFRACT_ASSIGN_OR_RETURN(const models::SafetensorsFile file,
                           models::SafetensorsFile::Open(sample_file));
  std::vector<base::Tensor> copies;  // aligned, which a file's tensors are not
  std::vector<models::NamedTensor> sample;
  copies.reserve(file.entries().size());
  for (const models::SafetensorsEntry& entry : file.entries()) {
    REFRACT_ASSIGN_OR_RETURN(base::Tensor copy,
                             base::Tensor::CopyOf(file.View(entry)));
    copies.push_back(std::move(copy));
    sample.push_back({entry.name, copies.back().view()});
  }
  return models::ImportTorchScript(path, sample, request.keys);
}

absl::Status CheckOperators(ImportedModel& model) {
  std::set<std::string> unknown;
  for (const Node& node : model.graph.nodes) {
    if (models::IsRandom(node)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "operator ", node.op, " (node ", node.name,
          ") gives other results on every call; call model.eval() before the "
          "export "
          "(dropout draws in training mode), and export no sampling"));
    }
    if (models::IsRegion(node)) {
      const auto& operators = std::get<models::StringList>(
          *node.FindArg(models::kRegionOperatorsArg));
      const auto first = absl::MakeConstSpan(operators).subspan(0, 8);
      model.notes.push_back(absl::StrCat(
          "a part of the model is interpreted, on the CN (node ", node.name,
          "): ", operators.size(), " operators, ", absl::StrJoin(first, ", "),
          operators.size() > first.size() ? ", ..." : ""));
    }
    if (models::ClassOf(node.op) == models::OpClass::kUnknown) {
      unknown.insert(node.op);
    }
  }
  if (!unknown.empty()) {
    model.notes.push_back(
        absl::StrCat("operators that the partitioner does not know stay on "
                     "the CN: ",
                     absl::StrJoin(unknown, ", ")));
  }
  return absl::OkStatus();
}

// `sample`: the inputs, in the graph's order.
std::vector<models::NamedTensor> Named(const Graph& graph,
                                       absl::Span<const base::Tensor> sample) {
  std::vector<models::NamedTensor> named;
  for (size_t i = 0; i < sample.size(); ++i) {
    named.push_back({graph.value(graph.inputs[i]).name, sample[i].view()});
  }
  return named;
}

// Derives facts about the sizes of an export that the export does not state.
absl::Status LearnSizes(const models::WeightStore& weights,
                        absl::Span<const base::Tensor> sample,
                        ImportedModel& model) {
  const std::vector<models::NamedTensor> named = Named(model.graph, sample);
  models::FillShapes(weights, model.graph);
  models::TieSizes(named, model.graph, model.notes);
  return models::RelaxSmallSizes(named, weights, model.graph, model.notes);
}

// Whether the contents of operands decide the size of the results.
bool HasSizeByData(const Graph& graph, const models::Node& node) {
  const models::Operator& record = models::OperatorOf(node.op);
  if (record.Has(models::kSizeByData)) return true;
  const models::Argument* list = record.rows == models::RowRule::kIndex
                                     ? node.FindArg("indices")
                                     : nullptr;
  const auto* indices = list ? std::get_if<models::ValueList>(list) : nullptr;
  return indices != nullptr &&
         std::any_of(indices->begin(), indices->end(), [&](models::ValueId id) {
           return id != models::kNoValue &&
                  graph.value(id).dtype == base::DType::kBool;
         });
}

// Sizes of a TorchScript are fitted to the sample, also those that data decides
// (x[lengths > 0]). InferShapes() also tries other contents than the sample's,
// which a model may refuse.
void NoteFittedSizes(ImportedModel& model) {
  const Graph& graph = model.graph;
  for (const models::Node& node : graph.nodes) {
    if (!HasSizeByData(graph, node)) continue;
    const models::Value& result = graph.value(node.outputs[0]);
    if (!result.has_shape || result.shape.empty() ||
        result.shape[0].is_unknown()) {
      continue;
    }
    model.notes.push_back(absl::StrCat(
        "the data decide a size of node ", node.name, " (", node.op,
        "), which is ", result.shape[0].ToString(),
        " throughout the sample: requests where it is not are refused. Give a "
        "sample that shows it (a row that is masked out, an empty list)"));
    return;
  }
}

// Shapes of a TorchScript, inferred from runs of the model at several sizes.
absl::Status LearnFromSample(const models::WeightStore& weights,
                             absl::Span<const base::Tensor> sample,
                             ImportedModel& model) {
  const std::vector<models::NamedTensor> named = Named(model.graph, sample);
  if (model.graph.source == models::SourceFormat::kTorchScript) {
    REFRACT_RETURN_IF_ERROR(models::InferShapes(named, weights, model.graph));
    NoteFittedSizes(model);
  }
  return models::CheckRows(named, weights, model.graph, model.notes);
}

// Facts that follow from the graph, besides those that the sample gave.
void FindRows(ImportedModel& model) {
  Graph& graph = model.graph;
  const models::RowDependence found = models::FindRowDependence(graph);
  const bool seen = graph.rows.use == models::RowUse::kTogether;
  if (!seen || found.use == models::RowUse::kTogether) graph.rows = found;
  // A copied row would change the others' results. A minimum of 2 is mostly
  // PyTorch's special case of a batch of 1.
  const bool together = graph.rows.use == models::RowUse::kTogether;
  if (together && graph.min_batch == 2) graph.min_batch = 1;
  if (graph.min_batch > 1) {
    model.notes.push_back(absl::StrCat(
        "batches below ", graph.min_batch,
        runtime::SmallestBatch(graph) == 1
            ? " are padded"
            : " are refused: added rows could change the results of others"));
  }
  if (!together) return;
  model.notes.push_back(
      absl::StrCat("an item's result depends on the other items of its "
                   "request: ",
                   graph.rows.why));
}

// A model that uses LibTorch's operators alone needs none.
void RecordLibraries(Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (runtime::aten::LibraryOperatorOf(node).empty()) continue;
    graph.op_libraries = runtime::aten::LoadedOpLibraries();
    return;
  }
}

// Compiling finds operators without implementation; running finds the rest.
absl::StatusOr<std::unique_ptr<runtime::RequestRunner>> TryRun(
    const ImportedModel& model,
    std::shared_ptr<const models::WeightStore> weights,
    absl::Span<const base::Tensor> sample, const std::string& sample_file) {
  REFRACT_ASSIGN_OR_RETURN(
      std::unique_ptr<runtime::RequestRunner> runner,
      runtime::RequestRunner::Whole(model.graph, std::move(weights), {}));
  if (sample.empty()) return runner;
  absl::Status status = runner->Run(models::ViewsOf(sample)).status();
  // An error here is the fault of the file: it states shapes that its operators
  // do not keep.
  if (absl::IsInternal(status)) {
    status = absl::InvalidArgumentError(status.message());
  }
  REFRACT_RETURN_IF_ERROR(
      base::Annotate(status, absl::StrCat("with the inputs of ", sample_file)));
  return runner;
}

// Ids come last: the steps before execute the model with row numbers, as
// PyTorch does.
absl::Status GiveIds(const models::TableIds& ids,
                     absl::Span<const base::Tensor> sample,
                     const std::string& sample_file, ImportedModel& model) {
  REFRACT_RETURN_IF_ERROR(models::AttachIds(ids, model));
  REFRACT_ASSIGN_OR_RETURN(auto weights,
                           models::WeightStore::Open("", model.weights));
  // Finds operators that read a table with ids as a whole.
  REFRACT_RETURN_IF_ERROR(
      TryRun(model, std::move(weights), sample, sample_file).status());
  for (const auto& [table, entry] : ids) {
    model.notes.push_back(absl::StrCat("requests name the rows of table ",
                                       table, " by ", entry.sizes[0], " ids"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImportedModel> PrepareModel(const ImportRequest& request) {
  const std::string& path = request.model_file;
  REFRACT_ASSIGN_OR_RETURN(const models::ArchiveKind kind,
                           models::DetectArchive(path));
  const std::string sample_file = FindSample(request, kind);
  request.progress(absl::StrCat("reading ", path));
  REFRACT_ASSIGN_OR_RETURN(ImportedModel model,
                           ReadModel(request, kind, sample_file));
  REFRACT_RETURN_IF_ERROR(base::Annotate(CheckOperators(model), path));
  // In this order: names and tables first, since weights are opened by them;
  // then sizes and rows, which need runs of the model; then the trial of the
  // final graph, and the comparison with PyTorch. Errors of a step name the
  // file.
  models::NameSizes(model.graph);
  REFRACT_RETURN_IF_ERROR(
      models::BindTables({.tables_dir = request.tables_dir}, model));
  REFRACT_ASSIGN_OR_RETURN(
      const models::TableIds ids,
      models::ReadTableIds({.tables_dir = request.tables_dir}, model));
  REFRACT_ASSIGN_OR_RETURN(const auto weights,
                           models::WeightStore::Open("", model.weights));

  const bool scripted =
      model.graph.source == models::SourceFormat::kTorchScript;
  if (sample_file.empty() && scripted) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": TorchScript carries no shapes; give one example of each input with "
        "--sample INPUTS.safetensors"));
  }
  std::vector<base::Tensor> sample;
  if (!sample_file.empty()) {
    REFRACT_ASSIGN_OR_RETURN(sample,
                             models::ReadInputs(sample_file, model.graph));
    model.sample_path = sample_file;
  }
  if (!scripted) {
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(LearnSizes(*weights, sample, model), path));
  }
  if (!sample.empty()) {
    request.progress("running the sample at several sizes");
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(LearnFromSample(*weights, sample, model), path));
  }
  REFRACT_RETURN_IF_ERROR(
      base::Annotate(models::CheckFloatIds(model.graph), path));
  FindRows(model);
  RecordLibraries(model.graph);
  request.progress("compiling the model and running the sample");
  const auto runner = TryRun(model, weights, sample, sample_file);
  if (!runner.ok()) return base::Annotate(runner.status(), path);
  if (const std::optional<int64_t> rows = RowsOf(model.graph, sample)) {
    for (std::string& note : ConstantsLikeRows(model.graph, *weights, *rows)) {
      model.notes.push_back(std::move(note));
    }
  }
  request.progress("comparing with the answers of PyTorch");
  REFRACT_RETURN_IF_ERROR(AddGolden({.record = request.record_golden,
                                     .expected = request.expected,
                                     .model_file = path,
                                     .tables_dir = request.tables_dir,
                                     .op_libraries = request.op_libraries,
                                     .ids = &ids,
                                     .scratch = request.scratch},
                                    sample, **runner, model));
  if (!ids.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(GiveIds(ids, sample, sample_file, model), path));
  }
  return model;
}

}  // namespace refract::tools
