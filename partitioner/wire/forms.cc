#include "partitioner/wire/forms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "partitioner/wire/choice.h"

namespace refract::partitioner {
namespace {

using models::SplitPlan;
using models::ValueId;
using models::WireForm;
using models::WireType;

constexpr double kDefaultBound = 1e-3;

// The values that cross in both directions, as one list.
class CrossingValues {
 public:
  CrossingValues(const models::Graph& graph, const SplitPlan& plan)
      : graph_(graph), plan_(plan), num_up_(plan.up.size()) {}

  size_t size() const { return num_up_ + plan_.down.size(); }
  bool is_up(size_t i) const { return i < num_up_; }
  ValueId id(size_t i) const {
    return is_up(i) ? plan_.up[i] : plan_.down[i - num_up_];
  }
  const models::Value& value(size_t i) const { return graph_.value(id(i)); }
  WireForm& form(WireForms& forms, size_t i) const {
    return is_up(i) ? forms.up[i] : forms.down[i - num_up_];
  }
  double bytes(const WireReading& reading, size_t i) const {
    return is_up(i) ? reading.up_bytes[i] : reading.down_bytes[i - num_up_];
  }
  WireForms Plain() const {
    return {std::vector<WireForm>(num_up_),
            std::vector<WireForm>(plan_.down.size())};
  }
  // `base` with the lossy types of `types`; kAsIs leaves a form as it is.
  WireForms With(WireForms base, const std::vector<WireType>& types) const {
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] != WireType::kAsIs) form(base, i).type = types[i];
    }
    return base;
  }

 private:
  const models::Graph& graph_;
  const SplitPlan& plan_;
  const size_t num_up_;
};

// The value's form without loss: ids as int32 where all of them fit, and equal
// rows once, each where the samples are shorter for it.
WireForm LosslessForm(const models::Value& value, const CrossingTable& table,
                      ValueId id) {
  WireForm best;
  const auto offer = [&](WireForm form) {
    if (models::CheckWireForm(value, form).ok() &&
        table.Of(id, form).message_bytes < table.Of(id, best).message_bytes) {
      best = form;
    }
  };
  if (table.Narrows(id)) offer({WireType::kInt32, false});
  offer({best.type, true});
  return best;
}

WireForms LosslessForms(const CrossingValues& crossing,
                        const CrossingTable& table) {
  WireForms forms = crossing.Plain();
  // A value with unique rows is two tensors of the message.
  size_t tensors = crossing.size();
  // Values that come down stay plain: unique rows go from CN to HN only
  // (models::ValidatePlan), and ids come with requests.
  for (size_t i = 0; i < crossing.size() && crossing.is_up(i); ++i) {
    WireForm form = LosslessForm(crossing.value(i), table, crossing.id(i));
    if (form.unique_rows && ++tensors > models::kMaxMessageTensors) {
      form.unique_rows = false;
    }
    crossing.form(forms, i) = form;
  }
  return forms;
}

// Bytes of every value in every lossy type that it can have.
std::vector<WireCandidate> CandidatesFor(const CrossingValues& crossing,
                                         WireForms lossless,
                                         const CrossingTable& table,
                                         absl::Span<const WireType> types) {
  std::vector<WireCandidate> candidates(crossing.size());
  for (size_t i = 0; i < crossing.size(); ++i) {
    // Lossy types are added to the form without loss: rows that are sent once
    // are encoded once.
    WireForm form = crossing.form(lossless, i);
    const auto bytes = [&] {
      return table.Of(crossing.id(i), form).message_bytes;
    };
    candidates[i].plain_bytes = bytes();
    for (const WireType type : types) {
      form.type = type;
      if (!models::CheckWireForm(crossing.value(i), form).ok()) continue;
      candidates[i].options.push_back({type, bytes()});
    }
  }
  return candidates;
}

// Says which output is too far off, and which tensor alone makes it worst.
absl::StatusOr<std::string> WhatIsTooFarOff(const CrossingValues& crossing,
                                            const WireForms& lossless,
                                            const std::vector<WireType>& types,
                                            const WireReading& reading,
                                            double bound, WireMeter& meter) {
  // The output of the largest error, and for each tensor the error of that
  // output when this tensor alone has its lossy form.
  size_t output = 0;
  for (size_t o = 0; o < reading.errors.size(); ++o) {
    if (reading.errors[o].max_abs > reading.errors[output].max_abs) output = o;
  }
  double most = -1;
  std::string tensor;
  for (size_t i = 0; i < crossing.size(); ++i) {
    if (types[i] == WireType::kAsIs) continue;
    std::vector<WireType> alone(crossing.size(), WireType::kAsIs);
    alone[i] = types[i];
    REFRACT_ASSIGN_OR_RETURN(const WireReading one,
                             meter.Measure(crossing.With(lossless, alone)));
    if (one.errors[output].max_abs <= most) continue;
    most = one.errors[output].max_abs;
    tensor =
        absl::StrCat(crossing.value(i).name, " as ", models::Name(types[i]));
  }
  return absl::StrFormat(
      "--wire-error-bound %g: output %s is off by up to %.4g, most of it (%.4g "
      "alone) by tensor %s",
      bound, reading.errors[output].output, reading.errors[output].max_abs,
      std::max(most, 0.0), tensor);
}

// Most runs of MeasureEachForm: tensors × samples.
constexpr size_t kMostRunsAlone = 256;

}  // namespace

absl::Status CheckWireOptions(const WireOptions& options) {
  const std::optional<WireType> type = models::WireTypeFromName(options.dtype);
  if (options.dtype != "auto" &&
      (!type || models::RecordOf(*type).may_not_fit)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--wire-dtype ", options.dtype, ": unknown; use fp32, ",
        absl::StrJoin(models::LossyWireNames(), ", "), " or auto"));
  }
  if (options.error_bound &&
      !(std::isfinite(*options.error_bound) && *options.error_bound >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--wire-error-bound ", *options.error_bound,
                     ": must be a number of at least 0"));
  }
  return absl::OkStatus();
}

