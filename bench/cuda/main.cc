// Measures the CUDA backend on a GPU: what graphs save, how far from the
// device's limits, what fusion saves, whether copies overlap. Every figure is a
// ratio of things measured in this run. Results are checked by device_check
// first (scripts/gpu_check.sh runs both).
//
//   bench_cuda [--json FILE] [--repetitions N] [--quick | --dry-run]
//              [--parts NAME,…] [--list]
//
// --parts: these alone, of those that --list prints. A part announces itself
// by a line "-- NAME", and FILE is written anew after each; one that fails ends
// the program, for a device that it took along would spoil the others
// (gpu_check.py starts it again with what is left).
//
// --dry-run: everything once, at sizes that mean nothing, to see that it runs;
// bench_cuda_emulated, which is the same on a GPU of this process, has no
// other.
//
// Exit status 0 even where a bar is missed; 1: something failed; 2: bad usage;
// 77: no GPU.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/json.h"
#include "bench/cuda/loaded.h"
#include "bench/cuda/measure.h"
#include "bench/cuda/product_times.h"
#include "bench/cuda/random_programs.h"
#include "bench/cuda/recorded.h"
#include "bench/cuda/short_kernels.h"
#include "runtime/cuda/device/cuda_device.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/kernels/launch.h"

namespace refract::bench {
namespace {

using runtime::cuda::CudaDevice;
using runtime::cuda::DType;
using runtime::cuda::EarlyStarts;
using runtime::cuda::GemmCall;
using runtime::cuda::Instance;
using runtime::cuda::InstanceOptions;
using runtime::cuda::InteractionCall;
using runtime::cuda::Mechanism;
using runtime::cuda::SlotId;
using runtime::cuda::Start;
using runtime::cuda::Stream;

struct Limits {
  double flops = 0;           // per second, fp16 product
  double bytes = 0;           // per second, copy, read + written
  double kernel_seconds = 0;  // of an empty kernel, in a graph if there are any
};

struct BenchOptions {
  std::string json;
  std::string parts;  // "": all
  int repetitions = 21;
  bool quick = false;
  bool dry_run = false;
  bool list = false;
};

class Bench {
 public:
  Bench(CudaDevice& device, const BenchOptions& options)
      : device_(device),
        options_(options),
        repetitions_(options.dry_run ? 1 : options.repetitions),
        quick_(options.quick || options.dry_run) {
    json_.Set("benchmark", "cuda");
    json_.Set("device", device.properties().name);
    json_.Set("repetitions", repetitions_);
    json_.Set("quick", quick_);
    json_.Set("dry_run", options.dry_run);
    json_.Set("early_starts", Name(device.early_starts()));
    stream_ = Must(device_.CreateStream());
  }
  ~Bench() { (void)device_.DestroyStream(stream_); }

  struct Part {
    std::string name;
    std::function<void()> measure;
  };
  std::vector<Part> Parts() {
    std::vector<Part> parts = {
        {"limits", [this] { MeasureLimits(); }},
        {"graphs", [this] { GraphAgainstLaunches(); }},
    };
    for (int steps : {8, 24}) {
      parts.push_back({"chain_" + std::to_string(steps),
                       [this, steps] { ShortKernels(steps); }});
    }
    for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
      parts.push_back({std::string("interaction_") + runtime::cuda::Name(dtype),
                       [this, dtype] { Interaction(dtype); }});
    }
    for (int64_t batch : {256, 2048}) {
      if (quick_ && batch > 256) continue;
      parts.push_back({"overlap_" + std::to_string(batch),
                       [this, batch] { Overlap(batch); }});
    }
    for (int64_t batch : {64, 256, 2048}) {
      if (quick_ && batch > 64) continue;
      parts.push_back({"fused_" + std::to_string(batch),
                       [this, batch] { FusedAgainstSeparate(batch); }});
    }
    for (bool v2 : {false, true}) {
      for (int64_t batch : {256, 8192}) {
        if (quick_ && (v2 || batch > 256)) continue;
        parts.push_back({std::string(v2 ? "roofline_v2_" : "roofline_v1_") +
                             std::to_string(batch),
                         [this, v2, batch] { Roofline(v2, batch); }});
      }
    }
    std::vector<int64_t> batches = {1, 16, 64, 256, 1024};
    if (quick_) batches = {64, 256};
    if (options_.dry_run) batches = {2};
    for (int64_t batch : batches) {
      parts.push_back({"products_" + std::to_string(batch),
                       [this, batch] { Products(batch); }});
    }
    return parts;
  }

