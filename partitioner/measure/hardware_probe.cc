#include "partitioner/measure/hardware_probe.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/quantile.h"
#include "base/status_macros.h"
#include "google/protobuf/text_format.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/requests/request_files.h"
#include "models/repository/weights.h"
#include "partitioner/measure/profiler.h"
#include "partitioner/measure/scratch_folder.h"
#include "partitioner/measure/wire_probe.h"
#include "partitioner/report/graph_text.h"
#include "proto/hardware.pb.h"
#include "runtime/program.h"
#include "tools/loadgen/revision.h"

namespace refract::partitioner {
namespace {

using base::DType;
using base::Quartiles;
using models::ValueId;
using models::ValueRef;

constexpr int64_t kWidth = 1024;  // of the layer that is measured
constexpr int64_t kItems = 256;   // of its batch
// The measured weights take 1 / kCacheShare of the cache; other data may fill
// the rest. Caches of fewer than kLeastCacheBytes are not measured: the weights
// would fit the caches of lower levels.
constexpr uint64_t kCacheShare = 4;
constexpr uint64_t kLeastCacheBytes = uint64_t{8} << 20;
constexpr int64_t kElements = int64_t{4} << 20;  // of each tensor that is read
constexpr int64_t kRowElements = 64;
constexpr int64_t kLookUps = 16384;
constexpr int64_t kSmall = 8;
constexpr double kFloatBytes = 4;

// A graph of float operators, and the weights that it reads.
struct Model {
  models::Graph graph;
  std::vector<std::pair<std::string, base::Tensor>> weights;

