// Correctness of the CUDA backend on a GPU, against references in plain loops.
// Without GoogleTest: it also runs where only the CUDA toolkit is installed.
//
//   device_check [--cases N] [--seconds N] [--seed S] [--json FILE] [--batch N]
//                [--large N] [--part NAME] [--list]
//
// --part: that one alone, of those that --list prints; all, unless given.
// --cases: random programs; half as many random products by our own kernels.
// --seconds: that random cases of a part may take together (default: 20), so
// that those that come first do not take the others' time. What is under way is
// said by lines that begin with "..", about one a second.
// REFRACT_EARLY_STARTS=always has kernels begin as early as they may;
// REFRACT_CUDA_WITHOUT says what is not used, and so not checked either.
//
// --batch, --large: of the models of the benchmarks (default: 33 and 8192; the
// rows of a large batch repeat, so that few have to be computed on the CPU).
//
// Exit status 0: everything agrees; 1: something does not; 3: no error is
// larger than kSmallExcess of what it may be, so that a tolerance, rather than
// a kernel, may be what is wrong; 2: bad usage; 77: skipped, with the reason as
// the last line.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/json.h"
#include "bench/cuda/products.h"
#include "bench/cuda/random_programs.h"
#include "bench/cuda/short_kernels.h"
#include "runtime/cuda/device/cuda_device.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/kernels/launch.h"
#include "runtime/cuda/program/own_products.h"

namespace refract::bench {
namespace {

using runtime::cuda::Code;
using runtime::cuda::CudaDevice;
using runtime::cuda::DType;
using runtime::cuda::Epilogue;
using runtime::cuda::GemmCall;
using runtime::cuda::GemmShape;
using runtime::cuda::Instance;
using runtime::cuda::Mechanism;
using runtime::cuda::PaddedLd;
using runtime::cuda::ProductKernel;
using runtime::cuda::Status;
using runtime::cuda::Stream;

constexpr double kSmallExcess = 4;

int failures = 0;
bool only_small_ones = true;

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

// Random cases one after the other, as many as are asked for and there is time
// for.
class Pace {
 public:
  Pace(int cases, double seconds) : cases_(cases), seconds_(seconds) {}