  void Run() {
    const std::string wanted = "," + options_.parts + ",";
    for (const Part& part : Parts()) {
      if (!options_.parts.empty() &&
          wanted.find("," + part.name + ",") == std::string::npos) {
        continue;
      }
      std::printf("-- %s\n", part.name.c_str());
      std::fflush(stdout);
      part.measure();
      Write();
    }
    for (const std::string& warning : device_.TakeWarnings()) {
      std::fprintf(stderr, "%s\n", warning.c_str());
    }
  }

 private:
  // What a size becomes where only the way matters.
  int64_t Size(int64_t size, int64_t dry) const {
    return options_.dry_run ? dry : size;
  }
  int Runs(int runs) const { return options_.dry_run ? 1 : runs; }
  int Slots(int64_t batch) const {
    return options_.dry_run ? 2 : SlotsFor(device_, batch);
  }

  // What was measured stays, should the next figure end the program.
  void Add(const Json& row) {
    json_.Append("rows", row);
    Write();
  }
  void Write() {
    if (!options_.json.empty() && !json_.Write(options_.json)) {
      std::fprintf(stderr, "cannot write %s\n", options_.json.c_str());
      std::exit(1);
    }
  }

  cudaStream_t raw() const { return static_cast<cudaStream_t>(stream_.handle); }
  void Wait() { Must(device_.Synchronize(stream_)); }

  void MeasureLimits() {
    const int64_t copy_bytes = Size(int64_t{1} << 30, 1 << 16);
    {
      DeviceMemory from(copy_bytes), to(copy_bytes);
      const auto seconds = MeasureInTurn(
          {[&] {
            for (int i = 0; i < 5; ++i) {
              MustBeOk(cudaMemcpyAsync(to.get(), from.get(),
                                       static_cast<size_t>(copy_bytes),
                                       cudaMemcpyDeviceToDevice, raw()),
                       "copy");
            }
            Wait();
          }},
          repetitions_);
      limits_.bytes = 5 * 2 * static_cast<double>(copy_bytes) /
                      QuartilesOf(seconds[0]).median;
    }
    {
      const int64_t n = Size(8192, 16);
      DeviceMemory a(n * n * 2), b(n * n * 2), c(n * n * 2);
      const int64_t workspace_bytes = int64_t{32} << 20;
      DeviceMemory workspace(workspace_bytes);
      GemmCall call;
      call.shape = {.m = n,
                    .n = n,
                    .k = n,
                    .ld_in = n,
                    .ld_weight = n,
                    .ld_out = n,
                    .dtype = DType::kFloat16};
      call.in = a.get();
      call.weight = b.get();
      call.out = c.get();
      call.workspace = workspace.get();
      call.workspace_bytes = workspace_bytes;
      Must(device_.Prepare(call.shape, workspace_bytes,
                           runtime::cuda::DeviceApi::Choice::kMeasured));
      const auto seconds =
          MeasureInTurn({[&] {
                          for (int i = 0; i < 5; ++i)
                            Must(device_.Launch(call, stream_, Start::kAfter));
                          Wait();
                        }},
                        repetitions_);
      limits_.flops = 5 * 2 * std::pow(static_cast<double>(n), 3) /
                      QuartilesOf(seconds[0]).median;
    }
    Json limits;
    limits_.kernel_seconds = EmptyKernelSeconds(Start::kAfter);
    if (device_.early_starts() != EarlyStarts::kNever) {
      limits.Set("early_kernel_us", EmptyKernelSeconds(Start::kEarly) * 1e6);
    }
    limits.Set("fp16_tflops", limits_.flops * 1e-12);
    limits.Set("copy_gb_per_s", limits_.bytes * 1e-9);
    limits.Set("kernel_us", limits_.kernel_seconds * 1e6);
    json_.Set("limits", limits);
    std::printf(
        "limits: %.0f TFLOP/s fp16, %.0f GB/s copied, %.2f us per "
        "kernel\n",
        limits_.flops * 1e-12, limits_.bytes * 1e-9,
        limits_.kernel_seconds * 1e6);
  }

