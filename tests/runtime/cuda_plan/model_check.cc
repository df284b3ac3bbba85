// Translates the HN part of a model of a repository and compares it, on the
// emulated GPU, with the CPU's results:
//   cuda_plan_model_check REPOSITORY MODEL [--precision fp32|tf32|fp16|bf16]
//       [--tolerance X] [--sizes N,N,...] [--whole] [--verbose]
//       [--inputs FILE]... BATCH...
// --whole: all of the model rather than its HN part, so that ids travel.
// --inputs: instead of generated inputs of the HN part, requests of the model
// as `refract run --mode split --device cuda` runs them; no BATCH.
// LibTorch on the CPU stands for its CUDA kernels, and a line says how many
// operators that concerns.
// Other sizes than the batch are 1 and the numbers given (3 and 17), all of
// them in turn. A part that needs it has a program for each batch as well. Exit
// status 0: agrees in all; 1: differs; 2: bad usage; 3: refused, the reason is
// on stderr.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gpu_node/device/compile_for_cuda.h"
#include "gpu_node/device/cuda_batch.h"
#include "gpu_node/device/cuda_library.h"
#include "gpu_node/model/warm_up.h"
#include "models/repository/repository.h"
#include "models/repository/requests/request_files.h"
#include "models/repository/split_plan.h"
#include "models/rows/row_dependence.h"
#include "runtime/cuda_aten/operators.h"
#include "runtime/split_run.h"
#include "tests/runtime/cuda_plan/run_translation.h"