  // Whether there is to be one more: the first always.
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
double ErrorOf(CudaDevice& device, const DenseModel& model, int64_t batch,
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

void CheckRandomPrograms(CudaDevice& device, Pace pace, std::mt19937& random,
                         Json& json) {
  double worst = 0;
  while (pace.Next()) {
    const Case c = RandomCase(random);
    const double error = ErrorOf(device, c.model, c.batch, c.inputs, 40,
                                 pace.begun() % 4 != 1, c.what);
    Expect(error, c.tolerance, c.what);
    if (c.tolerance > 0) worst = std::max(worst, error / c.tolerance);
  }
  json.Set("random_programs", pace.begun());
  json.Set("largest_error_over_tolerance", worst);
}

// Chains of short kernels, which show first where one begins or ends too early:
// request after request through both slots, as graphs and one by one.
void CheckShortKernels(CudaDevice& device, Pace pace, std::mt19937& random,
                       Json& json) {
  const double allowed = kShortKernelsTolerance;
  double worst = 0;
  while (pace.Next()) {
    const int i = pace.begun() - 1;
    const int64_t cols = 1 + static_cast<int64_t>(random() % 300);
    const auto batch = static_cast<int64_t>(1 + random() % 64);
    const bool products = i % 2 == 0;
    const DenseModel model = MakeShortKernels(
        static_cast<int>(2 + random() % 30), cols, products, batch, random());
    const std::string what = "chain of " +
                             std::to_string(model.program.ops.size()) +
                             " short kernels, " + std::to_string(batch) +
                             " x " + std::to_string(cols);
    const auto inputs = RandomInputs(model.program, batch, random);
    const double error =
        ErrorOf(device, model, batch, inputs, batch, i % 3 != 0, what);
    Expect(error, allowed, what);
    worst = std::max(worst, error / allowed);
  }
  json.Set("short_kernel_chains", pace.begun());
  json.Set("largest_chain_error_over_tolerance", worst);
}

// Scores of the benchmarks' models: how far each precision is from double.
void CheckModels(CudaDevice& device, bool v2, int64_t batch,
                 std::mt19937& random, Json& json) {
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
    Json entry;
    entry.Set("model", v2 ? "dlrm_dcnv2" : "dlrm_v1");
    entry.Set("precision", Name(precision));
    entry.Set("largest_score_error", error);
    json.Append("precision_errors", entry);
  }
}

// A batch of which every thread has more than one piece of work, and sizes pass
// what small ones reach: the same few rows again and again must give the same
// few scores again and again.
void CheckLargeBatch(CudaDevice& device, bool v2, int64_t batch,
                     std::mt19937& random, Json& json) {
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
  json.Set("error", error);
  json.Set("batch", static_cast<double>(batch));
}

// Those of a part.
std::vector<ProductKernel> ProductKernels(bool tiles) {
  if (!tiles) return {ProductKernel::kRowDots};
  return {ProductKernel::kTiles16x16, ProductKernel::kTiles32x16,
          ProductKernel::kTiles32x32, ProductKernel::kTiles64x32,
          ProductKernel::kTiles64x64};
}

// Operands of a product in device memory.
class DeviceProduct {
 public:
  DeviceProduct(CudaDevice& device, ProductCase& product)
      : device_(device), product_(product), call_(product.call()) {
    call_.plain = !device.switches().has(Mechanism::kWideKernels);
  }
  ~DeviceProduct() {
    if (stream_.handle != nullptr) {
      (void)device_.Synchronize(stream_);
      (void)device_.DestroyStream(stream_);
    }
    for (void* memory : memory_) (void)device_.Free(memory);
  }

  Status Open() {
    auto stream = device_.CreateStream();
    if (!stream.ok()) return stream.status();
    stream_ = *stream;
    REFRACT_CUDA_RETURN_IF_ERROR(Upload(product_.in_bytes(), call_.in));
    REFRACT_CUDA_RETURN_IF_ERROR(Upload(product_.weight_bytes(), call_.weight));
    if (call_.bias != nullptr) {
      REFRACT_CUDA_RETURN_IF_ERROR(Upload(product_.bias_bytes(), call_.bias));
    }
    REFRACT_CUDA_RETURN_IF_ERROR(device_.Allocate(out_bytes(), &call_.out));
    memory_.push_back(call_.out);
    return {};
  }

  // The result of `kernel` in `out`, NaN where it wrote nothing.
  Status Run(ProductKernel kernel, std::vector<std::byte>& out) {
    out.assign(static_cast<size_t>(out_bytes()), std::byte{0xFF});
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToDevice({.to = call_.out,
                                                       .from = out.data(),
                                                       .row_bytes = out_bytes(),
                                                       .rows = 1},
                                                      stream_));
    call_.kernel = kernel;
    const cudaError_t error = runtime::cuda::LaunchKernel(
        call_, static_cast<cudaStream_t>(stream_.handle),
        runtime::cuda::Start::kAfter);
    if (error != cudaSuccess) {
      return Status(Code::kInternal, cudaGetErrorString(error));
    }
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToHost({.to = out.data(),
                                                     .from = call_.out,
                                                     .row_bytes = out_bytes(),
                                                     .rows = 1},
                                                    stream_));
    return device_.Synchronize(stream_);
  }

 private:
  int64_t out_bytes() const { return product_.out_bytes(); }
  // Puts what is at `operand` there, and makes it the address on the device.
  Status Upload(int64_t bytes, const void*& operand) {
    void* memory = nullptr;
    REFRACT_CUDA_RETURN_IF_ERROR(device_.Allocate(bytes, &memory));
    memory_.push_back(memory);
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToDevice(
        {.to = memory, .from = operand, .row_bytes = bytes, .rows = 1},
        stream_));
    operand = memory;
    return {};
  }

