#include "runtime/answers_apart.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository/wire_form.h"
#include "runtime/tensor_elements.h"

namespace refract::runtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Neighbours of half floats are 2^−10 and 2^−7 apart, and each operator may
// round to a neighbour.
double ShareOf(base::DType dtype) {
  switch (dtype) {
    case base::DType::kFloat16:
      return 0x1p-8;
    case base::DType::kBFloat16:
      return 0x1p-5;
    default:
      return 1e-3;
  }
}

// Allows for the rounding of scores far below 1.
constexpr double kLeastAllowed = 1e-5;
// Share of the largest score, for weights, arithmetic or wire forms of 8 to 16
// bits: their rounding errors add up over several layers.
constexpr double kLossyShare = 0.05;

// "[3, 0]" of element `i`, counted row-major.
std::string PositionText(const base::Dims& dims, size_t i) {
  base::Dims position(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    const size_t extent = static_cast<size_t>(dims[d]);
    position[d] = static_cast<int64_t>(i % extent);
    i /= extent;
  }
  return base::DimsToString(position);
}

// As CompareWithRecorded(), for one output; the text follows its name.
absl::Status CompareOutput(const base::TensorView& answer,
                           const base::TensorView& recorded,
                           const Tolerance& tolerance) {
  if (answer.dtype != recorded.dtype || answer.dims != recorded.dims) {
    return absl::FailedPreconditionError(absl::StrCat(
        "is ", base::Name(answer.dtype), base::DimsToString(answer.dims),
        ", the recorded answer is ", base::Name(recorded.dtype),
        base::DimsToString(recorded.dims)));
  }
  const size_t count = static_cast<size_t>(answer.num_elements());
  if (count == 0) return absl::OkStatus();
  if (!base::IsFloatingPoint(answer.dtype)) {
    // Integers have no rounding. With a lossy setting they are not compared: an
    // index such as topk's may change with the last bit of a score.
    for (size_t i = 0; tolerance.exact_integers && i < count; ++i) {
      const auto x = NumberAt<int64_t>(answer, i);
      const auto y = NumberAt<int64_t>(recorded, i);
      if (x == y) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("at ", PositionText(answer.dims, i), " is ", x,
                       ", the recorded answer is ", y));
    }
    return absl::OkStatus();
  }
  // The allowed difference is a share of the largest recorded score: sums of
  // large terms leave errors of their size, also in scores near 0.
  double scale = 0;
  for (size_t i = 0; i < count; ++i) {
    const double y = std::abs(NumberAt<double>(recorded, i));
    if (std::isfinite(y)) scale = std::max(scale, y);
  }
  const bool halves = base::SizeOf(answer.dtype) < sizeof(float);
  const double share = halves ? std::max(tolerance.share, ShareOf(answer.dtype))
                              : tolerance.share;
  const double allowed = kLeastAllowed + share * scale;
  // The largest difference: its size distinguishes rounding from a wrong row.
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const double x = NumberAt<double>(answer, i);
    const double y = NumberAt<double>(recorded, i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    const bool finite = std::isfinite(x) && std::isfinite(y);
    const double apart = finite ? std::abs(x - y) : kInfinity;
    if (apart <= worst) continue;
    worst = apart;
    at = i;
  }
  if (worst <= allowed) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "at ", PositionText(answer.dims, at), " is ",
      NumberAt<double>(answer, at), ", the recorded answer is ",
      NumberAt<double>(recorded, at), " (", allowed, " apart is allowed)"));
}

}  // namespace

Tolerance ToleranceOf(const models::ModelConfig& config,
                      const models::SplitPlan* plan,
                      std::optional<double> share) {
  const auto lossy = [](const std::vector<models::WireForm>& forms) {
    return std::any_of(forms.begin(), forms.end(),
                       [](const models::WireForm& form) {
                         return models::RecordOf(form.type).lossy;
                       });
  };
  Tolerance tolerance;
  if (config.dense_weights != models::DenseWeights::kFloat32 ||
      config.serving.gpu_precision != models::GpuPrecision::kFloat32 ||
      (plan != nullptr && (lossy(plan->up_forms) || lossy(plan->down_forms)))) {
    tolerance = {.share = kLossyShare, .exact_integers = false};
  }
  tolerance.share = share.value_or(tolerance.share);
  return tolerance;
}

absl::Status CompareWithRecorded(const models::Graph& graph,
                                 absl::Span<const base::TensorView> answers,
                                 absl::Span<const base::TensorView> recorded,
                                 const Tolerance& tolerance) {
  for (size_t i = 0; i < recorded.size(); ++i) {
    if (recorded[i].dtype == base::DType::kUnknown) continue;
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(CompareOutput(answers[i], recorded[i], tolerance),
                       absl::StrCat("output '", graph.output_names[i], "'")));
  }
  return absl::OkStatus();
}

Apart Compare(const base::TensorView& a, const base::TensorView& b) {
  if (a.bytes != b.bytes) return {.largest = kInfinity};
  if (a.bytes == 0) return {};
  if (!base::IsFloatingPoint(a.dtype)) {
    return {.largest =
                std::memcmp(a.data, b.data, a.bytes) == 0 ? 0 : kInfinity};
  }
  Apart apart;
  double scale = 1;
  for (size_t i = 0; i < static_cast<size_t>(a.num_elements()); ++i) {
    const double x = NumberAt<double>(a, i);
    const double y = NumberAt<double>(b, i);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (x == y) {
      if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
      continue;
    }
    if (!std::isfinite(x) || !std::isfinite(y)) return {.largest = kInfinity};
    apart.largest = std::max(apart.largest, std::abs(x - y));
    scale = std::max({scale, std::abs(x), std::abs(y)});
  }
  apart.allowed = ShareOf(a.dtype) * scale;
  return apart;
}

}  // namespace refract::runtime
