#include "partitioner/measure/wire_probe.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/quantile.h"
#include "base/status_macros.h"
#include "models/graph/graph.h"
#include "runtime/wire/codec.h"

namespace refract::partitioner {
namespace {

using base::DType;
using models::WireForm;
using models::WireType;

constexpr size_t kBytes = size_t{1} << 20;
constexpr int64_t kRowBytes = 512;  // an embedding of 128 floats
// The tensor for unique rows consists of groups of this many equal rows.
constexpr int64_t kRepeats = 8;
constexpr double kSecondsPerNanosecond = 1e-9;

struct CoderProbe {
  std::string name;
  DType dtype;
  WireForm form;
};

// Lossy types encode floats, the others (int32) ids of 64 bits. Finding equal
// rows is a probe of its own, without a type, because both times add up
// (SecondsToCross).
std::vector<CoderProbe> Probes() {
  std::vector<CoderProbe> probes;
  for (int i = 1; i < models::kNumWireTypes; ++i) {  // all but kAsIs
    const auto type = static_cast<WireType>(i);
    probes.push_back(
        {std::string(models::Name(type)),
         models::RecordOf(type).lossy ? DType::kFloat32 : DType::kInt64,
         {type, false}});
  }
  probes.push_back({kUniqueRows, DType::kFloat32, {WireType::kAsIs, true}});
  return probes;
}

absl::StatusOr<base::Tensor> Fill(const CoderProbe& probe) {
  const auto element = static_cast<int64_t>(base::SizeOf(probe.dtype));
  const auto rows = static_cast<int64_t>(kBytes) / kRowBytes;
  REFRACT_ASSIGN_OR_RETURN(
      base::Tensor tensor,
      base::Tensor::Allocate(probe.dtype, {rows, kRowBytes / element}));
  std::mt19937_64 random(1);  // any values that are all different will do
  if (probe.dtype == DType::kInt64) {
    for (int64_t& value : tensor.as<int64_t>()) {
      // 24 bits, so that all ids fit int32.
      value = static_cast<int64_t>(random() >> 40);
    }
    return tensor;
  }
  const int64_t columns = kRowBytes / element;
  const auto values = tensor.as<float>();
  for (int64_t row = 0; row < rows; ++row) {
    const bool again = probe.form.unique_rows && row % kRepeats != 0;
    for (int64_t c = 0; c < columns; ++c) {
      values[row * columns + c] =
          again ? values[(row - row % kRepeats) * columns + c]
                : static_cast<float>(random() >> 40) * 0x1p-24f - 0.5f;
    }
  }
  return tensor;
}

// One value that crosses.
models::Graph GraphOf(const base::Tensor& tensor) {
  models::Graph graph;
  models::Value value;
  value.name = "x";
  value.dtype = tensor.dtype();
  value.has_shape = true;
  value.shape.assign(tensor.dims().begin(), tensor.dims().end());
  graph.inputs = {graph.AddValue(std::move(value))};
  return graph;
}

absl::StatusOr<WireRate> Measure(const CoderProbe& probe, int repetitions,
                                 runtime::TickClock clock) {
  REFRACT_ASSIGN_OR_RETURN(const base::Tensor tensor, Fill(probe));
  const models::Graph graph = GraphOf(tensor);
  const WireForm form = probe.form;
  const runtime::wire::Codec codec(graph, graph.inputs, {&form, 1});
  runtime::wire::Encoder encoder(codec);
  runtime::wire::Decoder decoder(codec);
  const base::TensorView value = tensor.view();
  std::vector<base::Tensor> message;
  std::vector<double> encode;
  std::vector<double> decode;
  const auto seconds = [](int64_t from, int64_t to) {
    return static_cast<double>(std::max<int64_t>(1, to - from)) *
           kSecondsPerNanosecond;
  };
  for (int i = 0; i <= repetitions; ++i) {  // the first does not count
    const int64_t begin = clock();
    REFRACT_ASSIGN_OR_RETURN(const auto specs, encoder.Prepare({&value, 1}));
    // A message is allocated once: nodes write into memory that is there
    // already.
    if (message.empty()) {
      for (const base::TensorSpec& spec : specs) {
        REFRACT_ASSIGN_OR_RETURN(base::Tensor part,
                                 base::Tensor::Allocate(spec.dtype, spec.dims));
        message.push_back(std::move(part));
      }
    }
    std::vector<base::TensorView> views;
    for (base::Tensor& part : message) {
      views.push_back(part.view());
    }
    encoder.WriteTo([&](size_t part) { return message[part].data(); });
    const int64_t sent = clock();
    REFRACT_RETURN_IF_ERROR(decoder.Decode(views).status());
    const int64_t end = clock();
    if (i == 0) continue;
    encode.push_back(seconds(begin, sent));
    decode.push_back(seconds(sent, end));
  }
  const auto rate = [](std::vector<double> times) {
    // Rates count plain bytes, for the encoder and for the decoder (WireRate).
    return static_cast<double>(kBytes) /
           base::QuartilesOf(std::move(times)).median;
  };
  return WireRate{rate(std::move(encode)), rate(std::move(decode))};
}

}  // namespace

absl::StatusOr<WireRates> MeasureWireRates(int repetitions,
                                           runtime::TickClock clock) {
  WireRates rates;
  for (const CoderProbe& probe : Probes()) {
    REFRACT_ASSIGN_OR_RETURN(const WireRate rate,
                             Measure(probe, repetitions, clock));
    REFRACT_RETURN_IF_ERROR(AddWireRate(probe.name, rate, rates));
  }
  return rates;
}

}  // namespace refract::partitioner
