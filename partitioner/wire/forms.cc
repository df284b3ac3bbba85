#include "partitioner/wire/forms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/repository/request_files.h"
#include "partitioner/measure/request_source.h"
#include "partitioner/wire/choice.h"

namespace refract::partitioner {
namespace {

using models::SplitPlan;
using models::WireForm;
using models::WireType;

constexpr double kDefaultBound = 1e-3;
// Drawn requests: errors of 256 items each differ little between more.
constexpr int kDrawnRequests = 4;

constexpr WireType kLossyTypes[] = {WireType::kFloat16, WireType::kBFloat16,
                                    WireType::kInt8};

// The values that cross in both directions, as one list.
class Crossing {
 public:
  Crossing(const models::Graph& graph, const SplitPlan& plan)
      : graph_(graph), plan_(plan), num_up_(plan.up.size()) {}

  size_t size() const { return num_up_ + plan_.down.size(); }
  bool is_up(size_t i) const { return i < num_up_; }
  const models::Value& value(size_t i) const {
    return graph_.value(is_up(i) ? plan_.up[i] : plan_.down[i - num_up_]);
  }
  bool may_be(size_t i, WireForm form) const {
    return models::CheckWireForm(value(i), form).ok();
  }
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

// Ids as int32 and equal rows once, where the samples are shorter for it. The
// rows are compared as they are, so one measurement holds for all types.
absl::StatusOr<WireForms> LosslessForms(const Crossing& crossing,
                                        const WireReading& plain,
                                        WireMeter& meter) {
  WireForms narrow = crossing.Plain();
  WireForms unique = crossing.Plain();
  for (size_t i = 0; i < crossing.size(); ++i) {
    if (!crossing.is_up(i)) continue;
    if (crossing.may_be(i, {WireType::kInt32, false})) {
      crossing.form(narrow, i).type = WireType::kInt32;
    }
  }
  REFRACT_ASSIGN_OR_RETURN(const WireReading narrowed, meter.Measure(narrow));
  WireForms result = crossing.Plain();
  for (size_t i = 0; i < crossing.size(); ++i) {
    if (crossing.is_up(i) && narrowed.up_narrowed[i] &&
        crossing.form(narrow, i).type == WireType::kInt32 &&
        crossing.bytes(narrowed, i) < crossing.bytes(plain, i)) {
      crossing.form(result, i).type = WireType::kInt32;
    }
  }
  unique = result;
  size_t tensors = crossing.size();
  for (size_t i = 0; i < crossing.size(); ++i) {
    WireForm form = crossing.form(unique, i);
    form.unique_rows = true;
    if (!crossing.is_up(i) || !crossing.may_be(i, form) ||
        tensors == models::kMaxMessageTensors) {
      continue;
    }
    crossing.form(unique, i) = form;
    ++tensors;
  }
  REFRACT_ASSIGN_OR_RETURN(const WireReading once, meter.Measure(unique));
  REFRACT_ASSIGN_OR_RETURN(const WireReading all, meter.Measure(result));
  for (size_t i = 0; i < crossing.size(); ++i) {
    if (crossing.form(unique, i).unique_rows &&
        crossing.bytes(once, i) < crossing.bytes(all, i)) {
      crossing.form(result, i).unique_rows = true;
    }
  }
  return result;
}

// Bytes of every value in every lossy type that it can have.
absl::StatusOr<std::vector<WireCandidate>> CandidatesFor(
    const Crossing& crossing, const WireForms& lossless, WireMeter& meter,
    absl::Span<const WireType> types) {
  REFRACT_ASSIGN_OR_RETURN(const WireReading base, meter.Measure(lossless));
  std::vector<WireCandidate> candidates(crossing.size());
  for (size_t i = 0; i < crossing.size(); ++i) {
    candidates[i].plain_bytes = crossing.bytes(base, i);
  }
  for (const WireType type : types) {
    std::vector<WireType> wanted(crossing.size(), WireType::kAsIs);
    for (size_t i = 0; i < crossing.size(); ++i) {
      WireForms forms = lossless;
      WireForm form = crossing.form(forms, i);
      form.type = type;
      if (crossing.may_be(i, form)) wanted[i] = type;
    }
    REFRACT_ASSIGN_OR_RETURN(const WireReading reading,
                             meter.Measure(crossing.With(lossless, wanted)));
    for (size_t i = 0; i < crossing.size(); ++i) {
      if (wanted[i] == WireType::kAsIs) continue;
      candidates[i].options.push_back({type, crossing.bytes(reading, i)});
    }
  }
  return candidates;
}

// Which output is too far off, and the tensor that alone makes it worst.
absl::StatusOr<std::string> WhatIsTooFarOff(const Crossing& crossing,
                                            const WireForms& lossless,
                                            const std::vector<WireType>& types,
                                            const WireReading& reading,
                                            double bound, WireMeter& meter) {
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

// What MeasureEachForm runs at most: tensors × samples.
constexpr size_t kMostRunsAlone = 256;

}  // namespace

absl::Status CheckWireOptions(const WireOptions& options) {
  const std::optional<WireType> type = models::WireTypeFromName(options.dtype);
  if (options.dtype != "auto" && (!type || *type == WireType::kInt32)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--wire-dtype ", options.dtype,
                     ": unknown; use fp32, fp16, bf16, int8 or auto"));
  }
  if (options.error_bound &&
      !(std::isfinite(*options.error_bound) && *options.error_bound >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--wire-error-bound ", *options.error_bound,
                     ": must be a number of at least 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<WireSamples> WireSamplesFor(
    const WireOptions& options, const models::LoadedModel& model, int64_t batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item) {
  std::vector<WireSample> samples;
  for (const std::string& path : options.samples) {
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs,
                             models::ReadInputs(path, model.graph));
    samples.push_back({path, std::move(inputs)});
  }
  if (!samples.empty()) {
    return AnswerSamples(model, absl::StrJoin(options.samples, ", "),
                         std::move(samples));
  }
  auto source = RandomRequests(model.graph, per_item, options.seed);
  if (!source.ok()) {
    return absl::Status(source.status().code(),
                        absl::StrCat("--sample: needed to measure errors: ",
                                     source.status().message()));
  }
  for (int i = 0; i < kDrawnRequests; ++i) {
    REFRACT_ASSIGN_OR_RETURN(std::vector<base::Tensor> inputs,
                             (*source)->Make(batch));
    samples.push_back({absl::StrCat("drawn request ", i), std::move(inputs)});
  }
  return AnswerSamples(
      model, absl::StrCat("drawn, ", batch, " items each, seed ", options.seed),
      std::move(samples));
}

std::vector<WireType> LossyTypesOf(const WireOptions& options) {
  if (options.dtype == "auto") {
    return {std::begin(kLossyTypes), std::end(kLossyTypes)};
  }
  if (options.dtype == "fp32") return {};
  return {*models::WireTypeFromName(options.dtype)};
}

absl::StatusOr<std::optional<WireReport>> ChooseWireForms(
    const WireOptions& options, const models::LoadedModel& model,
    const WireSamples& samples, SplitPlan& plan) {
  const models::Graph& graph = model.graph;
  if (plan.up.empty() && plan.down.empty()) return std::nullopt;
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<WireMeter> meter,
                           WireMeter::Create(model, plan, samples));
  const Crossing crossing(graph, plan);
  WireReport report;
  REFRACT_ASSIGN_OR_RETURN(report.plain, meter->Measure(crossing.Plain()));
  WireForms lossless = crossing.Plain();
  // Drawn requests have no users, and auto may do whatever saves bytes.
  if (!options.samples.empty()) {
    REFRACT_ASSIGN_OR_RETURN(lossless,
                             LosslessForms(crossing, report.plain, *meter));
  }