  // One of many, launched as those of programs are.
  double EmptyKernelSeconds(Start start) {
    constexpr int kNodes = 200;
    const Recorded kernels(device_, stream_, [&] {
      for (int i = 0; i < kNodes; ++i) {
        MustBeOk(
            runtime::cuda::LaunchEmpty(raw(), i == 0 ? Start::kAfter : start),
            "empty kernel");
      }
    });
    const auto seconds = MeasureInTurn({[&] {
                                         for (int i = 0; i < 10; ++i)
                                           kernels.Launch();
                                         Wait();
                                       }},
                                       repetitions_);
    return QuartilesOf(seconds[0]).median / (10.0 * kNodes);
  }

  void GraphAgainstLaunches() {
    if (!device_.can_capture()) {
      std::printf("graphs are switched off\n");
      return;
    }
    const DenseModel model =
        MakeDlrm("v1", MlperfV1(), Precision::kFloat16, Size(64, 2), 1);
    const int slots = Slots(64);
    Loaded graphs(device_, model, Size(64, 2), slots, true);
    // The same kernels, begun the same way.
    Loaded launches(
        device_, model, Size(64, 2), slots, false,
        graphs.starts_early() ? EarlyStarts::kAlways : EarlyStarts::kNever);
    // One request at a time, and many in a row.
    for (int runs : {1, Runs(49) + 1}) {
      const auto seconds = MeasureInTurn(
          {[&] { graphs.Compute(runs); }, [&] { launches.Compute(runs); }},
          runs == 1 ? Runs(20) * repetitions_ : repetitions_);
      Json row =
          Row("G1 graph / launches, v1, batch 64, " +
                  std::string(runs == 1 ? "each waited for" : "50 in a row"),
              PairedRatio(seconds[0], seconds[1]), 0.6, true);
      row.Set("graph_us", QuartilesOf(seconds[0]).median / runs * 1e6);
      row.Set("early_starts", graphs.starts_early());
      Add(row);
    }
    EarlyAgainstPlain("G1 early / plain starts, v1, batch 64", model,
                      Size(64, 2), slots);
  }

  void ShortKernels(int steps) {
    EarlyAgainstPlain("early / plain starts, " + std::to_string(steps) +
                          " short kernels, batch 64",
                      MakeShortKernels(steps, 256, false, Size(64, 2), 1),
                      Size(64, 2), 2);
  }

  // What starts that hide behind the kernel before give a graph, each of whose
  // launches is waited for.
  void EarlyAgainstPlain(const std::string& name, const DenseModel& model,
                         int64_t items, int slots) {
    if (device_.early_starts() == EarlyStarts::kNever) return;
    Loaded early(device_, model, items, slots, true, EarlyStarts::kAlways);
    if (!early.starts_early()) {
      std::printf("%-52s no kernels of ours in a row\n", name.c_str());
      return;
    }
    Loaded plain(device_, model, items, slots, true, EarlyStarts::kNever);
    const auto seconds =
        MeasureInTurn({[&] { early.Compute(1); }, [&] { plain.Compute(1); }},
                      Runs(20) * repetitions_);
    Json row = RowWithoutBar(name, PairedRatio(seconds[0], seconds[1]));
    row.Set("early_us", QuartilesOf(seconds[0]).median * 1e6);
    row.Set("plain_us", QuartilesOf(seconds[1]).median * 1e6);
    Add(row);
  }

