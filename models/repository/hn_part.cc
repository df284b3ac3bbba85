#include "models/repository/hn_part.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "models/graph/constants.h"
#include "models/graph/graph_proto.h"
#include "proto/graph.pb.h"

namespace refract::models {
namespace {

constexpr uint32_t kHnPartFormatVersion = 1;
constexpr char kWeightsFile[] = "hn_weights.bin";

}  // namespace

std::set<std::string> HnWeights(const Graph& graph, const SplitPlan& plan) {
  std::set<std::string> names;
  // Constants that the HN part reads are computed on the HN, so NodesOfPart()
  // has their nodes and this set their weights.
  for (const NodeId node : NodesOfPart(graph, plan, Stage::kHn)) {
    for (const ValueId id : InputsOf(graph.nodes[node])) {
      if (graph.value(id).is_weight()) names.insert(graph.value(id).weight);
    }
  }
  return names;
}

WeightTable Restrict(const WeightTable& table,
                     const std::set<std::string>& names) {
  WeightTable result;
  std::set<std::string> files;
  for (const WeightEntry& entry : table.entries) {
    if (!names.contains(entry.name)) continue;
    files.insert(entry.file);
    result.entries.push_back(entry);
  }
  for (const WeightFile& file : table.files) {
    if (files.contains(file.file)) result.files.push_back(file);
  }
  return result;
}

absl::StatusOr<std::optional<WeightTable>> ReadHnPart(
    const std::string& folder, const base::Digest& model,
    const std::set<std::string>& names) {
  const std::string path = absl::StrCat(folder, "/", kHnPartFile);
  proto::StoredHnPart stored;
  REFRACT_ASSIGN_OR_RETURN(
      const std::optional<WeightTable> table,
      ReadPart(path, kHnPartFormatVersion, model, kWeightsFile, stored));
  if (!table) return std::nullopt;
  // A package made for another plan of the same model may have more weights,
  // and serves this plan if it has enough.
  WeightTable needed = Restrict(*table, names);
  if (needed.entries.size() < names.size()) {
    std::set<std::string> missing = names;
    for (const WeightEntry& entry : needed.entries) missing.erase(entry.name);
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": lacks ", missing.size(),
        " weights that the plan's HN part "
        "reads, the first is ",
        *missing.begin(), "; package the version again with this plan"));
  }
  return needed;
}

absl::StatusOr<Package> PackageHnPart(const LoadedModel& model,
                                        const std::string& to) {
  if (!model.plan.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.folder, ": has no split plan; run refract partition --write"));
  }
  if (!model.plan->uses_hn()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.folder, ": the plan '", model.plan->method,
        "' runs the whole model on CPU nodes; GPU nodes need no files of it"));
  }
  const std::set<std::string> names = HnWeights(model.graph, *model.plan);
  const WeightTable weights = Restrict(model.weights->table(), names);

  return WritePackage(
      model, to, [&](const std::string& folder) -> absl::StatusOr<size_t> {
        REFRACT_ASSIGN_OR_RETURN(
            const WeightTable packaged,
            WriteWeights(weights, model.folder, folder, kWeightsFile));
        proto::StoredHnPart stored;
        stored.set_format_version(kHnPartFormatVersion);
        stored.mutable_model()->set_low(model.digest.low);
        stored.mutable_model()->set_high(model.digest.high);
        *stored.mutable_weights() = ToProto(packaged);
        REFRACT_RETURN_IF_ERROR(
            base::WriteText(absl::StrCat(folder, "/", kHnPartFile),
                            stored.SerializeAsString()));
        NoteFiles(folder, packaged);
        return packaged.entries.size();
      });
}

}  // namespace refract::models