  ValueId Value(std::string name, DType dtype, std::vector<int64_t> dims) {
    models::Value value;
    value.name = std::move(name);
    value.dtype = dtype;
    value.has_shape = true;
    value.shape.assign(dims.begin(), dims.end());
    return graph.AddValue(std::move(value));
  }
  ValueId Input(std::string name, DType dtype, std::vector<int64_t> dims) {
    graph.inputs.push_back(Value(std::move(name), dtype, std::move(dims)));
    return graph.inputs.back();
  }
  ValueId Weight(std::string name, base::Tensor tensor) {
    const base::Dims& dims = tensor.dims();
    const ValueId id = Value(absl::StrCat("p_", name), tensor.dtype(),
                             {dims.begin(), dims.end()});
    graph.values[id].weight = name;
    weights.emplace_back(std::move(name), std::move(tensor));
    return id;
  }
  ValueId Node(std::string op, std::vector<models::NamedArgument> args,
               std::vector<int64_t> dims) {
    const ValueId id = Value(absl::StrCat("v", graph.nodes.size()),
                             DType::kFloat32, std::move(dims));
    graph.values[id].producer = static_cast<models::NodeId>(graph.nodes.size());
    models::Node node;
    node.name = graph.values[id].name;
    node.op = std::move(op);
    node.args = std::move(args);
    node.outputs = {id};
    graph.nodes.push_back(std::move(node));
    return id;
  }
  void Output(ValueId id) {
    graph.outputs.push_back(id);
    graph.output_names.push_back(
        absl::StrCat("output_", graph.output_names.size()));
  }
};

absl::StatusOr<base::Tensor> RandomFloats(std::vector<int64_t> dims,
                                          std::mt19937_64& random) {
  REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                           base::Tensor::Allocate(DType::kFloat32, dims));
  // Cheap to make and never denormal; products of the values are not either.
  for (float& value : tensor.as<float>()) {
    value = static_cast<float>(random() >> 40) * 0x1p-24f + 0.5f;
  }
  return tensor;
}

// Compiles a model and measures its runs on the calling thread. Every
// measurement gets its own weight file in the folder.
class Probe {
 public:
  Probe(const ProbeOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  // Quartiles, over the repetitions, of the sum of a run's step times.
  // `request` is called before each run.
  absl::StatusOr<Quartiles> Measure(
      Model model,
      const std::function<absl::StatusOr<std::vector<base::Tensor>>()>&
          request) {
    REFRACT_ASSIGN_OR_RETURN(auto weights, Store(model));
    REFRACT_ASSIGN_OR_RETURN(const auto program,
                             runtime::Program::Compile(
                                 model.graph, runtime::Part::Whole(model.graph),
                                 std::move(weights), {}));
    runtime::RunContext context(*program);
    std::vector<base::TensorView> outputs;
    runtime::StepTimes times;
    std::vector<double> seconds;
    // Rounds below 0 grow buffers and warm code; their times are dropped.
    for (int round = -2; round < options_.repetitions; ++round) {
      int64_t least = INT64_MAX;
      // As the profiler: a try that the scheduler interrupted is repeated, and
      // the quickest try counts.
      for (int tries = 0; tries < kMostTries; ++tries) {
        REFRACT_ASSIGN_OR_RETURN(const auto inputs, request());
        const int64_t before = ThreadInterruptions();
        REFRACT_RETURN_IF_ERROR(program->RunTimed(models::ViewsOf(inputs), {},
                                                  context, outputs, times));
        least = std::min(least, std::accumulate(times.steps.begin(),
                                                times.steps.end(), int64_t{0}));
        if (ThreadInterruptions() == before) break;
      }
      if (round >= 0) seconds.push_back(static_cast<double>(least) * 1e-9);
    }
    return base::QuartilesOf(std::move(seconds));
  }

 private:
  // Writes the weights to a file and opens it as nodes open a version's
  // weights, so that look-ups read mapped pages and not memory of this program.
  absl::StatusOr<std::shared_ptr<const models::WeightStore>> Store(
      Model& model) {
    models::WeightTable table;
    if (model.weights.empty()) return models::WeightStore::Open(folder_, table);
    const std::string name = absl::StrCat("weights", ++files_, ".safetensors");
    const std::string path = absl::StrCat(folder_, "/", name);
    std::vector<std::pair<std::string, base::TensorView>> views;
    for (const auto& [weight, tensor] : model.weights) {
      views.emplace_back(weight, tensor.view());
    }
    REFRACT_RETURN_IF_ERROR(models::WriteSafetensors(path, views));
    // Frees the tensors before the file is mapped: a large table is in memory
    // twice only while it is written.
    model.weights.clear();
    REFRACT_ASSIGN_OR_RETURN(const models::SafetensorsFile file,
                             models::SafetensorsFile::Open(path));
    for (const models::SafetensorsEntry& entry : file.entries()) {
      models::WeightEntry weight;
      weight.name = entry.name;
      weight.file = name;
      weight.offset = entry.offset;
      weight.bytes = entry.bytes;
      weight.dtype = entry.dtype;
      weight.sizes = entry.dims;
      weight.strides.assign(entry.dims.size(), 1);
      // Strides in elements of a contiguous tensor.
      for (size_t d = entry.dims.size(); d-- > 1;) {
        weight.strides[d - 1] = weight.strides[d] * entry.dims[d];
      }
      table.entries.push_back(std::move(weight));
    }
    models::WeightFile whole;
    whole.file = name;
    whole.bytes = file.file()->bytes().size();
    table.files.push_back(std::move(whole));
    REFRACT_ASSIGN_OR_RETURN(auto store,
                             models::WeightStore::Open(folder_, table));
    // Reads every page into memory before rows of it are timed.
    for (const models::WeightEntry& entry : table.entries) {
      REFRACT_ASSIGN_OR_RETURN(const models::WeightView view,
                               store->Get(entry.name));
      const volatile std::byte* const data = view.data;
      for (uint64_t at = 0; at < entry.bytes; at += 4096) (void)data[at];
    }
    return store;
  }

  const ProbeOptions& options_;
  const std::string folder_;
  int files_ = 0;
};

// A figure with its source: `how` describes the measurement.
proto::Figure Figure(double value, const std::string& how,
                     const Quartiles& seconds, int repetitions) {
  proto::Figure figure;
  // More digits than four would be noise.
  figure.set_value(
      std::strtod(absl::StrFormat("%.4g", value).c_str(), nullptr));
  figure.set_source(absl::StrCat(
      "measured by refract profile --hardware, ", loadgen::BuiltRevision(),
      ": ", how, ", median ", SecondsText(seconds.median), ", quartiles ",
      SecondsText(seconds.q1), " and ", SecondsText(seconds.q3), " of ",
      repetitions));
  return figure;
}

// A chain of small operators of the kinds that models consist of: five per
// round, on a row of kSmall numbers. Each needs the result of the operator
// before it, so none can be left out, and its arithmetic takes next to no time.
// `count`: number of operators.
Model SmallOperators(int& count, base::Tensor weight) {
  Model model;
  constexpr int kRounds = 8;
  ValueId x = model.Input("x", DType::kFloat32, {1, kSmall});
  const ValueId w = model.Weight("w", std::move(weight));
  for (int round = 0; round < kRounds; ++round) {
    x = model.Node("aten.linear.default",
                   {{"input", ValueRef{x}}, {"weight", ValueRef{w}}},
                   {1, kSmall});
    x = model.Node("aten.relu.default", {{"self", ValueRef{x}}}, {1, kSmall});
    const ValueId both =
        model.Node("aten.cat.default",
                   {{"tensors", models::ValueList{x, x}}, {"dim", int64_t{0}}},
                   {2, kSmall});
    x = model.Node("aten.sum.dim_IntList",
                   {{"self", ValueRef{both}},
                    {"dim", models::IntList{{0, models::kNoValue}}},
                    {"keepdim", true}},
                   {1, kSmall});
    x = model.Node("aten.sigmoid.default", {{"self", ValueRef{x}}},
                   {1, kSmall});
  }
  model.Output(x);
  count = static_cast<int>(model.graph.nodes.size());
  return model;
}

// How fast a layer of about `bytes` of weights is read for one item when the
// layer was read just before.
absl::StatusOr<proto::Figure> CachedBytesPerSecond(Probe& probe, uint64_t bytes,
                                                   std::mt19937_64& random,
                                                   int repetitions) {
  // The weight is [rows, kWidth]. Batch 1 reads each weight once for two
  // operations, so bandwidth bounds the time.
  const auto rows = static_cast<int64_t>(bytes / (kWidth * sizeof(float)));
  Model layer;
  const ValueId x = layer.Input("x", DType::kFloat32, {1, kWidth});
  REFRACT_ASSIGN_OR_RETURN(base::Tensor weight,
                           RandomFloats({rows, kWidth}, random));
  const ValueId w = layer.Weight("w", std::move(weight));
  layer.Output(layer.Node("aten.linear.default",
                          {{"input", ValueRef{x}}, {"weight", ValueRef{w}}},
                          {1, rows}));
  REFRACT_ASSIGN_OR_RETURN(const base::Tensor input,
                           RandomFloats({1, kWidth}, random));
  REFRACT_ASSIGN_OR_RETURN(
      const Quartiles seconds,
      probe.Measure(std::move(layer),
                    [&]() -> absl::StatusOr<std::vector<base::Tensor>> {
                      std::vector<base::Tensor> inputs(1);
                      REFRACT_ASSIGN_OR_RETURN(
                          inputs[0], base::Tensor::CopyOf(input.view()));
                      return inputs;
                    }));
  return Figure(
      static_cast<double>(rows * kWidth) * kFloatBytes / seconds.median,
      absl::StrFormat("linear of %d to %d at batch 1, whose weights are in the "
                      "cache",
                      kWidth, rows),
      seconds, repetitions);
}

}  // namespace

absl::StatusOr<std::string> ProbeHardware(const ProbeOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(const ScratchFolder folder,
                           ScratchFolder::Create("refract-hardware"));
  const auto tell = [&](absl::string_view what) {
    if (options.progress) options.progress(what);
  };
  std::mt19937_64 random(1);
  Probe probe(options, folder.path());
  const MachineFacts& machine = options.machine;
  const int repetitions = options.repetitions;
  // Copies of the same inputs for every run, because kernels' times do not
  // depend on the values.
  const auto repeat = [](const std::vector<base::Tensor>& tensors)
      -> absl::StatusOr<std::vector<base::Tensor>> {
    std::vector<base::Tensor> copies;
    for (const base::Tensor& tensor : tensors) {
      REFRACT_ASSIGN_OR_RETURN(copies.emplace_back(),
                               base::Tensor::CopyOf(tensor.view()));
    }
    return copies;
  };

  proto::Hardware hardware;
  hardware.set_name(options.name);
  hardware.set_description(absl::StrCat(machine.cpu, ", ", machine.cpus,
                                        " processors, kernel ", machine.kernel,
                                        ", fp32, one thread per request"));
  hardware.mutable_units()->set_value(std::max(machine.cpus, 1));
  hardware.mutable_units()->set_source("processors that /proc shows");

  tell("small operators");
  int count = 0;
  REFRACT_ASSIGN_OR_RETURN(base::Tensor weight,
                           RandomFloats({kSmall, kSmall}, random));
  std::vector<base::Tensor> inputs(1);
  REFRACT_ASSIGN_OR_RETURN(inputs[0], RandomFloats({1, kSmall}, random));
  REFRACT_ASSIGN_OR_RETURN(
      const Quartiles small,
      probe.Measure(SmallOperators(count, std::move(weight)),
                    [&] { return repeat(inputs); }));
  const double operator_s = small.median / count;
  *hardware.mutable_operator_seconds() = Figure(
      operator_s,
      absl::StrCat(count, " operators (linear, relu, cat, sum, sigmoid) of ",
                   kSmall, " elements"),
      small, repetitions);

  tell("arithmetic");
  Model layer;
  const ValueId x = layer.Input("x", DType::kFloat32, {kItems, kWidth});
  REFRACT_ASSIGN_OR_RETURN(weight, RandomFloats({kWidth, kWidth}, random));
  const ValueId w = layer.Weight("w", std::move(weight));
  layer.Output(layer.Node("aten.linear.default",
                          {{"input", ValueRef{x}}, {"weight", ValueRef{w}}},
                          {kItems, kWidth}));
  REFRACT_ASSIGN_OR_RETURN(inputs[0], RandomFloats({kItems, kWidth}, random));
  REFRACT_ASSIGN_OR_RETURN(
      const Quartiles dense,
      probe.Measure(std::move(layer), [&] { return repeat(inputs); }));
  *hardware.mutable_flops_per_second() = Figure(
      2.0 * kItems * kWidth * kWidth / dense.median,
      absl::StrCat("linear of ", kWidth, " to ", kWidth, " at batch ", kItems),
      dense, repetitions);

  tell("memory");
  Model product;
  const ValueId a = product.Input("a", DType::kFloat32, {kElements});
  const ValueId b = product.Input("b", DType::kFloat32, {kElements});
  product.Output(product.Node("aten.mul.Tensor",
                              {{"self", ValueRef{a}}, {"other", ValueRef{b}}},
                              {kElements}));
  inputs.resize(2);
  for (base::Tensor& input : inputs) {
    REFRACT_ASSIGN_OR_RETURN(input, RandomFloats({kElements}, random));
  }
  REFRACT_ASSIGN_OR_RETURN(
      const Quartiles moved,
      probe.Measure(std::move(product), [&] { return repeat(inputs); }));
  // Two tensors are read and one is written.
  const double bytes_per_s = 3 * kElements * kFloatBytes / moved.median;
  *hardware.mutable_bytes_per_second() =
      Figure(bytes_per_s,
             absl::StrCat("product of two tensors of ",
                          kElements * sizeof(float) >> 20, " MiB"),
             moved, repetitions);

  if (machine.cache_bytes >= kLeastCacheBytes) {
    tell("weights in the cache");
    REFRACT_ASSIGN_OR_RETURN(
        const proto::Figure cached,
        CachedBytesPerSecond(probe, machine.cache_bytes / kCacheShare, random,
                             repetitions));
    *hardware.mutable_cache_bytes_per_second() = cached;
    hardware.mutable_cache_bytes()->set_value(
        static_cast<double>(machine.cache_bytes));
    hardware.mutable_cache_bytes()->set_source(
        "the largest size in /sys/devices/system/cpu/cpu0/cache");
  }

  tell("rows of a table");
  // A sixteenth of the free memory: the table is in memory twice while written.
  uint64_t table_bytes = options.table_bytes;
  if (machine.available_bytes > 0) {
    table_bytes = std::min(table_bytes, machine.available_bytes / 16);
  }
  const int64_t rows = std::max<int64_t>(
      kLookUps,
      static_cast<int64_t>(table_bytes / (kRowElements * sizeof(float))));
  Model look_up;
  const ValueId ids = look_up.Input("ids", DType::kInt64, {kLookUps});
  REFRACT_ASSIGN_OR_RETURN(weight, RandomFloats({rows, kRowElements}, random));
  const ValueId table = look_up.Weight("table", std::move(weight));
  look_up.Output(
      look_up.Node("aten.embedding.default",
                   {{"weight", ValueRef{table}}, {"indices", ValueRef{ids}}},
                   {kLookUps, kRowElements}));
  REFRACT_ASSIGN_OR_RETURN(
      const Quartiles looked_up,
      probe.Measure(std::move(look_up),
                    [&]() -> absl::StatusOr<std::vector<base::Tensor>> {
                      std::vector<base::Tensor> fresh(1);
                      REFRACT_ASSIGN_OR_RETURN(
                          fresh[0],
                          base::Tensor::Allocate(DType::kInt64, {kLookUps}));
                      // Fresh ids: rows of the run before would come from a
                      // cache.
                      std::uniform_int_distribution<int64_t> id(0, rows - 1);
                      for (int64_t& value : fresh[0].as<int64_t>())
                        value = id(random);
                      return fresh;
                    }));
  // RooflineSeconds() solved for row_seconds: the time of a row besides the
  // fixed time and besides the bytes that LookUpWork() counts per id: the row
  // read, the row written and the id.
  const double row_bytes = 2 * kRowElements * kFloatBytes + sizeof(int64_t);
  *hardware.mutable_row_seconds() =
      Figure(std::max(0.0, (looked_up.median - operator_s) / kLookUps -
                               row_bytes / bytes_per_s),
             absl::StrCat(kLookUps, " fresh uniform ids in a table of ",
                          (rows * kRowElements * sizeof(float)) >> 20,
                          " MiB, rows of ", kRowElements * sizeof(float),
                          " bytes, minus the time of their bytes"),
             looked_up, repetitions);

  tell("forms on the wire");
  REFRACT_ASSIGN_OR_RETURN(const WireRates rates,
                           MeasureWireRates(repetitions));
  for (const auto& [form, rate] : rates) {
    proto::Hardware::WireRate& one = *hardware.add_wire();
    one.set_form(form);
    const auto figure = [&](double value, const char* what) {
      proto::Figure result;
      result.set_value(
          std::strtod(absl::StrFormat("%.4g", value).c_str(), nullptr));
      result.set_source(absl::StrCat(
          "measured by refract profile --hardware, ", loadgen::BuiltRevision(),
          ": ", what, " 1 MiB in rows of 512 bytes, median of ", repetitions));
      return result;
    };
    *one.mutable_encode_bytes_per_second() =
        figure(rate.encode_bytes_per_s, "encoding");
    *one.mutable_decode_bytes_per_second() =
        figure(rate.decode_bytes_per_s, "decoding");
  }

  hardware.mutable_memory_bytes()->set_value(
      static_cast<double>(std::max<uint64_t>(machine.memory_bytes, 1)));
  hardware.mutable_memory_bytes()->set_source("MemTotal of /proc/meminfo");
  std::string text;
  google::protobuf::TextFormat::PrintToString(hardware, &text);
  return text;
}

}  // namespace refract::partitioner