  void Roofline(bool v2, int64_t batch) {
    if (limits_.flops == 0) MeasureLimits();
    const int64_t items = Size(batch, 2);
    const DenseModel model = MakeDlrm("m", v2 ? MlperfV2() : MlperfV1(),
                                      Precision::kFloat16, items, 1);
    Loaded loaded(device_, model, items, Slots(batch), true);
    const int kRuns = Runs(20);
    const auto seconds =
        MeasureInTurn({[&] { loaded.Compute(kRuns); }}, repetitions_);
    const double floor =
        std::max(
            model.flops_per_item * static_cast<double>(items) / limits_.flops,
            MinimumBytes(model.program, items) / limits_.bytes) +
        static_cast<double>(model.program.ops.size()) * limits_.kernel_seconds;
    Quartiles ratio = QuartilesOf(seconds[0]);
    for (double* q : {&ratio.q25, &ratio.median, &ratio.q75}) {
      *q /= kRuns * floor;
    }
    Json row = Row("G2 measured / roofline, " + std::string(v2 ? "v2" : "v1") +
                       ", batch " + std::to_string(batch),
                   ratio, batch == 256 ? 2.0 : 1.6, true);
    row.Set("measured_us", ratio.median * floor * 1e6);
    row.Set("floor_us", floor * 1e6);
    row.Set("early_starts", loaded.starts_early());
    Add(row);
    EarlyAgainstPlain("G2 early / plain starts, " +
                          std::string(v2 ? "v2" : "v1") + ", batch " +
                          std::to_string(batch),
                      model, items, Slots(batch));
  }

  // The first sample, the last and some between: what device_check's batches
  // are too small to show.
  void CheckInteraction(const InteractionCall& call) {
    MustBeOk(runtime::cuda::LaunchKernel(call, raw(), Start::kAfter), "kernel");
    Wait();
    const int64_t size = runtime::cuda::SizeOf(call.dtype);
    const auto row = [&](const void* data, int64_t ld, int64_t sample) {
      std::vector<unsigned char> bytes(static_cast<size_t>(ld * size));
      MustBeOk(cudaMemcpy(bytes.data(),
                          static_cast<const char*>(data) + sample * ld * size,
                          bytes.size(), cudaMemcpyDeviceToHost),
               "cudaMemcpy");
      std::vector<double> values;
      for (int64_t i = 0; i < ld; ++i) {
        values.push_back(runtime::cuda::Load(bytes.data(), call.dtype, i));
      }
      return values;
    };
    for (int64_t i = 0; i <= 8; ++i) {
      const int64_t sample = (call.samples - 1) * i / 8;
      std::vector<double> features = row(call.dense, call.ld_dense, sample);
      const auto rest = row(call.embeddings, call.ld_embeddings, sample);
      features.insert(features.end(), rest.begin(), rest.end());
      std::vector<double> want(features.begin(), features.begin() + call.dim);
      for (int a = 0; a < call.features; ++a) {
        for (int b = 0; b < a; ++b) {
          double dot = 0;
          for (int d = 0; d < call.dim; ++d) {
            dot += features[static_cast<size_t>(a * call.dim + d)] *
                   features[static_cast<size_t>(b * call.dim + d)];
          }
          want.push_back(dot);
        }
      }
      want.resize(want.size() + static_cast<size_t>(call.pad));
      const auto got = row(call.out, call.ld_out, sample);
      for (size_t c = 0; c < want.size(); ++c) {
        // Rounding of TF32's factors and of the result.
        if (std::abs(got[c] - want[c]) <= 1e-2 * std::abs(want[c])) continue;
        std::fprintf(stderr,
                     "interaction in %s, sample %lld of %lld, column %zu: %g, "
                     "not %g\n",
                     runtime::cuda::Name(call.dtype),
                     static_cast<long long>(sample),
                     static_cast<long long>(call.samples), c, got[c], want[c]);
        std::exit(1);
      }
    }
  }