namespace refract::runtime::cuda_plan {
namespace {

int Fail(int status, const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return status;
}

std::shared_ptr<ForeignOperators> Foreign() {
  const int gpu = cuda::testing::TestGpu();
  return gpu >= 0 ? gpu_node::AtenOperatorsOn(gpu)
                  : cuda_aten::MakeOperators({});
}

// Compares requests from files, CN parts included.
int RunRequests(const models::LoadedModel& model,
                const TranslateOptions& options,
                const std::vector<std::string>& files, double tolerance) {
  const int gpu = cuda::testing::TestGpu();
  const auto checked =
      std::make_shared<cuda::testing::CheckedDevice>(1, int64_t{4} << 30);
  std::shared_ptr<cuda::DeviceApi> device = checked;
  if (gpu >= 0) device = cuda::testing::OpenTestGpu(gpu);
  const auto split = [&](const RequestRunner::Compiler& compiler) {
    return RequestRunner::Split(model.graph, *model.plan, model.weights,
                                options.compile, compiler);
  };
  const auto cpu = split(Program::Compile);
  if (!cpu.ok()) return Fail(1, cpu.status().ToString());
  const auto on_device =
      split([&](const models::Graph& graph, const Part& part,
                std::shared_ptr<const models::WeightStore> weights,
                const CompileOptions& compile) {
        return gpu_node::CompileForCuda(device, graph, part, std::move(weights),
                                        {.model = options.model,
                                         .device = options.device,
                                         .compile = compile,
                                         .foreign = Foreign()});
      });
  if (!on_device.ok()) {
    return Fail(3, std::string(on_device.status().message()));
  }
  bool agrees = true;
  for (const std::string& file : files) {
    const auto inputs = models::ReadInputs(file, model.graph);
    if (!inputs.ok()) return Fail(2, inputs.status().ToString());
    const auto want = (*cpu)->Run(models::ViewsOf(*inputs));
    if (!want.ok()) return Fail(1, want.status().ToString());
    const auto got = (*on_device)->Run(models::ViewsOf(*inputs));
    if (!got.ok()) return Fail(1, got.status().ToString());
    for (size_t i = 0; i < want->size(); ++i) {
      const base::TensorView view = (*got)[i].view();
      const double difference = testing::Difference(
          std::vector<std::byte>(view.data, view.data + view.bytes),
          (*want)[i].view());
      std::printf("%s, output %zu: %g of the largest value\n", file.c_str(), i,
                  difference);
      agrees = agrees && difference <= tolerance;
    }
  }
  for (const std::string& violation : checked->violations()) {
    std::printf("%s\n", violation.c_str());
    agrees = false;
  }
  return agrees ? 0 : 1;
}

int Run(int argc, char** argv) {
  std::vector<std::string> names;
  std::vector<std::string> files;
  std::vector<int64_t> batches;
  std::vector<int64_t> sizes = {1, 3, 17};
  TranslateOptions options;
  double tolerance = 1e-5;
  bool verbose = false;
  bool whole = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--verbose") {
      verbose = true;
    } else if (word == "--whole") {
      whole = true;
    } else if (word == "--inputs" && i + 1 < argc) {
      files.emplace_back(argv[++i]);
    } else if (word == "--tolerance" && i + 1 < argc) {
      tolerance = std::atof(argv[++i]);
    } else if (word == "--sizes" && i + 1 < argc) {
      sizes.clear();
      for (const absl::string_view size : absl::StrSplit(argv[++i], ',')) {
        sizes.push_back(std::atoll(std::string(size).c_str()));
      }
    } else if (word == "--precision" && i + 1 < argc) {
      const std::string name = argv[++i];
      bool known = false;
      for (const Precision p : {Precision::kFloat32, Precision::kTf32,
                                Precision::kFloat16, Precision::kBFloat16}) {
        if (name != Name(p)) continue;
        options.precision = p;
        known = true;
      }
      if (!known) return Fail(2, "no such precision: " + name);
    } else if (names.size() < 2) {
      names.push_back(word);
    } else {
      batches.push_back(std::atoll(word.c_str()));
    }
  }
  if (names.size() < 2 || batches.empty() == files.empty())
    return Fail(2, "bad usage");
  const models::Repository repository(names[0]);
  const auto versions = repository.ListVersions(names[1]);
  if (!versions.ok() || versions->empty()) return Fail(2, "no such model");
  const auto model = repository.Load(names[1], versions->back());
  if (!model.ok()) return Fail(2, model.status().ToString());
  const models::Graph& graph = (*model)->graph;
  if (!whole && (!(*model)->plan.has_value() || !(*model)->plan->uses_hn())) {
    return Fail(3, "the plan has no HN part");
  }
  const Part part =
      whole ? Part::Whole(graph) : Part::Hn(graph, *(*model)->plan);
  options.model = names[1];
  options.device = "cuda:0";
  options.compile.config = (*model)->config;
  const std::shared_ptr<ForeignOperators> foreign = Foreign();
  options.foreign = foreign.get();
  if (!files.empty()) return RunRequests(**model, options, files, tolerance);
  options.max_batch = *std::max_element(batches.begin(), batches.end());
  const models::RowDependence rows =
      whole ? models::FindRowDependence(graph)
            : models::FindHnRowDependence(graph, *(*model)->plan);
  const auto program =
      Program::Compile(graph, part, (*model)->weights, options.compile);
  if (!program.ok()) return Fail(1, program.status().ToString());
  auto translator = Translator::CreateForSingleRequests(
      graph, part, (*model)->weights, options,
      rows.use == models::RowUse::kAlone);
  if (!translator.ok()) {
    return Fail(3, std::string(translator.status().message()));
  }
  const FreeSizes& free = (*translator)->sizes();
  if (free.empty()) sizes = {1};
  // The combinations of sizes that have a program.
  std::vector<SizeValues> combinations;
  for (const int64_t size : sizes) {
    SizeValues values(free.all().size(), size);
    size_t own = 0;
    while (own < values.size() && free.all()[own].symbol != graph.batch_symbol)
      ++own;
    if (own == values.size()) {
      combinations.push_back(values);
      continue;
    }
    for (const int64_t batch : batches) {
      values[own] = batch;
      combinations.push_back(values);
    }
  }
  size_t ops = 0;
  size_t by_torch = 0;
  bool agrees = true;
  for (const SizeValues& values : combinations) {
    const models::SymbolBindings bound = free.Bind(values);
    const auto fixed = bound.find(graph.batch_symbol);
    const int64_t most = free.has_batch() ? 1 : options.max_batch;
    const std::string at = free.empty() ? "" : ", " + free.ToString(values);
    const absl::Time begin = absl::Now();
    auto translation = (*translator)->Translate(values);
    const absl::Duration took = absl::Now() - begin;
    if (!translation.ok()) {
      return Fail(3, std::string(translation.status().message()));
    }
    if (verbose) {
      for (const std::string& line : translation->steps) {
        std::printf("%s\n", line.c_str());
      }
      std::printf("%s%s: translated in %.2f ms\n", names[1].c_str(), at.c_str(),
                  absl::ToDoubleMilliseconds(took));
    }
    ops = translation->program.ops.size();
    by_torch = gpu_node::CountForeign(translation->program);
    auto device = testing::OnDevice::Load(*std::move(translation), most, 1);
    if (!device.ok()) return Fail(1, device.status().ToString());
    for (const int64_t batch : batches) {
      if (fixed != bound.end() && fixed->second != batch) continue;
      auto inputs = gpu_node::MakeInputs(graph, part, batch,
                                         static_cast<uint32_t>(batch), bound);
      if (!inputs.ok()) return Fail(1, inputs.status().ToString());
      std::vector<base::TensorView> views;
      for (const base::Tensor& tensor : *inputs) views.push_back(tensor.view());
      const auto shown = free.Of(views);
      if (!shown.ok()) return Fail(1, shown.status().ToString());
      if (*shown != values) return Fail(1, "sizes are taken for others");
      RunContext context(**program);
      std::vector<base::TensorView> want;
      const absl::Status ran = (*program)->Run(
          views, std::vector<std::byte*>(part.outputs.size(), nullptr), context,
          want);
      if (!ran.ok()) return Fail(1, ran.ToString());
      const auto got = (*device)->Run(views, std::min(batch, most));
      if (!got.ok()) return Fail(1, got.status().ToString());
      for (size_t i = 0; i < want.size(); ++i) {
        const double difference = testing::Difference((*got)[i], want[i]);
        std::printf("%s%s, batch %lld, output %zu: %g of the largest value\n",
                    names[1].c_str(), at.c_str(), static_cast<long long>(batch),
                    i, difference);
        agrees = agrees && difference <= tolerance;
      }
    }
    for (const std::string& violation : (*device)->violations()) {
      std::printf("%s\n", violation.c_str());
      agrees = false;
    }
  }
  std::printf("%zu kernels per request\n", ops);
  if (by_torch > 0) std::printf("%zu of them by LibTorch\n", by_torch);
  return agrees ? 0 : 1;
}

}  // namespace
}  // namespace refract::runtime::cuda_plan

int main(int argc, char** argv) {
  return refract::runtime::cuda_plan::Run(argc, argv);
}
