#include "partitioner/wire/meter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "models/repository/requests/request_files.h"
#include "runtime/tensor_elements.h"
#include "transport/messages/wire.h"

namespace refract::partitioner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Bytes of a message of these tensors; adds the share of each value to
// `per_value`.
double AddMessage(const runtime::wire::Codec& codec,
                  absl::Span<const base::TensorSpec> tensors,
                  std::vector<double>& per_value) {
  const auto align = [](size_t bytes) {
    return transport::AlignUp(bytes, transport::kPayloadAlign);
  };
  size_t head = transport::kHeaderBytes;
  size_t payload = 0;
  per_value.resize(codec.values().size(), 0);
  size_t value = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    // A value has one tensor, or two with unique rows: the next value begins
    // where its first tensor does.
    if (value + 1 < codec.values().size() &&
        codec.values()[value + 1].tensor == t) {
      ++value;
    }
    const size_t bytes =
        base::ByteSize(tensors[t].dtype, tensors[t].dims).value_or(0);
    const size_t entry =
        transport::kTableEntryBytes + sizeof(int64_t) * tensors[t].dims.size();
    head += entry;
    payload = align(payload) + bytes;
    // The value's share counts padding behind each tensor; the message has none
    // behind the last.
    per_value[value] += static_cast<double>(entry + align(bytes));
  }
  return static_cast<double>(align(head) + payload);
}

}  // namespace

models::WireError ErrorBetween(const base::TensorView& found,
                               const base::TensorView& wanted) {
  models::WireError error;
  if (found.dtype != wanted.dtype || found.dims != wanted.dims) {
    error.max_abs = kInfinity;
    return error;
  }
  for (int64_t i = 0; i < wanted.num_elements(); ++i) {
    const auto a = runtime::NumberAt<double>(found, i);
    const auto b = runtime::NumberAt<double>(wanted, i);
    if (std::isfinite(b)) {
      // The scale of relative errors; infinities would hide every error.
      error.largest_value = std::max(error.largest_value, std::fabs(b));
    }
    // Equal infinities count as equal here; their difference would be NaN.
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    const double difference = std::fabs(a - b);
    error.max_abs = std::max(error.max_abs,
                             std::isnan(difference) ? kInfinity : difference);
  }
  return error;
}

double WireReading::worst() const {
  double worst = 0;
  for (const models::WireError& error : errors) {
    worst = std::max(worst, error.max_abs);
  }
  return worst;
}

absl::StatusOr<WireSamples> AnswerSamples(const models::LoadedModel& model,
                                          const SampleRequests& requests) {
  WireSamples samples{.requests = &requests};
  runtime::CompileOptions compile;
  compile.config = model.config;
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<runtime::RequestRunner> whole,
      runtime::RequestRunner::Whole(model.graph, model.weights, compile));
  for (const SampleRequest& request : requests.requests) {
    auto outputs = whole->Run(models::ViewsOf(request.inputs));
    if (!outputs.ok()) return base::Annotate(outputs.status(), request.name);
    samples.wanted.push_back(*std::move(outputs));
  }
  REFRACT_ASSIGN_OR_RETURN(samples.table,
                           CrossingTable::Measure(model, requests.requests));
  return samples;
}

absl::StatusOr<std::unique_ptr<WireMeter>> WireMeter::Create(
    const models::LoadedModel& model, const models::SplitPlan& plan,
    const WireSamples& samples) {
  std::unique_ptr<WireMeter> meter(new WireMeter(model, plan, samples));
  runtime::CompileOptions compile;
  compile.config = model.config;
  REFRACT_ASSIGN_OR_RETURN(
      meter->split_,
      runtime::RequestRunner::Split(model.graph, plan, model.weights, compile));
  return meter;
}

absl::StatusOr<WireReading> WireMeter::Measure(const WireForms& forms) {
  // The compiled parts stay; only the encoders and decoders change.
  plan_.up_forms = forms.up;
  plan_.down_forms = forms.down;
  split_->UseForms(model_.graph, plan_);
  WireReading reading;
  for (const std::string& name : model_.graph.output_names) {
    reading.errors.push_back({.output = name});
  }
  const std::vector<SampleRequest>& requests = samples_.requests->requests;
  for (size_t s = 0; s < requests.size(); ++s) {
    auto outputs = split_->Run(models::ViewsOf(requests[s].inputs));
    if (!outputs.ok())
      return base::Annotate(outputs.status(), requests[s].name);
    for (size_t i = 0; i < outputs->size(); ++i) {
      const models::WireError error =
          ErrorBetween((*outputs)[i].view(), samples_.wanted[s][i].view());
      models::WireError& worst = reading.errors[i];
      worst.max_abs = std::max(worst.max_abs, error.max_abs);
      worst.largest_value = std::max(worst.largest_value, error.largest_value);
    }
    const runtime::RequestRunner::Sent up = split_->sent_up();
    const runtime::RequestRunner::Sent down = split_->sent_down();
    reading.message_bytes_up +=
        AddMessage(*up.codec, up.tensors, reading.up_bytes);
    reading.message_bytes_down +=
        AddMessage(*down.codec, down.tensors, reading.down_bytes);
  }
  const auto count = static_cast<double>(std::max<size_t>(1, requests.size()));
  // Sums so far; the reading has means over the requests.
  for (double& bytes : reading.up_bytes) bytes /= count;
  for (double& bytes : reading.down_bytes) bytes /= count;
  reading.message_bytes_up /= count;
  reading.message_bytes_down /= count;
  return reading;
}

}  // namespace refract::partitioner