std::vector<WireType> LossyTypesOf(const WireOptions& options) {
  if (options.dtype == "auto") {
    return models::LossyWireTypes();
  }
  if (options.dtype == "fp32") return {};
  return {*models::WireTypeFromName(options.dtype)};
}

WireForm SmallestForm(const WireOptions& options, const models::Graph& graph,
                      const CrossingTable& table, ValueId id, bool up) {
  const models::Value& value = graph.value(id);
  WireForm best;
  if (!models::MayCross(value)) return best;
  if (up && !options.samples.empty()) best = LosslessForm(value, table, id);
  for (const WireType type : LossyTypesOf(options)) {
    const WireForm form{type, best.unique_rows};
    if (models::CheckWireForm(value, form).ok() &&
        table.Of(id, form).message_bytes < table.Of(id, best).message_bytes) {
      best = form;
    }
  }
  return best;
}

absl::StatusOr<std::optional<WireReport>> ChooseWireForms(
    const WireOptions& options, const models::LoadedModel& model,
    const WireSamples& samples, SplitPlan& plan) {
  const models::Graph& graph = model.graph;
  if (plan.up.empty() && plan.down.empty()) return std::nullopt;
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<WireMeter> meter,
                           WireMeter::Create(model, plan, samples));
  const CrossingValues crossing(graph, plan);
  WireReport report;
  // Order: plain, for the bytes saved; forms without loss; then lossy types
  // under the bound; then the chosen forms together, whose errors the plan
  // keeps.
  REFRACT_ASSIGN_OR_RETURN(report.plain, meter->Measure(crossing.Plain()));
  WireForms lossless = crossing.Plain();
  // Forms without loss depend on how traffic repeats rows and ids. Drawn
  // requests do not show that, so only samples of the user choose them.
  if (!options.samples.empty()) {
    lossless = LosslessForms(crossing, samples.table);
  }

  const bool automatic = options.dtype == "auto";
  const std::vector<WireType> allowed = LossyTypesOf(options);
  std::optional<double> bound = options.error_bound;
  if (automatic && !bound) bound = kDefaultBound;
  const std::vector<WireCandidate> candidates =
      CandidatesFor(crossing, lossless, samples.table, allowed);
  const auto measure =
      [&](const std::vector<WireType>& types) -> absl::StatusOr<double> {
    REFRACT_ASSIGN_OR_RETURN(const WireReading reading,
                             meter->Measure(crossing.With(lossless, types)));
    return reading.worst();
  };
  // A fixed form has no choice to make, so its error is not bounded here; the
  // check below names the tensor that exceeds the bound.
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<WireType> types,
      ChooseWireTypes(
          candidates,
          automatic ? *bound : std::numeric_limits<double>::infinity(),
          measure));
  report.forms = crossing.With(lossless, types);
  REFRACT_ASSIGN_OR_RETURN(report.chosen, meter->Measure(report.forms));
  // A fixed type was not chosen under the bound, so it is checked here.
  if (bound && report.chosen.worst() > *bound) {
    REFRACT_ASSIGN_OR_RETURN(const std::string why,
                             WhatIsTooFarOff(crossing, lossless, types,
                                             report.chosen, *bound, *meter));
    return absl::FailedPreconditionError(why);
  }

  plan.up_forms = report.forms.up;
  plan.down_forms = report.forms.down;
  plan.measured = models::WireMeasurement{
      .sample = samples.requests->description,
      .requests = static_cast<int64_t>(samples.requests->requests.size()),
      .bound = bound,
      .errors = report.chosen.errors};
  REFRACT_RETURN_IF_ERROR(models::ValidatePlan(graph, model.digest, plan));
  return report;
}

absl::Status MeasureEachForm(const models::LoadedModel& model,
                             const WireSamples& samples, const SplitPlan& plan,
                             WireReport& report) {
  const CrossingValues crossing(model.graph, plan);
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<WireMeter> meter,
                           WireMeter::Create(model, plan, samples));
  std::vector<size_t> lossy;
  std::vector<std::optional<double>> errors(crossing.size());
  // `exact`: the chosen forms with lossy types removed. Each tensor then gets
  // its lossy type back alone. A measurement runs all samples, so only the
  // largest tensors are measured.
  WireForms exact = report.forms;
  for (size_t i = 0; i < crossing.size(); ++i) {
    WireForm& form = crossing.form(exact, i);
    if (!models::RecordOf(form.type).lossy) {
      errors[i] = 0;
      continue;
    }
    lossy.push_back(i);
    form.type = WireType::kAsIs;
  }
  std::stable_sort(lossy.begin(), lossy.end(), [&](size_t a, size_t b) {
    return crossing.bytes(report.plain, a) > crossing.bytes(report.plain, b);
  });
  lossy.resize(std::min(
      lossy.size(),
      kMostRunsAlone / std::max<size_t>(1, samples.requests->requests.size())));
  for (const size_t i : lossy) {
    WireForms alone = exact;
    crossing.form(alone, i) = crossing.form(report.forms, i);
    REFRACT_ASSIGN_OR_RETURN(const WireReading reading, meter->Measure(alone));
    errors[i] = reading.worst();
  }
  const auto ups = static_cast<std::ptrdiff_t>(plan.up.size());
  report.up_errors.assign(errors.begin(), errors.begin() + ups);
  report.down_errors.assign(errors.begin() + ups, errors.end());
  return absl::OkStatus();
}

}  // namespace refract::partitioner
