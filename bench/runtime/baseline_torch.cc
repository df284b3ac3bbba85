#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/runtime/baseline.h"

namespace refract::bench {
namespace {

at::ScalarType TypeOf(base::DType dtype) {
  switch (dtype) {
    case base::DType::kInt64:
      return at::kLong;
    case base::DType::kInt32:
      return at::kInt;
    case base::DType::kBool:
      return at::kBool;
    default:
      return at::kFloat;
  }
}

at::Tensor TensorOf(const base::TensorView& view) {
  return at::from_blob(const_cast<std::byte*>(view.data),
                       at::IntArrayRef(view.dims.data(), view.dims.size()),
                       TypeOf(view.dtype));
}

std::vector<float> FloatsOf(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.to(at::kFloat).contiguous();
  const float* data = dense.const_data_ptr<float>();
  return {data, data + dense.numel()};
}

class TorchScript final : public Baseline {
 public:
  explicit TorchScript(torch::jit::Module module)
      : module_(std::move(module)) {}
  void Bind(absl::Span<const base::TensorView> inputs) override {
    inputs_.clear();
    for (const auto& input : inputs) inputs_.emplace_back(TensorOf(input));
  }
  void Run() override {
    const c10::InferenceMode mode;
    result_ = module_.forward(inputs_);
  }
  std::vector<std::vector<float>> Results() const override {
    if (result_.isTensor()) return {FloatsOf(result_.toTensor())};
    std::vector<std::vector<float>> results;
    for (const c10::IValue& element : result_.toTupleRef().elements()) {
      results.push_back(FloatsOf(element.toTensor()));
    }
    return results;
  }

 private:
  torch::jit::Module module_;
  std::vector<c10::IValue> inputs_;
  c10::IValue result_;
};

class AotPackage final : public Baseline {
 public:
  explicit AotPackage(const std::string& path) : loader_(path) {}
  void Bind(absl::Span<const base::TensorView> inputs) override {
    inputs_.clear();
    for (const auto& input : inputs) inputs_.push_back(TensorOf(input));
  }
  void Run() override {
    const c10::InferenceMode mode;
    results_ = loader_.run(inputs_);
  }
  std::vector<std::vector<float>> Results() const override {
    std::vector<std::vector<float>> results;
    for (const at::Tensor& result : results_) {
      results.push_back(FloatsOf(result));
    }
    return results;
  }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> results_;
};

// Calls an operator that has no C++ function.
at::Tensor Call(const char* name, std::vector<c10::IValue> arguments) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(
      &arguments);
  return arguments.front().toTensor();
}

class Layers final : public Baseline {
 public:
  Layers(const std::vector<Layer>& layers, LayerMethod method, int64_t batch)
      : method_(method), batch_(batch) {
    for (const Layer& layer : layers) {
      const at::Tensor weight =
          at::from_blob(const_cast<float*>(layer.weight.data()),
                        {layer.outputs, layer.inputs})
              .clone();
      weights_.push_back(weight);
      biases_.push_back(
          at::from_blob(const_cast<float*>(layer.bias.data()), {layer.outputs})
              .clone());
      if (method == LayerMethod::kMklPacked) {
        packed_.push_back(
            Call("mkl::_mkl_reorder_linear_weight", {weight, batch}));
      } else if (method == LayerMethod::kDnnlPacked) {
        packed_.push_back(
            Call("mkldnn::_reorder_linear_weight", {weight, batch}));
      }
    }
  }
  void Bind(absl::Span<const base::TensorView> inputs) override {
    input_ = TensorOf(inputs[0]);
  }
  void Run() override {
    // Not InferenceMode: packed operators are registered below it.
    const at::NoGradGuard guard;
    result_ = input_;
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (method_ == LayerMethod::kDnnlPacked) {
        result_ = Call("mkldnn::_linear_pointwise",
                       {result_, packed_[i], biases_[i], "relu",
                        c10::List<std::optional<at::Scalar>>(), ""});
        continue;
      }
      result_ =
          method_ == LayerMethod::kLinear
              ? at::linear(result_, weights_[i], biases_[i])
              : Call("mkl::_mkl_linear",
                     {result_, packed_[i], weights_[i], biases_[i], batch_});
      at::relu_(result_);
    }
  }
  std::vector<std::vector<float>> Results() const override {
    return {FloatsOf(result_)};
  }

 private:
  const LayerMethod method_;
  const int64_t batch_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> biases_;
  std::vector<at::Tensor> packed_;
  at::Tensor input_;
  at::Tensor result_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Baseline>> LoadTorchScript(
    const std::string& path, bool optimized) {
  try {
    torch::jit::Module module = torch::jit::load(path);
    module.eval();
    if (optimized) module = torch::jit::optimize_for_inference(module);
    return std::make_unique<TorchScript>(std::move(module));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

namespace {

// A package's code is linked to libtorch.so, an empty library next to the one
// that this program is linked to. Once it is loaded, the package finds it in
// any folder.
void LoadUmbrella() {
  Dl_info where;
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &where) == 0) {
    return;
  }
  const std::string library = where.dli_fname;
  const std::string folder = library.substr(0, library.find_last_of('/') + 1);
  // A failure appears when the package is loaded.
  dlopen((folder + "libtorch.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Baseline>> LoadAotPackage(
    const std::string& path) {
  LoadUmbrella();
  try {
    return std::make_unique<AotPackage>(path);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

std::unique_ptr<Baseline> MakeLayers(const std::vector<Layer>& layers,
                                     LayerMethod method, int64_t batch) {
  return std::make_unique<Layers>(layers, method, batch);
}

}  // namespace refract::bench
