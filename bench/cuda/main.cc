// Measures the CUDA backend on a GPU: what graphs save, how far from the
// device's limits it is, what fusion saves, whether copies overlap. Every
// figure is a ratio of times of this run. Results are checked by device_check
// first (scripts/gpu_check.sh runs both).
//
//   bench_cuda [--repetitions N] [--quick | --dry-run] [--parts NAME,…]
//   [--list]
//
// --parts runs only the named parts; --list prints all names. A part begins
// with a line "-- NAME"; its results are lines "= {JSON}". A part that fails
// ends the program, because an error of the device would spoil the parts after
// it: run_parts.py starts the program again with the next part.
//
// --dry-run runs every part once at tiny sizes, to show that the code works.
// bench_cuda_emulated, whose GPU is this process, has no other mode.
//
// Exit status 0 even where a bar is missed; 1: something failed; 2: bad usage;
// 77: no GPU.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "bench/cuda/loaded.h"
#include "bench/cuda/measure.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/device/cuda_runtime.h"
#include "runtime/cuda/kernels/launch.h"

namespace refract::bench {
namespace {

using runtime::cuda::CudaRuntime;
using runtime::cuda::DType;
using runtime::cuda::GemmCall;
using runtime::cuda::Graph;
using runtime::cuda::Instance;
using runtime::cuda::InteractionCall;
using runtime::cuda::SlotId;
using runtime::cuda::Stream;

struct Limits {
  double flops = 0;           // per second, fp16 product
  double bytes = 0;           // per second, copy, read + written
  double kernel_seconds = 0;  // of an empty kernel, in a graph if there are any
};

struct BenchOptions {
  std::string parts;  // "": all
  int repetitions = 21;
  bool quick = false;
  bool dry_run = false;
  bool list = false;
};

class Bench {
 public:
  Bench(CudaRuntime& device, const BenchOptions& options)
      : device_(device),
        options_(options),
        repetitions_(options.dry_run ? 1 : options.repetitions),
        quick_(options.quick || options.dry_run) {
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
    for (int64_t batch : {1, 64, 256}) {
      if (quick_ && batch != 64) continue;
      parts.push_back({"requests_" + std::to_string(batch),
                       [this, batch] { Requests(batch); }});
    }
    for (bool v2 : {false, true}) {
      for (int64_t batch : {256, 8192}) {
        if (quick_ && (v2 || batch > 256)) continue;
        parts.push_back({std::string(v2 ? "roofline_v2_" : "roofline_v1_") +
                             std::to_string(batch),
                         [this, v2, batch] { Roofline(v2, batch); }});
      }
    }
    return parts;
  }

  void Run() {
    std::printf(
        "= {\"device\": \"%s\", \"repetitions\": %d, \"dry_run\": %s}\n",
        device_.properties().name.c_str(), repetitions_,
        options_.dry_run ? "true" : "false");
    const std::string wanted = "," + options_.parts + ",";
    for (const Part& part : Parts()) {
      if (!options_.parts.empty() &&
          wanted.find("," + part.name + ",") == std::string::npos) {
        continue;
      }
      std::printf("-- %s\n", part.name.c_str());
      std::fflush(stdout);
      part.measure();
    }
  }

 private:
  // A size, or its small substitute in a dry run.
  int64_t Size(int64_t size, int64_t dry) const {
    return options_.dry_run ? dry : size;
  }
  int Runs(int runs) const { return options_.dry_run ? 1 : runs; }
  int Slots(int64_t batch) const {
    return options_.dry_run ? 2 : SlotsFor(device_, batch);
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
      // Each byte is read and written.
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
      const auto seconds =
          MeasureInTurn({[&] {
                          for (int i = 0; i < 5; ++i)
                            Must(device_.Launch(call, stream_));
                          Wait();
                        }},
                        repetitions_);
      // 2 n³ FLOP per product of n × n matrices.
      limits_.flops = 5 * 2 * std::pow(static_cast<double>(n), 3) /
                      QuartilesOf(seconds[0]).median;
    }
    limits_.kernel_seconds = EmptyKernelSeconds();
    ReportDetails({{"fp16_tflops", limits_.flops * 1e-12},
                   {"copy_gb_per_s", limits_.bytes * 1e-9},
                   {"kernel_us", limits_.kernel_seconds * 1e6}});
    std::printf(
        "limits: %.0f TFLOP/s fp16, %.0f GB/s copied, %.2f us per "
        "kernel\n",
        limits_.flops * 1e-12, limits_.bytes * 1e-9,
        limits_.kernel_seconds * 1e6);
  }

