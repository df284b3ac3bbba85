#include "runtime/cuda/device/gemm.h"

#include <cublasLt.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime/cuda/device/cuda_status.h"

namespace refract::runtime::cuda {
namespace {

Status FromCublas(const char* call, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  Code code = Code::kInternal;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) code = Code::kResourceExhausted;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      status == CUBLAS_STATUS_ARCH_MISMATCH) {
    code = Code::kUnimplemented;
  }
  // cuBLASLt reports a lost device by these two; the caller must reset the
  // device.
  if (status == CUBLAS_STATUS_EXECUTION_FAILED ||
      status == CUBLAS_STATUS_NOT_INITIALIZED) {
    code = Code::kUnavailable;
  }
  return Status(code, std::string(call) + ": " + cublasLtGetStatusName(status));
}

cudaDataType_t DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t EpilogueOf(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kRelu:
      return CUBLASLT_EPILOGUE_RELU;
    case Epilogue::kReluBias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

std::string ToString(const GemmShape& shape) {
  return std::string(Name(shape.dtype)) + " product " +
         std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " +
         std::to_string(shape.k) + ", epilogue " + Name(shape.epilogue);
}

#define REFRACT_CUBLAS_RETURN_IF_ERROR(call)             \
  do {                                                   \
    if (Status refract_cublas = FromCublas(#call, call); \
        !refract_cublas.ok()) {                          \
      return refract_cublas;                             \
    }                                                    \
  } while (false)

}  // namespace

// cuBLASLt is column-major: row-major `in` [m, k] is its k × m matrix, `weight`
// [n, k] its k × n matrix, `out` [m, n] its n × m matrix. Hence
// out = weightᵀ · in there, and a bias per column here is the bias per row that
// its epilogues add.
struct GemmCache::Plan {
  ~Plan() {
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {weight, in, out}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }

  Status Describe(const GemmShape& shape) {
    REFRACT_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatmulDescCreate(&operation,
                                 shape.tf32 && shape.dtype == DType::kFloat32
                                     ? CUBLAS_COMPUTE_32F_FAST_TF32
                                     : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    REFRACT_CUDA_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    REFRACT_CUDA_RETURN_IF_ERROR(
        Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape.epilogue)));
    const cudaDataType_t type = DataTypeOf(shape.dtype);
    if (HasBias(shape.epilogue)) {
      REFRACT_CUDA_RETURN_IF_ERROR(
          Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type));
    }
    const auto m = static_cast<uint64_t>(shape.m);
    const auto n = static_cast<uint64_t>(shape.n);
    const auto k = static_cast<uint64_t>(shape.k);
    REFRACT_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatrixLayoutCreate(&weight, type, k, n, shape.ld_weight));
    REFRACT_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatrixLayoutCreate(&in, type, k, m, shape.ld_in));
    REFRACT_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatrixLayoutCreate(&out, type, n, m, shape.ld_out));
    return {};
  }

  template <typename T>
  Status Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return FromCublas("cublasLtMatmulDescSetAttribute",
                      cublasLtMatmulDescSetAttribute(operation, attribute,
                                                     &value, sizeof(value)));
  }

  // The heuristic's first choice. The ranking is a model's; bench/cuda/
  // gemm_algorithms.cc times the others (at most 1.08 times as fast on an
  // H100).
  Status Choose(cublasLtHandle_t handle, const GemmShape& shape,
                int64_t workspace_bytes) {
    cublasLtMatmulPreference_t preference;
    REFRACT_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulPreferenceCreate(&preference));
    const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                          cublasStatus_t (*)(cublasLtMatmulPreference_t)>
        owner(preference, cublasLtMatmulPreferenceDestroy);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                            const auto& value) {
      return FromCublas("cublasLtMatmulPreferenceSetAttribute",
                        cublasLtMatmulPreferenceSetAttribute(
                            preference, attribute, &value, sizeof(value)));
    };
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
               static_cast<uint64_t>(workspace_bytes)));
    // A is the weight: the memory plan aligns weights to 256 bytes, cuBLASLt's
    // default. Views of the other operands may begin anywhere. C and D are the
    // same matrix, because beta is 0.
    const auto align_in = static_cast<uint32_t>(shape.align_in);
    const auto align_out = static_cast<uint32_t>(shape.align_out);
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align_in));
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align_out));
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align_out));
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    const cublasStatus_t found =
        cublasLtMatmulAlgoGetHeuristic(handle, operation, weight, in, out, out,
                                       preference, 1, &result, &count);
    if (found == CUBLAS_STATUS_NOT_SUPPORTED ||
        (found == CUBLAS_STATUS_SUCCESS &&
         (count == 0 || result.state != CUBLAS_STATUS_SUCCESS))) {
      return Status(Code::kUnimplemented,
                    "cuBLASLt has no algorithm for a " + ToString(shape));
    }
    algorithm = result.algo;
    return FromCublas("cublasLtMatmulAlgoGetHeuristic", found);
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, in = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

GemmCache::GemmCache() = default;
GemmCache::~GemmCache() { Clear(); }

void GemmCache::Clear() {
  const std::lock_guard lock(mutex_);
  plans_.clear();
  oldest_.clear();
  if (handle_ != nullptr) cublasLtDestroy(handle_);
  handle_ = nullptr;
}

Status GemmCache::Handle(cublasLtHandle_t* handle) {
  if (handle_ == nullptr) {
    REFRACT_CUBLAS_RETURN_IF_ERROR(cublasLtCreate(&handle_));
  }
  *handle = handle_;
  return {};
}

Result<const GemmCache::Plan*> GemmCache::PlanOf(const GemmCall& call,
                                                 cublasLtHandle_t handle) {
  // The heuristic chooses by the size of the workspace, too.
  const Key key = {call.shape, call.workspace_bytes};
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second.get();
  auto plan = std::make_unique<Plan>();
  REFRACT_CUDA_RETURN_IF_ERROR(plan->Describe(call.shape));
  REFRACT_CUDA_RETURN_IF_ERROR(
      plan->Choose(handle, call.shape, call.workspace_bytes));
  // A launch copies the parts of a plan that it uses, so any plan may be
  // dropped.
  if (oldest_.size() == kMaxPlans) {
    plans_.erase(oldest_.front());
    oldest_.pop_front();
  }
  oldest_.push_back(key);
  return (plans_[key] = std::move(plan)).get();
}

Status GemmCache::Launch(const GemmCall& call, cudaStream_t stream) {
  // A product without rows has nothing to compute.
  if (call.shape.m == 0) return {};
  const std::lock_guard lock(mutex_);
  cublasLtHandle_t handle;
  REFRACT_CUDA_RETURN_IF_ERROR(Handle(&handle));
  const Result<const Plan*> found = PlanOf(call, handle);
  if (!found.ok()) return found.status();
  const Plan& plan = **found;
  if (call.bias != nullptr) {
    // The address is a part of the descriptor, which all instances share: the
    // lock covers the launch too, which takes the descriptor by value.
    REFRACT_CUDA_RETURN_IF_ERROR(FromCublas(
        "cublasLtMatmulDescSetAttribute",
        cublasLtMatmulDescSetAttribute(plan.operation,
                                       CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                       &call.bias, sizeof(call.bias))));
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  return FromCublas(
      "cublasLtMatmul",
      cublasLtMatmul(handle, plan.operation, &one, call.weight, plan.weight,
                     call.in, plan.in, &zero, call.out, plan.out, call.out,
                     plan.out, &plan.algorithm, call.workspace,
                     static_cast<size_t>(call.workspace_bytes), stream));
}

}  // namespace refract::runtime::cuda