  CudaDevice& device_;
  ProductCase& product_;
  GemmCall call_;
  Stream stream_;
  std::vector<void*> memory_;
};

// `kernels` on random operands of `shape`. The largest error ÷ its tolerance.
double CheckProduct(CudaDevice& device, const GemmShape& shape,
                    const std::vector<ProductKernel>& kernels,
                    std::mt19937& random) {
  ProductCase product(shape, random);
  DeviceProduct on_device(device, product);
  Status status = on_device.Open();
  double worst = 0;
  for (ProductKernel kernel : kernels) {
    const bool rounds = shape.tf32 && shape.dtype == DType::kFloat32 &&
                        kernel != ProductKernel::kRowDots;
    std::vector<std::byte> out;
    if (status.ok()) status = on_device.Run(kernel, out);
    const double error = status.ok() ? product.Error(out.data(), rounds)
                                     : std::numeric_limits<double>::infinity();
    worst = std::max(worst, error);
    const std::string what =
        std::string(Name(kernel)) + ", " + Name(shape.dtype) +
        (rounds ? " as tf32, " : ", ") + std::to_string(shape.m) + " x " +
        std::to_string(shape.n) + " x " + std::to_string(shape.k) + ", " +
        Name(shape.epilogue);
    if (!status.ok()) {
      Fail(what + ": " + status.ToString());
      break;  // nothing that comes after it would be its own
    }
    Expect(error, 1, what);
  }
  return worst;
}

// Our own kernels for products, whichever of them a trial chooses: random
// shapes, and the layers of the benchmarks' models at `batch`.
void CheckProducts(CudaDevice& device, bool tiles, Pace pace, int64_t batch,
                   std::mt19937& random, Json& json) {
  double worst = 0;
  if (!device.switches().has(tiles ? Mechanism::kTileProducts
                                   : Mechanism::kRowProducts)) {
    return;
  }
  const std::vector<ProductKernel> kernels = ProductKernels(tiles);
  const auto to = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most)) + 1;
  };
  while (pace.Next()) {
    GemmShape shape;
    shape.dtype = static_cast<DType>(random() % 3);
    shape.tf32 = random() % 2 == 0;
    shape.epilogue = static_cast<Epilogue>(random() % 5);
    // Up to 2^22 multiplications; the CPU computes them all.
    shape.m = to(300);
    shape.n = to(std::min<int64_t>(600, (1 << 22) / shape.m));
    shape.k = to(std::min<int64_t>(1100, (1 << 22) / (shape.m * shape.n)));
    shape.ld_in = PaddedLd(shape.k, shape.dtype);
    shape.ld_weight = PaddedLd(shape.k, shape.dtype);
    shape.ld_out = shape.n + to(9) - 1;
    worst = std::max(worst, CheckProduct(device, shape, kernels, random));
  }
  for (bool v2 : {false, true}) {
    for (Precision precision : {Precision::kFloat32, Precision::kTf32,
                                Precision::kFloat16, Precision::kBFloat16}) {
      const DenseModel model =
          MakeDlrm("m", v2 ? MlperfV2() : MlperfV1(), precision, batch, 1);
      for (const GemmShape& shape : ProductShapes(model.program, batch)) {
        std::vector<ProductKernel> own;
        for (ProductKernel kernel : OwnCandidates(shape)) {
          if ((kernel != ProductKernel::kRowDots) == tiles) {
            own.push_back(kernel);
          }
        }
        worst = std::max(worst, CheckProduct(device, shape, own, random));
      }
    }
  }
  json.Set("products", pace.begun());
  json.Set("largest_product_error_over_tolerance", worst);
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