  // Time of an empty kernel among many in a CUDA graph, as in programs.
  double EmptyKernelSeconds() {
    constexpr int kNodes = 200;
    Must(device_.BeginCapture(stream_));
    for (int i = 0; i < kNodes; ++i) {
      MustBeOk(runtime::cuda::LaunchEmpty(raw()), "empty kernel");
    }
    const Graph kernels = Must(device_.EndCapture(stream_));
    const auto seconds =
        MeasureInTurn({[&] {
                        for (int i = 0; i < 10; ++i)
                          Must(device_.Launch(kernels, stream_));
                        Wait();
                      }},
                      repetitions_);
    Must(device_.DestroyGraph(kernels));
    return QuartilesOf(seconds[0]).median / (10.0 * kNodes);
  }

  void GraphAgainstLaunches() {
    const DenseModel model =
        MakeDlrm("v1", MlperfV1(), Precision::kFloat16, Size(64, 2), 1);
    const int slots = Slots(64);
    Loaded graphs(device_, model, Size(64, 2), slots);
    Loaded launches(device_, model, Size(64, 2), slots, /*use_graphs=*/false);
    // One request at a time, and many in a row.
    for (int runs : {1, Runs(49) + 1}) {
      const auto seconds = MeasureInTurn(
          {[&] { graphs.Compute(runs); }, [&] { launches.Compute(runs); }},
          runs == 1 ? Runs(20) * repetitions_ : repetitions_);
      Report("G1 graph / launches, v1, batch 64, " +
                 std::string(runs == 1 ? "each waited for" : "50 in a row"),
             PairedRatio(seconds[0], seconds[1]), Bar::kAtMost, 0.6,
             {{"graph_us", QuartilesOf(seconds[0]).median / runs * 1e6}});
    }
  }

  void Roofline(bool v2, int64_t batch) {
    if (limits_.flops == 0) MeasureLimits();
    const int64_t items = Size(batch, 2);
    const DenseModel model = MakeDlrm("m", v2 ? MlperfV2() : MlperfV1(),
                                      Precision::kFloat16, items, 1);
    Loaded loaded(device_, model, items, Slots(batch));
    const int kRuns = Runs(20);
    const auto seconds =
        MeasureInTurn({[&] { loaded.Compute(kRuns); }}, repetitions_);
    // The floor of a computation: FLOP or bytes at the device's measured
    // limits, whichever takes longer, and the launch of each operator.
    const double floor =
        std::max(
            model.flops_per_item * static_cast<double>(items) / limits_.flops,
            MinimumBytes(model.program, items) / limits_.bytes) +
        static_cast<double>(model.program.ops.size()) * limits_.kernel_seconds;
    Quartiles ratio = QuartilesOf(seconds[0]);
    for (double* q : {&ratio.q25, &ratio.median, &ratio.q75}) {
      *q /= kRuns * floor;
    }
    Report("G2 measured / roofline, " + std::string(v2 ? "v2" : "v1") +
               ", batch " + std::to_string(batch),
           ratio, Bar::kAtMost, batch == 256 ? 2.0 : 1.6,
           {{"measured_us", ratio.median * floor * 1e6},
            {"floor_us", floor * 1e6}});
  }

