#include "bench/runtime/layers.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "base/tensor.h"
#include "bench/runtime/baseline.h"
#include "bench/runtime/peak.h"
#include "runtime/cpu/dense/gemm.h"

namespace refract::bench {
namespace {

constexpr double kTolerance = 1e-4;

std::vector<Layer> MakeMlp(const std::vector<int64_t>& widths,
                           std::mt19937& random) {
  std::vector<Layer> layers;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    Layer layer;
    layer.inputs = widths[i];
    layer.outputs = widths[i + 1];
    std::normal_distribution<float> normal(
        0, std::sqrt(2.0f / static_cast<float>(widths[i])));
    layer.weight.resize(static_cast<size_t>(layer.inputs * layer.outputs));
    for (float& weight : layer.weight) weight = normal(random);
    layer.bias.assign(static_cast<size_t>(layer.outputs), 0.01f);
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

int RunLayers(const std::vector<int64_t>& batches, int rounds, Clock clock,
              Json& json) {
  namespace cpu = runtime::cpu;
  std::mt19937 random(1);
  // DLRM of MLPerf v1: bottom layers of 13 dense features, and top layers of
  // 128 elements and 351 pair products.
  const std::vector<int64_t> mlps[] = {{13, 512, 256, 128},
                                       {479, 1024, 1024, 512, 256, 1}};
  std::vector<std::vector<Layer>> models;
  std::vector<std::vector<cpu::PackedMatrix>> packed;
  const auto arena = std::make_shared<cpu::WeightArena>();
  double flops_per_item = 0;
  for (const auto& widths : mlps) {
    models.push_back(MakeMlp(widths, random));
    packed.emplace_back();
    for (const Layer& layer : models.back()) {
      // Strides 1 and `inputs`: the weight is [outputs, inputs], and the
      // product needs its transpose.
      packed.back().emplace_back(layer.weight.data(), layer.inputs,
                                 layer.outputs, 1, layer.inputs,
                                 cpu::WeightForm::kFloat32, arena);
      flops_per_item += 2.0 * static_cast<double>(layer.inputs) *
                        static_cast<double>(layer.outputs);
    }
  }
  json["rounds"] = rounds;
  for (const int64_t batch : batches) {
    std::vector<std::vector<base::Tensor>> values(models.size());
    for (size_t m = 0; m < models.size(); ++m) {
      values[m].push_back(*base::Tensor::Allocate(
          base::DType::kFloat32, {batch, models[m][0].inputs}));
      std::uniform_real_distribution<float> uniform(-1, 1);
      for (float& x : values[m][0].as<float>()) x = uniform(random);
      for (const Layer& layer : models[m]) {
        values[m].push_back(*base::Tensor::Allocate(base::DType::kFloat32,
                                                    {batch, layer.outputs}));
      }
    }
    // values[m][i] is the input of layer i of model m, and its result is the
    // next one.
    const auto ours = [&] {
      for (size_t m = 0; m < models.size(); ++m) {
        for (size_t i = 0; i < models[m].size(); ++i) {
          const Layer& layer = models[m][i];
          cpu::Gemm(values[m][i].as<float>().data(), layer.inputs, batch,
                    packed[m][i], {layer.bias.data(), true},
                    values[m][i + 1].as<float>().data(), layer.outputs);
        }
      }
    };
    ours();
    const std::pair<const char*, LayerMethod> methods[] = {
        {"at_linear_relu", LayerMethod::kLinear},
        {"mkl_packed_relu", LayerMethod::kMklPacked},
        {"onednn_packed", LayerMethod::kDnnlPacked}};
    std::vector<std::vector<std::unique_ptr<Baseline>>> torch;
    std::vector<Variant> variants = {{"refract", ours}};
    double difference = 0;
    for (const auto& [name, method] : methods) {
      torch.emplace_back();
      for (size_t m = 0; m < models.size(); ++m) {
        torch.back().push_back(MakeLayers(models[m], method, batch));
        const base::TensorView input = values[m][0].view();
        torch.back()[m]->Bind({&input, 1});
        torch.back()[m]->Run();
        difference = std::max(difference,
                              Difference(values[m].back().view().as<float>(),
                                         torch.back()[m]->Results().front()));
      }
      if (difference > kTolerance) {
        std::fprintf(stderr, "bench_runtime: batch %ld: %s differs by %g\n",
                     static_cast<long>(batch), name, difference);
        return 1;
      }
      variants.emplace_back(name, [&torch, t = torch.size() - 1] {
        for (auto& baseline : torch[t]) baseline->Run();
      });
    }
    // As many multiply-adds as the layers need, without memory: the time at the
    // peak rate.
    volatile double peak = 0;
    const double work = flops_per_item * static_cast<double>(batch);
    variants.emplace_back("fma_loop", [&] {
      peak = RunFmaLoop(work, cpu::ChosenTileSet().name);
    });
    Json row = Compare(variants, rounds, clock);
    row["batch"] = batch;
    row["largest_difference"] = difference;
    row["flops"] = work;
    json["layers"].push_back(row);
  }
  return 0;
}

}  // namespace refract::bench