struct Options {
  int cases = 300;
  double seconds = 20;
  int batch = 33;
  int large = 8192;
  unsigned seed = std::random_device()();
  std::string json;
  std::string part;  // "": all
};

// One of `of` cases that are asked for, two at least.
Pace PaceOf(const Options& options, int of) {
  return {std::max(options.cases / of, 2), options.seconds};
}

using Check = void (*)(CudaDevice&, const Options&, std::mt19937&, Json&);
struct Part {
  const char* name;
  Check check;
};
// In this order: what others are made of first.
constexpr Part kParts[] = {
    {"row_products",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckProducts(device, false, PaceOf(options, 2), options.batch, random,
                     json);
     }},
    {"tile_products",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckProducts(device, true, PaceOf(options, 2), options.batch, random,
                     json);
     }},
    {"random_programs",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckRandomPrograms(device, PaceOf(options, 1), random, json);
     }},
    {"short_kernels",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckShortKernels(device, PaceOf(options, 10), random, json);
     }},
    {"dlrm_v1",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckModels(device, false, options.batch, random, json);
     }},
    {"dlrm_dcnv2",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckModels(device, true, options.batch, random, json);
     }},
    {"dlrm_v1_large",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckLargeBatch(device, false, options.large, random, json);
     }},
    {"dlrm_dcnv2_large",
     [](CudaDevice& device, const Options& options, std::mt19937& random,
        Json& json) {
       CheckLargeBatch(device, true, options.large, random, json);
     }},
    {"out_of_memory", [](CudaDevice& device, const Options&, std::mt19937&,
                         Json&) { CheckOutOfMemory(device); }},
};

int Run(const Options& options) {
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
  std::printf("%s, seed %u, early starts: %s\n",
              (*device)->properties().name.c_str(), options.seed,
              Name((*device)->early_starts()));
  Json json;
  json.Set("device", (*device)->properties().name);
  json.Set("seed", static_cast<double>(options.seed));
  json.Set("early_starts", Name((*device)->early_starts()));
  for (const Part& part : kParts) {
    if (!options.part.empty() && options.part != part.name) continue;
    std::printf("-- %s\n", part.name);
    std::fflush(stdout);
    // The same cases, whichever parts run.
    std::mt19937 random(options.seed);
    Json one;
    const int before = failures;
    part.check(**device, options, random, one);
    one.Set("failures", failures - before);
    json.Set(part.name, one);
    // Kernels whose results were not those of others: products do without, but
    // something is wrong.
    for (const std::string& warning : (*device)->TakeWarnings()) Fail(warning);
  }
  json.Set("failures", failures);
  std::printf("%s\n%d failures\n", json.Text().c_str(), failures);
  if (!options.json.empty() && !json.Write(options.json)) {
    std::fprintf(stderr, "cannot write %s\n", options.json.c_str());
    return 1;
  }
  if (failures == 0) return 0;
  return only_small_ones ? 3 : 1;
}

bool Parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) return false;
    const char* const value = argv[i + 1];
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
    } else if (flag == "--json") {
      options.json = value;
    } else if (flag == "--part") {
      options.part = value;
      if (std::none_of(
              std::begin(kParts), std::end(kParts),
              [&](const Part& part) { return options.part == part.name; })) {
        return false;
      }
    } else {
      return false;
    }
  }
  return options.cases >= 1 && options.batch >= 1 && options.large >= 1;
}

}  // namespace
}  // namespace refract::bench

int main(int argc, char** argv) {
  refract::bench::Options options;
  if (argc == 2 && std::string(argv[1]) == "--list") {
    for (const auto& part : refract::bench::kParts) std::puts(part.name);
    return 0;
  }
  if (!refract::bench::Parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: device_check [--cases N] [--seconds N] [--seed S] "
                 "[--json FILE] [--batch N] [--large N] [--part NAME] "
                 "[--list]\n");
    return 2;
  }
  return refract::bench::Run(options);
}
