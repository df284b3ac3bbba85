// Correctness of the CUDA backend on a GPU, against references in plain loops.
// Without GoogleTest: it also runs where only the CUDA toolkit is installed.
//
//   device_check [--cases N] [--seconds N] [--seed S] [--batch N] [--large N]
//                [--parts NAME,…] [--list]
//
// --parts: these alone, of the parts that --list prints. A part begins with a
// line "-- NAME", its figures are lines "= {JSON}", lines that begin with ".."
// say that it goes on. A part that fails ends the program: bench/cuda/
// run_parts.py starts it again behind that part.
// --cases: random programs. --seconds: that all of them may take (default: 20).
// --batch, --large: sizes of the benchmarks' models (default: 33 and 8192; the
// rows of a large batch repeat, so that the CPU has few of them to compute).
//
// Exit status 0: everything agrees; 1: something does not; 3: the only errors
// are at most kSmallExcess times the tolerance, which may be what is wrong; 2:
// bad usage; 77: skipped, with the reason as the last line.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/device/cuda_runtime.h"
#include "tests/runtime/cuda/testing/random_programs.h"
#include "tests/runtime/cuda/testing/reference.h"

namespace refract::runtime::cuda::testing {
namespace {

using bench::DenseModel;
using bench::DlrmShape;
using bench::MakeDlrm;
using bench::MlperfV1;
using bench::MlperfV2;
using bench::Precision;

constexpr double kSmallExcess = 4;

int failures = 0;
bool only_small_ones = true;

// A line for run_parts.py; JSON has no infinity and no NaN.
void Figure(const std::string& name, double value) {
  char text[40] = "null";
  if (std::isfinite(value)) std::snprintf(text, sizeof(text), "%.9g", value);
  std::printf("= {\"%s\": %s}\n", name.c_str(), text);
}

void Fail(const std::string& what) {
  ++failures;
  only_small_ones = false;
  std::printf("FAILED: %s\n", what.c_str());
  std::fflush(stdout);
}

// Where `error` is more than `allowed`, or no number.
void Expect(double error, double allowed, const std::string& what) {
  if (error <= allowed) return;
  const bool all_small = only_small_ones && error <= kSmallExcess * allowed;
  Fail(what + ": error " + std::to_string(error) + ", allowed " +
       std::to_string(allowed));
  only_small_ones = all_small;
}

// Says how many random cases to run: `cases`, or as many as `seconds` allow.
class Pace {
 public:
  Pace(int cases, double seconds) : cases_(cases), seconds_(seconds) {}

  // Whether another case is due. The first one always is.
  bool Next() {
    const Clock::time_point now = Clock::now();
    const auto since = [&](Clock::time_point then) {
      return std::chrono::duration<double>(now - then).count();
    };
    if (begun_ == cases_ || (begun_ > 0 && since(begin_) > seconds_)) {
      return false;
    }
    if (since(said_) >= 1) {
      std::printf(".. %d of %d\n", begun_, cases_);
      std::fflush(stdout);
      said_ = now;
    }
    ++begun_;
    return true;
  }
  int begun() const { return begun_; }