  // The first sample, the last and some between them; device_check's batches
  // are too small for this.
  void CheckInteraction(const InteractionCall& call) {
    MustBeOk(runtime::cuda::LaunchKernel(call, raw()), "kernel");
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
    // 27 vectors of 128 elements are read and a row of the result is written,
    // each once.
    const int64_t bytes = samples * (27 * 128 + ld_out) * size;
    // A copy that moves the same number of bytes.
    DeviceMemory from(bytes / 2), to(bytes / 2);
    const InteractionCall call = {.dense = dense.get(),
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
                                  .tf32 = true};
    CheckInteraction(call);
    const int kRuns = Runs(10);
    const auto seconds = MeasureInTurn(
        {[&] {
           for (int i = 0; i < kRuns; ++i) {
             MustBeOk(runtime::cuda::LaunchKernel(call, raw()), "kernel");
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
    Report("G3 interaction GB/s / copy GB/s, " +
               std::string(runtime::cuda::Name(dtype)),
           PairedRatio(seconds[1], seconds[0]), Bar::kAtLeast, 0.6,
           {{"gb_per_s", static_cast<double>(bytes) * kRuns * 1e-9 /
                             QuartilesOf(seconds[0]).median}});
  }

  void FusedAgainstSeparate(int64_t batch) {
    const int64_t items = Size(batch, 2);
    const DenseModel model =
        MakeDlrm("v1", MlperfV1(), Precision::kFloat16, items, 1);
    const int slots = Slots(batch);
    Loaded fused(device_, model, items, slots);
    Loaded separate(device_, SeparateEpilogues(model), items, slots);
    const int runs = Runs(20);
    const auto seconds = MeasureInTurn(
        {[&] { fused.Compute(runs); }, [&] { separate.Compute(runs); }},
        repetitions_);
    Report("G4 fused / separate epilogues, v1, batch " + std::to_string(batch),
           PairedRatio(seconds[0], seconds[1]), Bar::kAtMost, 0.85);
  }

  // A request as a GPU node gets it, with an input per table, against the same
  // bytes in one input.
  void Requests(int64_t batch) {
    const int64_t items = Size(batch, 2);
    std::vector<std::unique_ptr<Loaded>> loaded;
    DlrmShape shape = MlperfV1();
    for (int64_t inputs : {shape.tables, int64_t{1}}) {
      shape.sent_inputs = inputs;
      loaded.push_back(std::make_unique<Loaded>(
          device_, MakeDlrm("v1", shape, Precision::kFloat16, items, 1), items,
          2));
    }
    const int runs = Runs(50);
    const auto seconds =
        MeasureInTurn({[&] { loaded[0]->Serve(items, runs); },
                       [&] { loaded[1]->Serve(items, runs); }},
                      repetitions_);
    Report("G7 request with 27 inputs / with 2, v1, batch " +
               std::to_string(batch),
           PairedRatio(seconds[0], seconds[1]), Bar::kAtMost, 1.2,
           {{"request_us", QuartilesOf(seconds[0]).median / runs * 1e6},
            {"two_inputs_us", QuartilesOf(seconds[1]).median / runs * 1e6}});
  }

  void Overlap(int64_t batch) {
    const int64_t items = Size(batch, 2);
    const DenseModel model =
        MakeDlrm("v1", MlperfV1(), Precision::kFloat16, items, 1);
    constexpr int kSlots = 4;
    // With this many runs, the first upload and the last download, which
    // overlap with nothing, are a hundredth of the whole.
    const int kRuns = options_.dry_run ? 6 : 200;
    Loaded loaded(device_, model, items, kSlots);
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
    // Throughput ÷ the throughput of the slower half alone.
    std::vector<double> slower;
    for (size_t i = 0; i < seconds[1].size(); ++i) {
      slower.push_back(std::max(seconds[1][i], seconds[2][i]));
    }
    const auto each_us = [&](size_t i) {
      return QuartilesOf(seconds[i]).median / kRuns * 1e6;
    };
    Report("G6 overlapped / slower of copy, compute, batch " +
               std::to_string(batch),
           PairedRatio(slower, seconds[0]), Bar::kAtLeast, 0.85,
           {{"items_per_s", static_cast<double>(items) / each_us(0) * 1e6},
            {"overlapped_us", each_us(0)},
            {"copy_us", each_us(1)},
            {"compute_us", each_us(2)}});
    (void)device_.FreePinned(pinned);
  }

  CudaRuntime& device_;
  const BenchOptions options_;
  const int repetitions_;
  const bool quick_;
  Stream stream_;
  Limits limits_;
};

int Run(const BenchOptions& options) {
  auto count = runtime::cuda::CountDevices();
  if (!count.ok() || *count == 0) {
    std::printf("skipped: no GPU: %s\n",
                count.ok() ? "the driver shows none"
                           : count.status().message().c_str());
    return 77;
  }
  const auto device = Must(CudaRuntime::Create(0));
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
    } else if (flag == "--repetitions" && i + 1 < argc) {
      options.repetitions = std::atoi(argv[++i]);
    } else {
      options.repetitions = 0;
    }
  }
  if (options.repetitions < 1) {
    std::fprintf(stderr,
                 "usage: bench_cuda [--repetitions N] [--quick | --dry-run] "
                 "[--parts NAME,...] [--list]\n");
    return 2;
  }
  return refract::bench::Run(options);
}