  const bool automatic = options.dtype == "auto";
  const std::vector<WireType> allowed = LossyTypesOf(options);
  std::optional<double> bound = options.error_bound;
  if (automatic && !bound) bound = kDefaultBound;
  REFRACT_ASSIGN_OR_RETURN(const std::vector<WireCandidate> candidates,
                           CandidatesFor(crossing, lossless, *meter, allowed));
  const auto measure =
      [&](const std::vector<WireType>& types) -> absl::StatusOr<double> {
    REFRACT_ASSIGN_OR_RETURN(const WireReading reading,
                             meter->Measure(crossing.With(lossless, types)));
    return reading.worst();
  };
  // Without a choice to make, any error will do: what it is is said below.
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<WireType> types,
      ChooseWireTypes(
          candidates,
          automatic ? *bound : std::numeric_limits<double>::infinity(),
          measure));
  report.forms = crossing.With(lossless, types);
  REFRACT_ASSIGN_OR_RETURN(report.chosen, meter->Measure(report.forms));
  if (bound && report.chosen.worst() > *bound) {
    REFRACT_ASSIGN_OR_RETURN(const std::string why,
                             WhatIsTooFarOff(crossing, lossless, types,
                                             report.chosen, *bound, *meter));
    return absl::FailedPreconditionError(why);
  }

  plan.up_forms = report.forms.up;
  plan.down_forms = report.forms.down;
  plan.measured = models::WireMeasurement{
      .sample = samples.description,
      .requests = static_cast<int64_t>(samples.requests.size()),
      .bound = bound,
      .errors = report.chosen.errors};
  REFRACT_RETURN_IF_ERROR(models::ValidatePlan(graph, model.digest, plan));
  return report;
}

absl::Status MeasureEachForm(const models::LoadedModel& model,
                             const WireSamples& samples, const SplitPlan& plan,
                             WireReport& report) {
  const Crossing crossing(model.graph, plan);
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<WireMeter> meter,
                           WireMeter::Create(model, plan, samples));
  std::vector<size_t> lossy;
  std::vector<std::optional<double>> errors(crossing.size());
  WireForms exact = report.forms;
  for (size_t i = 0; i < crossing.size(); ++i) {
    WireForm& form = crossing.form(exact, i);
    if (std::find(std::begin(kLossyTypes), std::end(kLossyTypes), form.type) ==
        std::end(kLossyTypes)) {
      errors[i] = 0;
      continue;
    }
    lossy.push_back(i);
    form.type = WireType::kAsIs;
  }
  std::stable_sort(lossy.begin(), lossy.end(), [&](size_t a, size_t b) {
    return crossing.bytes(report.plain, a) > crossing.bytes(report.plain, b);
  });
  lossy.resize(
      std::min(lossy.size(),
               kMostRunsAlone / std::max<size_t>(1, samples.requests.size())));
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
