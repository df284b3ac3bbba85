// Translates the HN part of a model of a repository and compares it, on the
// emulated GPU, with the CPU's results:
//   cuda_plan_model_check REPOSITORY MODEL [--precision fp32|tf32|fp16|bf16]
//       [--tolerance X] [--sizes N,N,...] [--whole] [--verbose] BATCH...
// --whole: all of the model rather than its HN part, so that ids travel.
// Other sizes than the batch are 1 and the numbers given (3 and 17), all of
// them in turn. Exit status 0: agrees at all batches; 1: differs; 2: bad usage;
// 3: refused, the reason is on stderr.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gpu_node/model/warm_up.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "tests/runtime/cuda_plan/run_translation.h"

namespace refract::runtime::cuda_plan {
namespace {

int Fail(int status, const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return status;
}

int Run(int argc, char** argv) {
  std::vector<std::string> names;
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
  if (names.size() < 2 || batches.empty()) return Fail(2, "bad usage");
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
  for (const int64_t batch : batches) {
    options.max_batch = std::max(options.max_batch, batch);
  }
  options.max_batch = *std::max_element(batches.begin(), batches.end());
  const auto program =
      Program::Compile(graph, part, (*model)->weights, options.compile);
  if (!program.ok()) return Fail(1, program.status().ToString());
  auto translator = Translator::Create(graph, part, (*model)->weights, options);
  if (!translator.ok()) {
    return Fail(3, std::string(translator.status().message()));
  }
  const FreeSizes& free = (*translator)->sizes();
  if (free.empty()) sizes = {1};
  size_t ops = 0;
  bool agrees = true;
  for (const int64_t size : sizes) {
    const SizeValues values(free.all().size(), size);
    const std::string at = free.empty() ? "" : ", " + free.ToString(values);
    auto translation = (*translator)->Translate(values);
    if (!translation.ok()) {
      return Fail(3, std::string(translation.status().message()));
    }
    if (verbose) {
      for (const std::string& line : translation->steps) {
        std::printf("%s\n", line.c_str());
      }
    }
    ops = translation->program.ops.size();
    auto device =
        testing::OnDevice::Load(*std::move(translation), options.max_batch, 1);
    if (!device.ok()) return Fail(1, device.status().ToString());
    for (const int64_t batch : batches) {
      auto inputs = gpu_node::MakeInputs(
          graph, part, batch, static_cast<uint32_t>(batch), free.Bind(values));
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
      const auto got = (*device)->Run(views, batch);
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
  return agrees ? 0 : 1;
}

}  // namespace
}  // namespace refract::runtime::cuda_plan

int main(int argc, char** argv) {
  return refract::runtime::cuda_plan::Run(argc, argv);
}
