#include "partitioner/verify/calibrate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/quantile.h"
#include "base/status_macros.h"
#include "models/import.h"
#include "models/repository/repository.h"
#include "partitioner/costs/message_bytes.h"
#include "partitioner/measure/scratch_folder.h"
#include "partitioner/verify/probe_models.h"
#include "partitioner/verify/requester.h"
#include "tools/loadgen/revision.h"

namespace refract::partitioner {
namespace {

// 1 KiB to 4 MiB where an item has kProbeWidth numbers: below and above the
// limit between eager writes and pulls (64 KiB), and below and above the size
// at which allocators map memory.
constexpr int64_t kBatches[] = {1, 16, 64, 256, 1024, 4096};
// This model measures the cost per tensor; the other models measure bytes.
constexpr int64_t kTensorBatches[] = {1, 64, 256};

struct Subject {
  CalibrationSample sample;
  std::vector<size_t> requests;
};

// Adds `probe` to `repository` under `name`, whole or split.
absl::Status AddProbe(const models::Repository& repository,
                      const ProbeModel& probe, bool split,
                      const std::string& source, const std::string& name) {
  models::ImportedModel model;
  model.graph = probe.graph;
  model.source_path = source;
  REFRACT_RETURN_IF_ERROR(
      repository.AddVersion(name, model, {.link = true}).status());
  REFRACT_ASSIGN_OR_RETURN(const auto loaded, repository.Load(name));
  models::SplitPlan plan;
  plan.model = loaded->digest;
  plan.method = split ? "probe" : "all-cn";
  plan.stages = split ? probe.stages
                      : std::vector<models::Stage>(probe.graph.nodes.size(),
                                                   models::Stage::kCnPre);
  models::ComputeCrossings(probe.graph, plan);
  REFRACT_RETURN_IF_ERROR(
      models::ValidatePlan(probe.graph, loaded->digest, plan));
  return models::SavePlan(probe.graph, plan,
                          absl::StrCat(loaded->folder, "/split_plan.pb"));
}

// Bytes of fp32 matrices [batch, width].
double BytesOf(const models::Graph& graph,
               absl::Span<const models::ValueId> ids, int64_t batch) {
  double bytes = 0;
  for (const models::ValueId id : ids) {
    bytes += static_cast<double>(
        batch * graph.value(id).shape[1].constant().value_or(0) * 4);
  }
  return bytes;
}

CalibrationSample Describe(const ProbeModel& probe, bool split, int64_t batch) {
  const models::Graph& graph = probe.graph;
  CalibrationSample sample;
  sample.name = absl::StrCat(probe.name, " ", batch);
  sample.split = split;
  sample.idle = probe.idle;
  sample.tensors =
      static_cast<double>(graph.inputs.size() + graph.outputs.size());
  // Payload bytes alone: header, table and gRPC's framing belong to the fitted
  // times per request and per tensor.
  sample.input_bytes = BytesOf(graph, graph.inputs, batch);
  sample.output_bytes = BytesOf(graph, graph.outputs, batch);
  if (!split) return sample;
  models::SplitPlan plan;
  plan.stages = probe.stages;
  models::ComputeCrossings(graph, plan);
  sample.tensors_up = static_cast<double>(plan.up.size());
  sample.bytes_up = BytesOf(graph, plan.up, batch);
  sample.tensors_down = static_cast<double>(plan.down.size());
  sample.bytes_down = BytesOf(graph, plan.down, batch);
  return sample;
}

// All answers are zeros, because the requests are zeros.
absl::Status CheckAnswer(const CalibrationSample& sample,
                         const loadgen::RecordedResponse& answer) {
  double bytes = 0;
  bool zero = true;
  for (const base::Tensor& output : answer.outputs) {
    // Any crossing that lost or changed bytes would show, and its time would
    // mean nothing.
    bytes += static_cast<double>(output.bytes());
    zero = zero && std::all_of(output.data(), output.data() + output.bytes(),
                               [](std::byte b) { return b == std::byte{0}; });
  }
  if (zero && bytes == sample.output_bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("calibration: the answer to ", sample.name,
                   sample.split ? ", split," : "", " is wrong"));
}

absl::Status Measure(const CalibrateOptions& options, NodePair& nodes,
                     absl::Span<const ProbeModel> probes,
                     const ProgressFn& progress,
                     std::vector<CalibrationSample>& samples) {
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<Requester> requester,
                           Requester::Connect(&nodes));
  std::vector<Subject> subjects;
  for (const ProbeModel& probe : probes) {
    for (const bool split : {false, true}) {
      if (split && probe.stages.empty()) continue;
      const std::string model =
          absl::StrCat(probe.name, split ? "_split" : "_whole");
      REFRACT_RETURN_IF_ERROR(requester->AwaitModel(model));
      const absl::Span<const int64_t> batches =
          probe.name == "tensors" ? absl::MakeConstSpan(kTensorBatches)
                                  : absl::MakeConstSpan(kBatches);
      for (const int64_t batch : batches) {
        Subject subject;
        subject.sample = Describe(probe, split, batch);
        REFRACT_ASSIGN_OR_RETURN(const std::vector<base::Tensor> inputs,
                                 ProbeRequest(probe.graph, batch));
        subject.requests = {requester->Prepare(model, probe.graph, inputs)};
        REFRACT_ASSIGN_OR_RETURN(const loadgen::RecordedResponse answer,
                                 requester->Ask(subject.requests[0]));
        REFRACT_RETURN_IF_ERROR(CheckAnswer(subject.sample, answer));
        subjects.push_back(std::move(subject));
      }
    }
  }
  // All subjects are checked before any is timed, and then take turns in
  // rounds: the drift of the machine meets whole and split models alike, whose
  // difference is fitted.
  std::vector<std::vector<size_t>> requests;
  for (const Subject& subject : subjects) requests.push_back(subject.requests);
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::vector<double>> times,
                           requester->TimeInRounds(requests, options.rounds,
                                                   "calibrating", progress));
  for (size_t s = 0; s < subjects.size(); ++s) {
    subjects[s].sample.measured_s = base::QuartilesOf(times[s]).median;
    samples.push_back(std::move(subjects[s].sample));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Calibration> Calibrate(const CalibrateOptions& options,
                                      const ProgressFn& progress,
                                      std::ostream& err) {
  // Missing programs are reported before anything is written.
  REFRACT_RETURN_IF_ERROR(FindNodePrograms(options.nodes).status());
  REFRACT_ASSIGN_OR_RETURN(const ScratchFolder folder,
                           ScratchFolder::Create("refract-calibrate"));
  const models::Repository repository(folder / "models");
  // A version needs an original file; probe models get a text file.
  const std::string source = folder / "probe.txt";
  REFRACT_RETURN_IF_ERROR(
      base::WriteText(source, "made by refract calibrate\n"));
  const std::vector<ProbeModel> probes = ProbeModels();
  for (const ProbeModel& probe : probes) {
    REFRACT_RETURN_IF_ERROR(AddProbe(repository, probe, /*split=*/false, source,
                                     absl::StrCat(probe.name, "_whole")));
    if (probe.stages.empty()) continue;
    REFRACT_RETURN_IF_ERROR(AddProbe(repository, probe, /*split=*/true, source,
                                     absl::StrCat(probe.name, "_split")));
  }
  progress("calibrating: starting nodes");
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<NodePair> nodes,
      NodePair::Start(options.nodes, repository.path(), folder.path()));
  Calibration calibration;
  std::vector<CalibrationSample> samples;
  absl::Status status = Measure(options, *nodes, probes, progress, samples);
  if (status.ok()) status = FitCalibration(std::move(samples), &calibration);
  // The counters name the data path in use.
  absl::StatusOr<LinkCounts> counts = LinkCounts();
  if (status.ok()) {
    counts = nodes->Counts();
    status = counts.status();
  }
  if (!status.ok()) {
    // A user who interrupted the command wants no logs.
    if (!absl::IsCancelled(status)) err << nodes->Logs();
    return status;
  }
  calibration.machine = options.machine;
  calibration.transport = counts->path;
  calibration.revision = std::string(loadgen::BuiltRevision());
  return calibration;
}

}  // namespace refract::partitioner