  void Interaction(DType dtype) {
    const int64_t samples = Size(quick_ ? 8192 : 65536, 3);
    const int64_t size = runtime::cuda::SizeOf(dtype);
    const int64_t ld_out = runtime::cuda::PaddedLd(479, dtype);
    DeviceMemory dense(samples * 128 * size),
        embeddings(samples * 26 * 128 * size), out(samples * ld_out * size);
    const int64_t bytes = samples * (27 * 128 + ld_out) * size;
    // A copy that moves as much.
    DeviceMemory from(bytes / 2), to(bytes / 2);
    const InteractionCall call = {
        .dense = dense.get(),
        .embeddings = embeddings.get(),
        .out = out.get(),
        .ld_dense = 128,
        .ld_embeddings = 26 * 128,
        .ld_out = ld_out,
        .samples = samples,
        .features = 27,
        .dim = 128,
        .pad = static_cast<int32_t>(ld_out - 479),
        .dtype = dtype,
        .tf32 = true,
        .plain = !device_.switches().has(Mechanism::kTensorInteraction)};
    CheckInteraction(call);
    const int kRuns = Runs(10);
    const auto seconds = MeasureInTurn(
        {[&] {
           for (int i = 0; i < kRuns; ++i) {
             MustBeOk(runtime::cuda::LaunchKernel(call, raw(), Start::kAfter),
                      "kernel");
           }
           Wait();
         },
         [&] {
           for (int i = 0; i < kRuns; ++i) {
             MustBeOk(cudaMemcpyAsync(to.get(), from.get(),
                                      static_cast<size_t>(bytes / 2),
                                      cudaMemcpyDeviceToDevice, raw()),
                      "copy");
           }
           Wait();
         }},
        repetitions_);
    Json row = Row("G3 interaction GB/s / copy GB/s, " +
                       std::string(runtime::cuda::Name(dtype)),
                   PairedRatio(seconds[1], seconds[0]), 0.6, false);
    row.Set("gb_per_s", static_cast<double>(bytes) * kRuns * 1e-9 /
                            QuartilesOf(seconds[0]).median);
    Add(row);
  }

  void FusedAgainstSeparate(int64_t batch) {
    if (!device_.switches().has(Mechanism::kEpilogues)) {
      std::printf("fused epilogues are switched off\n");
      return;
    }
    const int64_t items = Size(batch, 2);
    const DenseModel model =
        MakeDlrm("v1", MlperfV1(), Precision::kFloat16, items, 1);
    const int slots = Slots(batch);
    Loaded fused(device_, model, items, slots, true);
    Loaded separate(device_, SeparateEpilogues(model), items, slots, true);
    const int runs = Runs(20);
    const auto seconds = MeasureInTurn(
        {[&] { fused.Compute(runs); }, [&] { separate.Compute(runs); }},
        repetitions_);
    Add(Row("G4 fused / separate epilogues, v1, batch " + std::to_string(batch),
            PairedRatio(seconds[0], seconds[1]), 0.85, true));
  }

