// The dense models for Python's ctypes (torch_compare.py): plain C functions.
// A model is created, its weights are read, it is loaded, run and timed. Calls
// that return int give 0, or 1 with the reason in rc_error(). One thread.

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/device/cuda_runtime.h"

namespace {

using refract::bench::DenseModel;
using refract::bench::Precision;
using refract::runtime::cuda::CudaRuntime;
using refract::runtime::cuda::DType;
using refract::runtime::cuda::Instance;
using refract::runtime::cuda::SlotId;
using refract::runtime::cuda::Status;

struct Model {
  DenseModel dense;
  std::unique_ptr<Instance> instance;
};

std::string error;
std::unique_ptr<CudaRuntime> device;

int Answer(const Status& status) {
  error = status.ok() ? "" : status.ToString();
  return status.ok() ? 0 : 1;
}

const refract::runtime::cuda::Value& WeightOf(const Model& model, int i) {
  return model.dense.program.value(
      model.dense.program.weights[static_cast<size_t>(i)]);
}

}  // namespace

extern "C" {

const char* rc_error() { return error.c_str(); }

// `v2`: DLRM-DCNv2 instead of DLRM. `precision`: a bench::Precision. Null on
// error.
void* rc_create(int v2, int precision, int max_batch) {
  if (device == nullptr) {
    auto created = CudaRuntime::Create(0);
    if (!created.ok()) {
      Answer(created.status());
      return nullptr;
    }
    device = *std::move(created);
  }
  auto model = std::make_unique<Model>();
  model->dense = refract::bench::MakeDlrm(
      v2 != 0 ? "dlrm_dcnv2" : "dlrm_v1",
      v2 != 0 ? refract::bench::MlperfV2() : refract::bench::MlperfV1(),
      static_cast<Precision>(precision), max_batch, 1);
  auto instance =
      Instance::Create(*device, model->dense.program,
                       model->dense.weight_data(), {.max_batch = max_batch});
  if (!instance.ok()) {
    Answer(instance.status());
    return nullptr;
  }
  model->instance = *std::move(instance);
  if (Answer(model->instance->Load()) != 0) return nullptr;
  return model.release();
}

void rc_destroy(void* model) { delete static_cast<Model*>(model); }

int rc_num_weights(void* model) {
  return static_cast<int>(static_cast<Model*>(model)->dense.weights.size());
}
const char* rc_weight_name(void* model, int i) {
  return WeightOf(*static_cast<Model*>(model), i).name.c_str();
}
int64_t rc_weight_rows(void* model, int i) {
  return WeightOf(*static_cast<Model*>(model), i).rows.fixed;
}
int64_t rc_weight_cols(void* model, int i) {
  return WeightOf(*static_cast<Model*>(model), i).cols;
}
const float* rc_weight_data(void* model, int i) {
  return static_cast<Model*>(model)
      ->dense.weights[static_cast<size_t>(i)]
      .data();
}

// `dense` [batch, 13], `embeddings` [batch, 26 · 128], `scores` [batch].
int rc_run(void* model, int batch, const float* dense, const float* embeddings,
           float* scores) {
  Instance& instance = *static_cast<Model*>(model)->instance;
  auto slot = instance.Acquire(batch);
  if (!slot.ok()) return Answer(slot.status());
  const float* const inputs[] = {dense, embeddings};
  for (size_t i = 0; i < 2; ++i) {
    const DType dtype =
        instance.program().value(instance.program().inputs[i]).host_dtype;
    const int64_t count =
        instance.input_bytes(*slot, i) / refract::runtime::cuda::SizeOf(dtype);
    for (int64_t e = 0; e < count; ++e) {
      Store(inputs[i][e], instance.input(*slot, i), dtype, e);
    }
  }
  Status status = instance.Submit(*slot);
  if (status.ok()) status = instance.Wait(*slot);
  if (status.ok()) {
    std::memcpy(scores, instance.output(*slot, 0),
                static_cast<size_t>(batch) * sizeof(float));
  }
  instance.Release(*slot);
  return Answer(status);
}

// Seconds of `runs` computations of `batch` items in a row, inputs on the
// device already (those of the last rc_run); below 0 on error.
double rc_time(void* model, int batch, int runs) {
  Instance& instance = *static_cast<Model*>(model)->instance;
  auto slot = instance.Acquire(batch);
  if (!slot.ok()) {
    Answer(slot.status());
    return -1;
  }
  Status status = instance.Submit(*slot);
  if (status.ok()) status = instance.Wait(*slot);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; status.ok() && i < runs; ++i) {
    status = instance.ComputeAgain(*slot);
  }
  if (status.ok()) status = instance.WaitForCompute();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  instance.Release(*slot);
  return Answer(status) == 0 ? took.count() : -1;
}

}  // extern "C"
