// Correctness of the CUDA backend on a GPU, against references in plain loops.
// Without GoogleTest: it also runs where only the CUDA toolkit is installed.
//
//   device_check [--cases N] [--seed S] [--json FILE] [--batch N] [--large N]
//
// --batch, --large: of the models of the benchmarks (default: 33 and 8192; the
// rows of a large batch repeat, so that few have to be computed on the CPU).
//
// Exit status 0: everything agrees; 1: something does not; 2: bad usage; 77:
// skipped, with the reason as the last line.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/json.h"
#include "bench/cuda/random_programs.h"
#include "runtime/cuda/cuda_device.h"

namespace refract::bench {
namespace {

using runtime::cuda::Code;
using runtime::cuda::CudaDevice;
using runtime::cuda::Instance;
using runtime::cuda::Status;

int failures = 0;

void Fail(const std::string& what) {
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// Largest error of `model`; infinity when it does not run.
double ErrorOf(CudaDevice& device, const DenseModel& model, int64_t batch,
               const std::vector<std::vector<double>>& inputs,
               int64_t max_batch, bool use_graphs, const std::string& what) {
  const double infinite = std::numeric_limits<double>::infinity();
  auto instance =
      Instance::Create(device, model.program, model.weight_data(),
                       {.max_batch = max_batch, .use_graphs = use_graphs});
  if (!instance.ok()) {
    Fail(what + ": " + instance.status().ToString());
    return infinite;
  }
  Status status = (*instance)->Load();
  std::vector<std::vector<double>> got;
  // Twice through each slot: what a run leaves must not change the next.
  for (int i = 0; status.ok() && i < 4; ++i) {
    status = RunOnce(**instance, batch, inputs, got);
  }
  if (!status.ok()) {
    Fail(what + ": " + status.ToString());
    return infinite;
  }
  return LargestError(
      got, RunReference(model.program, model.weights, inputs, batch));
}

void CheckRandomPrograms(CudaDevice& device, int cases, std::mt19937& random,
                         Json& json) {
  double worst = 0;
  for (int i = 0; i < cases; ++i) {
    const Case c = RandomCase(random);
    const double error =
        ErrorOf(device, c.model, c.batch, c.inputs, 40, i % 4 != 0, c.what);
    if (!(error <= c.tolerance)) {
      Fail(c.what + ": error " + std::to_string(error) + ", allowed " +
           std::to_string(c.tolerance));
    }
    if (c.tolerance > 0) worst = std::max(worst, error / c.tolerance);
  }
  json.Set("random_programs", cases);
  json.Set("largest_error_over_tolerance", worst);
}

// Scores of the benchmarks' models: how far each precision is from double.
void CheckModels(CudaDevice& device, int64_t batch, std::mt19937& random,
                 Json& json) {
  for (bool v2 : {false, true}) {
    for (Precision precision : {Precision::kFloat32, Precision::kTf32,
                                Precision::kFloat16, Precision::kBFloat16}) {
      const std::string what =
          std::string(v2 ? "dlrm_dcnv2 " : "dlrm_v1 ") + Name(precision);
      const DenseModel model =
          MakeDlrm(what, v2 ? MlperfV2() : MlperfV1(), precision, batch, 1);
      const auto inputs = RandomInputs(model.program, batch, random);
      const double error =
          ErrorOf(device, model, batch, inputs, batch, true, what);
      // Scores lie in (0, 1). What a precision of that many bits may lose over
      // a dozen layers.
      const double allowed = precision == Precision::kFloat32    ? 1e-4
                             : precision == Precision::kBFloat16 ? 0.15
                                                                 : 0.02;
      if (!(error <= allowed)) {
        Fail(what + ": error " + std::to_string(error));
      }
      Json entry;
      entry.Set("model", v2 ? "dlrm_dcnv2" : "dlrm_v1");
      entry.Set("precision", Name(precision));
      entry.Set("largest_score_error", error);
      json.Append("precision_errors", entry);
    }
  }
}

// A batch of which every thread has more than one piece of work, and sizes pass
// what small ones reach: the same few rows again and again must give the same
// few scores again and again.
void CheckLargeBatch(CudaDevice& device, int64_t batch, std::mt19937& random,
                     Json& json) {
  for (bool v2 : {false, true}) {
    const std::string what =
        std::string(v2 ? "dlrm_dcnv2" : "dlrm_v1") + " fp16, large batch";
    const DenseModel model = MakeDlrm(what, v2 ? MlperfV2() : MlperfV1(),
                                      Precision::kFloat16, batch, 1);
    const int64_t few = std::min<int64_t>(batch, 7);
    const auto rows = RandomInputs(model.program, few, random);
    std::vector<std::vector<double>> inputs;
    for (const auto& input : rows) {
      auto& repeated = inputs.emplace_back();
      const size_t cols = input.size() / static_cast<size_t>(few);
      for (size_t i = 0; i < cols * static_cast<size_t>(batch); ++i) {
        repeated.push_back(input[i % input.size()]);
      }
    }
    auto instance = Instance::Create(device, model.program, model.weight_data(),
                                     {.max_batch = batch, .num_slots = 1});
    Status status = instance.status();
    if (instance.ok()) status = (*instance)->Load();
    std::vector<std::vector<double>> got;
    if (status.ok()) status = RunOnce(**instance, batch, inputs, got);
    if (!status.ok()) {
      Fail(what + ": " + status.ToString());
      continue;
    }
    auto want = RunReference(model.program, model.weights, rows, few);
    for (auto& scores : want) {
      const size_t count = scores.size();
      scores.resize(count / static_cast<size_t>(few) *
                    static_cast<size_t>(batch));
      for (size_t i = count; i < scores.size(); ++i) {
        scores[i] = scores[i % count];
      }
    }
    const double error = LargestError(got, want);
    if (!(error <= 0.02)) Fail(what + ": error " + std::to_string(error));
    json.Set(v2 ? "large_batch_error_v2" : "large_batch_error_v1", error);
  }
  json.Set("large_batch", static_cast<double>(batch));
}

// Loads what cannot fit: the error is an error, and the device goes on.
void CheckOutOfMemory(CudaDevice& device) {
  DlrmShape shape;
  const DenseModel model =
      MakeDlrm("huge", shape, Precision::kFloat32, 400000, 1);
  auto instance = Instance::Create(
      device, model.program, model.weight_data(),
      {.max_batch = 200000, .num_slots = 4000, .workspace_bytes = 0});
  if (!instance.ok()) return Fail(instance.status().ToString());
  const Status status = (*instance)->Load();
  if (status.code() != Code::kResourceExhausted) {
    Fail("loading more than fits: " + status.ToString());
  }
}

int Run(int cases, int64_t batch, int64_t large, unsigned seed,
        const std::string& json_path) {
  auto count = runtime::cuda::CountDevices();
  if (!count.ok() || *count == 0) {
    std::printf("skipped: no GPU: %s\n",
                count.ok() ? "the driver shows none"
                           : count.status().message().c_str());
    return 77;
  }
  auto device = CudaDevice::Create(0);
  if (!device.ok()) {
    std::printf("%s\n", device.status().ToString().c_str());
    return 1;
  }
  std::printf("%s, seed %u\n", (*device)->properties().name.c_str(), seed);
  std::mt19937 random(seed);
  Json json;
  json.Set("device", (*device)->properties().name);
  json.Set("seed", static_cast<double>(seed));
  CheckRandomPrograms(**device, cases, random, json);
  CheckModels(**device, batch, random, json);
  CheckLargeBatch(**device, large, random, json);
  CheckOutOfMemory(**device);
  json.Set("failures", failures);
  std::printf("%s\n%d failures\n", json.Text().c_str(), failures);
  if (!json_path.empty() && !json.Write(json_path)) {
    std::fprintf(stderr, "cannot write %s\n", json_path.c_str());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace refract::bench

int main(int argc, char** argv) {
  int cases = 300;
  int batch = 33;
  int large = 8192;
  unsigned seed = std::random_device()();
  std::string json;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--cases") {
      cases = std::atoi(argv[i + 1]);
    } else if (flag == "--batch") {
      batch = std::atoi(argv[i + 1]);
    } else if (flag == "--large") {
      large = std::atoi(argv[i + 1]);
    } else if (flag == "--seed") {
      seed = static_cast<unsigned>(std::strtoul(argv[i + 1], nullptr, 10));
    } else if (flag == "--json") {
      json = argv[i + 1];
    } else {
      argc = 0;
    }
  }
  if (argc % 2 == 0 || cases < 1 || batch < 1 || large < 1) {
    std::fprintf(stderr,
                 "usage: device_check [--cases N] [--seed S] [--json FILE] "
                 "[--batch N] [--large N]\n");
    return 2;
  }
  return refract::bench::Run(cases, batch, large, seed, json);
}