  void Overlap(int64_t batch) {
    const int64_t items = Size(batch, 2);
    const DenseModel model =
        MakeDlrm("v1", MlperfV1(), Precision::kFloat16, items, 1);
    constexpr int kSlots = 4;
    // So many that the first upload and the last download, which overlap with
    // nothing, are a hundredth.
    const int kRuns = options_.dry_run ? 6 : 200;
    Loaded loaded(device_, model, items, kSlots, true);
    Instance& instance = loaded.instance();
    const int64_t bytes = loaded.bytes_up();
    DeviceMemory to(bytes);
    void* pinned = nullptr;
    Must(device_.AllocatePinned(bytes, &pinned));
    auto overlapped = [&] {
      for (int run = 0; run < kRuns + kSlots; ++run) {
        const SlotId slot = loaded.slots()[run % kSlots];
        if (run >= kSlots) Must(instance.Wait(slot));
        if (run >= kRuns) continue;
        // The same inputs again; the slot's memory keeps them.
        instance.Release(slot);
        if (Must(instance.Acquire(items)) != slot) std::abort();
        Must(instance.Submit(slot));
      }
    };
    const auto seconds = MeasureInTurn(
        {overlapped,
         [&] {
           for (int i = 0; i < kRuns; ++i) {
             MustBeOk(
                 cudaMemcpyAsync(to.get(), pinned, static_cast<size_t>(bytes),
                                 cudaMemcpyHostToDevice, raw()),
                 "copy");
           }
           Wait();
         },
         [&] { loaded.Compute(kRuns); }},
        repetitions_);
    // Throughput ÷ that of the slower half alone.
    std::vector<double> slower;
    for (size_t i = 0; i < seconds[1].size(); ++i) {
      slower.push_back(std::max(seconds[1][i], seconds[2][i]));
    }
    Json row = Row("G6 overlapped / slower of copy, compute, batch " +
                       std::to_string(batch),
                   PairedRatio(slower, seconds[0]), 0.85, false);
    row.Set("items_per_s", static_cast<double>(items * kRuns) /
                               QuartilesOf(seconds[0]).median);
    const char* const names[] = {"overlapped_us", "copy_us", "compute_us"};
    for (size_t i = 0; i < std::size(names); ++i) {
      row.Set(names[i], QuartilesOf(seconds[i]).median / kRuns * 1e6);
    }
    Add(row);
    (void)device_.FreePinned(pinned);
  }

  void Products(int64_t batch) {
    if (!device_.switches().has(Mechanism::kTileProducts)) {
      std::printf("our own products are switched off\n");
      return;
    }
    for (const Json& row :
         MeasureProducts(device_, stream_, {batch}, Runs(20), repetitions_)) {
      json_.Append("products", row);
    }
  }

  CudaDevice& device_;
  const BenchOptions options_;
  const int repetitions_;
  const bool quick_;
  Stream stream_;
  Limits limits_;
  Json json_;
};

int Run(const BenchOptions& options) {
  auto count = runtime::cuda::CountDevices();
  if (!count.ok() || *count == 0) {
    std::printf("skipped: no GPU: %s\n",
                count.ok() ? "the driver shows none"
                           : count.status().message().c_str());
    return 77;
  }
  const auto device = Must(CudaDevice::Create(0));
  Bench bench(*device, options);
  if (options.list) {
    for (const auto& part : bench.Parts()) std::puts(part.name.c_str());
    return 0;
  }
  bench.Run();
  return 0;
}

}  // namespace
}  // namespace refract::bench

int main(int argc, char** argv) {
  refract::bench::BenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      options.quick = true;
    } else if (flag == "--dry-run") {
      options.dry_run = true;
    } else if (flag == "--list") {
      options.list = true;
    } else if (flag == "--parts" && i + 1 < argc) {
      options.parts = argv[++i];
    } else if (flag == "--json" && i + 1 < argc) {
      options.json = argv[++i];
    } else if (flag == "--repetitions" && i + 1 < argc) {
      options.repetitions = std::atoi(argv[++i]);
    } else {
      options.repetitions = 0;
    }
  }
  if (options.repetitions < 1) {
    std::fprintf(stderr,
                 "usage: bench_cuda [--json FILE] [--repetitions N] "
                 "[--quick | --dry-run] [--parts NAME,...] [--list]\n");
    return 2;
  }
  return refract::bench::Run(options);
}