 private:
  using Clock = std::chrono::steady_clock;
  const int cases_;
  const double seconds_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point said_ = begin_;
  int begun_ = 0;
};

// Largest error of `model`; below 0 when it does not run, which is said here.
double ErrorOf(CudaRuntime& device, const DenseModel& model, int64_t batch,
               const std::vector<std::vector<double>>& inputs,
               int64_t max_batch, bool use_graphs, const std::string& what) {
  constexpr double kDidNotRun = -1;
  auto instance =
      Instance::Create(device, model.program, model.weight_data(),
                       {.max_batch = max_batch, .use_graphs = use_graphs});
  if (!instance.ok()) {
    Fail(what + ": " + instance.status().ToString());
    return kDidNotRun;
  }
  Status status = (*instance)->Load();
  std::vector<std::vector<double>> got;
  // Twice through each slot: what a run leaves must not change the next.
  for (int i = 0; status.ok() && i < 4; ++i) {
    status = RunOnce(**instance, batch, inputs, got);
  }
  if (!status.ok()) {
    Fail(what + ": " + status.ToString());
    return kDidNotRun;
  }
  return LargestError(
      got, RunReference(model.program, model.weights, inputs, batch));
}

void CheckRandomPrograms(CudaRuntime& device, Pace pace, std::mt19937& random) {
  double worst = 0;
  while (pace.Next()) {
    const Case c = RandomCase(random);
    const double error = ErrorOf(device, c.model, c.batch, c.inputs, 40,
                                 pace.begun() % 4 != 1, c.what);
    Expect(error, c.tolerance, c.what);
    if (c.tolerance > 0) worst = std::max(worst, error / c.tolerance);
  }
  Figure("random_programs", pace.begun());
  Figure("largest_error_over_tolerance", worst);
}

// Scores of the benchmarks' models: how far each precision is from double.
void CheckModels(CudaRuntime& device, bool v2, int64_t batch,
                 std::mt19937& random) {
  for (Precision precision : {Precision::kFloat32, Precision::kTf32,
                              Precision::kFloat16, Precision::kBFloat16}) {
    const std::string what =
        std::string(v2 ? "dlrm_dcnv2 " : "dlrm_v1 ") + Name(precision);
    std::printf(".. %s\n", what.c_str());
    std::fflush(stdout);
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
    Expect(error, allowed, what);
    Figure(what + " score error", error);
  }
}

// A batch of which every thread has more than one piece of work, and sizes pass
// what small ones reach: the same few rows again and again must give the same
// few scores again and again.
void CheckLargeBatch(CudaRuntime& device, bool v2, int64_t batch,
                     std::mt19937& random) {
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
    return Fail(what + ": " + status.ToString());
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
  Expect(error, 0.02, what);
  Figure(what + " score error", error);
}

// A program that does not fit is refused, and the device goes on.
void CheckOutOfMemory(CudaRuntime& device) {
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

#ifndef REFRACT_EMULATED_GPU
// After an access to memory that nobody allocated, the device fails every call
// with Unavailable, on which a node's recovery rests. Whether a reset brings
// the device back to the same process is a figure, no check: on an H100 it does
// not.
void CheckReset(CudaRuntime& device, std::mt19937& random) {
  auto stream = device.CreateStream();
  if (!stream.ok()) return Fail(stream.status().ToString());
  MapCall wild;
  wild.inputs[0].data = reinterpret_cast<const void*>(uintptr_t{1} << 40);
  wild.inputs[0].strides[0] = 1;
  wild.out = reinterpret_cast<void*>(uintptr_t{1} << 41);
  wild.out_strides[0] = 1;
  wild.dims[0] = wild.count = 1;
  wild.rank = wild.num_inputs = wild.num_instructions = 1;
  wild.code[0] = {models::ElementCode::kRelu, 0};
  Status status = device.Launch(wild, *stream);
  if (status.ok()) status = device.Synchronize(*stream);
  if (status.code() != Code::kUnavailable) {
    return Fail("an illegal access gives: " + status.ToString());
  }
  status = device.Memory().status();
  if (status.code() != Code::kUnavailable) {
    return Fail("a call after an illegal access gives: " + status.ToString());
  }
  status = device.Reset();
  if (status.ok()) status = device.CreateStream().status();
  Figure("works after an illegal access and a reset", status.ok() ? 1 : 0);
  if (!status.ok()) {
    if (status.code() != Code::kUnavailable) {
      Fail("a call after a reset gives: " + status.ToString());
    }
    return;
  }
  const Case c = RandomCase(random);
  Expect(ErrorOf(device, c.model, c.batch, c.inputs, 40, true, c.what),
         c.tolerance, "after a reset: " + c.what);
}
#endif

struct Options {
  int cases = 300;
  double seconds = 20;
  int batch = 33;
  int large = 8192;
  unsigned seed = std::random_device()();
  std::string parts;  // "": all
  bool list = false;
};

struct Part {
  const char* name;
  void (*check)(CudaRuntime&, const Options&, std::mt19937&);
};
constexpr Part kParts[] = {
    {"random_programs",
     [](CudaRuntime& device, const Options& options, std::mt19937& random) {
       CheckRandomPrograms(device, {options.cases, options.seconds}, random);
     }},
    {"dlrm_v1",
     [](CudaRuntime& device, const Options& options, std::mt19937& random) {
       CheckModels(device, false, options.batch, random);
     }},
    {"dlrm_dcnv2",
     [](CudaRuntime& device, const Options& options, std::mt19937& random) {
       CheckModels(device, true, options.batch, random);
     }},
    {"dlrm_v1_large",
     [](CudaRuntime& device, const Options& options, std::mt19937& random) {
       CheckLargeBatch(device, false, options.large, random);
     }},
    {"dlrm_dcnv2_large",
     [](CudaRuntime& device, const Options& options, std::mt19937& random) {
       CheckLargeBatch(device, true, options.large, random);
     }},
    {"out_of_memory", [](CudaRuntime& device, const Options&,
                         std::mt19937&) { CheckOutOfMemory(device); }},
#ifndef REFRACT_EMULATED_GPU  // an illegal access would end this process
    // The last part: where a reset fails, nothing after it would work.
    {"reset", [](CudaRuntime& device, const Options&,
                 std::mt19937& random) { CheckReset(device, random); }},
#endif
};

int Run(const Options& options) {
  if (options.list) {
    for (const Part& part : kParts) std::puts(part.name);
    return 0;
  }
  auto count = CountDevices();
  if (!count.ok() || *count == 0) {
    std::printf("skipped: no GPU: %s\n",
                count.ok() ? "the driver shows none"
                           : count.status().message().c_str());
    return 77;
  }
  auto device = CudaRuntime::Create(0);
  if (!device.ok()) {
    std::printf("%s\n", device.status().ToString().c_str());
    return 1;
  }
  std::printf("seed %u\n= {\"device\": \"%s\"}\n", options.seed,
              (*device)->properties().name.c_str());
  std::string wanted = ",";
  wanted.append(options.parts).append(",");
  for (const Part& part : kParts) {
    std::string name = ",";
    name.append(part.name).append(",");
    if (!options.parts.empty() && wanted.find(name) == std::string::npos) {
      continue;
    }
    std::printf("-- %s\n", part.name);
    std::fflush(stdout);
    // The same cases, whichever parts run.
    std::mt19937 random(options.seed);
    part.check(**device, options, random);
    if (failures > 0) break;
  }
  std::printf("%d failures\n", failures);
  if (failures == 0) return 0;
  return only_small_ones ? 3 : 1;
}

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--list") {
      options.list = true;
      continue;
    }
    if (++i == argc) return false;
    const char* const value = argv[i];
    if (flag == "--cases") {
      options.cases = std::atoi(value);
    } else if (flag == "--seconds") {
      options.seconds = std::atof(value);
    } else if (flag == "--batch") {
      options.batch = std::atoi(value);
    } else if (flag == "--large") {
      options.large = std::atoi(value);
    } else if (flag == "--seed") {
      options.seed = static_cast<unsigned>(std::strtoul(value, nullptr, 10));
    } else if (flag == "--parts") {
      options.parts = value;
    } else {
      return false;
    }
  }
  return options.cases >= 1 && options.batch >= 1 && options.large >= 1;
}

}  // namespace
}  // namespace refract::runtime::cuda::testing

int main(int argc, char** argv) {
  refract::runtime::cuda::testing::Options options;
  if (!refract::runtime::cuda::testing::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: device_check [--cases N] [--seconds N] [--seed S] "
                 "[--batch N] [--large N] [--parts NAME,...] [--list]\n");
    return 2;
  }
  return refract::runtime::cuda::testing::Run(options);
}
