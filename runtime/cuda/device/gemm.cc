#include "runtime/cuda/device/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "runtime/cuda/device/cuda_status.h"
#include "runtime/cuda/device/gemm_trial.h"
#include "runtime/cuda/kernels/launch.h"
#include "runtime/cuda/program/own_products.h"

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
  // What a lost device answers.
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
    case Epilogue::kGeluTanhBias:  // cuBLASLt's GELU is the tanh form
      return CUBLASLT_EPILOGUE_GELU_BIAS;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

std::string ToString(const GemmShape& shape) {
  return std::string(Name(shape.dtype)) + " product " +
         std::to_string(shape.m) + " x " + std::to_string(shape.n) + " x " +
         std::to_string(shape.k) + ", epilogue " + Name(shape.epilogue);
}

bool HasBias(Epilogue epilogue) {
  return epilogue != Epilogue::kNone && epilogue != Epilogue::kRelu;
}

// Bias and activation of a product that lies in call.out, in place.
ChainCall EpilogueChain(const GemmCall& call) {
  const GemmShape& shape = call.shape;
  ChainCall chain;
  chain.out = call.out;
  chain.ld_out = shape.ld_out;
  chain.rows = shape.m;
  chain.cols = shape.n;
  chain.dtype = shape.dtype;
  const auto operand = [&](const void* data, int64_t ld) {
    chain.operands[chain.num_operands++] = {
        .data = data, .ld = ld, .dtype = shape.dtype};
  };
  const auto instruction = [&](const Instruction& one) {
    chain.instructions[chain.num_instructions++] = one;
  };
  operand(call.out, shape.ld_out);
  instruction({ElementOp::kLoad, Source::kOperand, 0});
  if (call.bias != nullptr) {
    operand(call.bias, 0);
    instruction({ElementOp::kAdd, Source::kOperand, 1});
  }
  if (shape.epilogue == Epilogue::kRelu ||
      shape.epilogue == Epilogue::kReluBias) {
    instruction({ElementOp::kRelu});
  } else if (shape.epilogue == Epilogue::kGeluTanhBias) {
    instruction({ElementOp::kGeluTanh});
  }
  return chain;
}

// Of the heuristics' ranking: the best one is mostly among the first few.
constexpr int kCandidates = 8;

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

  // `fused`: with its bias and activation.
  Status Describe(const GemmShape& shape, bool fused) {
    REFRACT_CUBLAS_RETURN_IF_ERROR(
        cublasLtMatmulDescCreate(&operation,
                                 shape.tf32 && shape.dtype == DType::kFloat32
                                     ? CUBLAS_COMPUTE_32F_FAST_TF32
                                     : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    REFRACT_CUDA_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    REFRACT_CUDA_RETURN_IF_ERROR(
        Set(CUBLASLT_MATMUL_DESC_EPILOGUE,
            EpilogueOf(fused ? shape.epilogue : Epilogue::kNone)));
    const cudaDataType_t type = DataTypeOf(shape.dtype);
    if (fused && HasBias(shape.epilogue)) {
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

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, in = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;
  std::optional<ProductKernel> own;  // instead of the algorithm
  bool measured = false;
};

struct GemmCache::Candidate {
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;
  std::optional<ProductKernel> own;
};

GemmCache::GemmCache(Candidates candidates, const Switches& switches)
    : candidates_(candidates), switches_(switches) {}
GemmCache::~GemmCache() { Clear(); }

void GemmCache::Clear() {
  const std::scoped_lock lock(trial_mutex_, mutex_);
  plans_.clear();
  unmeasured_.clear();
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

std::vector<ProductKernel> GemmCache::OwnOf(const GemmShape& shape) const {
  std::vector<ProductKernel> own = OwnCandidates(shape);
  const auto is_off = [this](ProductKernel kernel) {
    return !switches_.has(kernel == ProductKernel::kRowDots
                              ? Mechanism::kRowProducts
                              : Mechanism::kTileProducts);
  };
  own.erase(std::remove_if(own.begin(), own.end(), is_off), own.end());
  return own;
}

ProductKernel GemmCache::FallbackOf(const GemmShape& shape) const {
  return switches_.has(Mechanism::kTileProducts) ? OwnFallback(shape)
                                                 : ProductKernel::kRowDots;
}

std::vector<std::string> GemmCache::TakeWarnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

// cuBLASLt's, in its order, then ours.
Status GemmCache::FindCandidates(const GemmShape& shape,
                                 int64_t workspace_bytes, const Plan& plan,
                                 std::vector<Candidate>* candidates) {
  if (candidates_ != Candidates::kOwn) {
    cublasLtHandle_t handle;
    REFRACT_CUDA_RETURN_IF_ERROR(Handle(&handle));
    cublasLtMatmulPreference_t preference;
    REFRACT_CUBLAS_RETURN_IF_ERROR(cublasLtMatmulPreferenceCreate(&preference));
    const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                          cublasStatus_t (*)(cublasLtMatmulPreference_t)>
        owner(preference, cublasLtMatmulPreferenceDestroy);
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                      const auto& value) {
      return FromCublas("cublasLtMatmulPreferenceSetAttribute",
                        cublasLtMatmulPreferenceSetAttribute(
                            preference, attribute, &value, sizeof(value)));
    };
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
               static_cast<uint64_t>(workspace_bytes)));
    // A is the weight. What the defaults promise (256) does not hold for views.
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
               static_cast<uint32_t>(shape.align_in)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
               static_cast<uint32_t>(shape.align_out)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
               static_cast<uint32_t>(shape.align_out)));

    cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
    int count = 0;
    const cublasStatus_t found = cublasLtMatmulAlgoGetHeuristic(
        handle, plan.operation, plan.weight, plan.in, plan.out, plan.out,
        preference, kCandidates, results, &count);
    // A shape that it has nothing for is not lost.
    if (found == CUBLAS_STATUS_NOT_SUPPORTED) {
      count = 0;
    } else {
      REFRACT_CUDA_RETURN_IF_ERROR(
          FromCublas("cublasLtMatmulAlgoGetHeuristic", found));
    }
    for (int i = 0; i < count; ++i) {
      if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
      candidates->push_back({results[i].algo,
                             static_cast<int64_t>(results[i].workspaceSize),
                             std::nullopt});
    }
  }
  if (candidates_ != Candidates::kCublasLt) {
    for (ProductKernel own : OwnOf(shape)) {
      candidates->push_back({{}, 0, own});
    }
    if (candidates->empty()) {
      candidates->push_back({{}, 0, FallbackOf(shape)});
    }
  }
  if (candidates->empty()) {
    return Status(Code::kUnimplemented,
                  "cuBLASLt has no algorithm for a " + ToString(shape));
  }
  return {};
}

bool GemmCache::Knows(const GemmShape& shape, int64_t workspace_bytes,
                      bool measure) const {
  const auto known = plans_.find(shape);
  return known != plans_.end() &&
         known->second->workspace_bytes <= workspace_bytes &&
         (known->second->measured || !measure);
}

Status GemmCache::Prepare(const GemmShape& shape, int64_t workspace_bytes,
                          bool measure) {
  measure = measure && switches_.has(Mechanism::kProductTrials);
  std::unique_lock lock(mutex_);
  if (Knows(shape, workspace_bytes, measure)) return {};
  std::unique_lock<std::mutex> trial;
  if (measure) {
    lock.unlock();
    trial = std::unique_lock(trial_mutex_);
    lock.lock();
    // The trial that this one waited for may have been the same.
    if (Knows(shape, workspace_bytes, measure)) return {};
  }
  cublasLtHandle_t handle;
  REFRACT_CUDA_RETURN_IF_ERROR(Handle(&handle));
  auto plan = std::make_unique<Plan>();
  REFRACT_CUDA_RETURN_IF_ERROR(
      plan->Describe(shape, switches_.has(Mechanism::kEpilogues)));
  std::vector<Candidate> candidates;
  REFRACT_CUDA_RETURN_IF_ERROR(
      FindCandidates(shape, workspace_bytes, *plan, &candidates));
  const auto take = [&](const Candidate& candidate) {
    plan->algorithm = candidate.algorithm;
    plan->workspace_bytes = candidate.workspace_bytes;
    plan->own = candidate.own;
  };
  take(candidates.front());
  if (measure) {
    lock.unlock();
    const Result<Trial> trial_result = FastestCandidate(
        shape, workspace_bytes, static_cast<int>(candidates.size()),
        [&](int i, const GemmCall& call, cudaStream_t stream) {
          take(candidates[static_cast<size_t>(i)]);
          return LaunchPlan(handle, *plan, call, stream, Start::kAfter);
        },
        switches_.has(Mechanism::kGraphs));
    if (!trial_result.ok()) return trial_result.status();
    if (trial_result->fastest.has_value()) {
      take(candidates[static_cast<size_t>(*trial_result->fastest)]);
    } else if (candidates_ != Candidates::kCublasLt) {
      take({{}, 0, FallbackOf(shape)});
    }
    lock.lock();
    for (const Trial::Wrong& wrong : trial_result->wrong) {
      if (warnings_.size() >= kMaxWarnings) break;
      const auto& candidate = candidates[static_cast<size_t>(wrong.candidate)];
      warnings_.push_back(
          ToString(shape) + ": " +
          (candidate.own.has_value()
               ? std::string(Name(*candidate.own))
               : "cuBLASLt's candidate " + std::to_string(wrong.candidate)) +
          " is not used, its results differ: " + wrong.what);
    }
  }
  plan->measured = measure;
  const auto known = plans_.find(shape);
  if (known != plans_.end() && !known->second->measured) {
    unmeasured_.erase(std::find_if(
        unmeasured_.begin(), unmeasured_.end(), [&](const GemmShape& other) {
          return !(other < shape) && !(shape < other);
        }));
  }
  if (!measure) unmeasured_.push_back(shape);
  plans_[shape] = std::move(plan);
  if (unmeasured_.size() > kMaxUnmeasured) {
    plans_.erase(unmeasured_.front());
    unmeasured_.pop_front();
  }
  return {};
}

Status GemmCache::LaunchPlan(cublasLtHandle_t handle, const Plan& plan,
                             const GemmCall& call, cudaStream_t stream,
                             Start start) const {
  if (plan.own.has_value()) {
    GemmCall own = call;
    own.kernel = *plan.own;
    own.plain = !switches_.has(Mechanism::kWideKernels);
    return FromCuda("kernel launch", LaunchKernel(own, stream, start));
  }
  const bool fused = switches_.has(Mechanism::kEpilogues);
  if (call.bias != nullptr && fused) {
    // Part of the descriptor, which other instances use too: hence the lock.
    // The launch takes it by value.
    REFRACT_CUDA_RETURN_IF_ERROR(FromCublas(
        "cublasLtMatmulDescSetAttribute",
        cublasLtMatmulDescSetAttribute(plan.operation,
                                       CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                       &call.bias, sizeof(call.bias))));
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  REFRACT_CUDA_RETURN_IF_ERROR(FromCublas(
      "cublasLtMatmul",
      cublasLtMatmul(handle, plan.operation, &one, call.weight, plan.weight,
                     call.in, plan.in, &zero, call.out, plan.out, call.out,
                     plan.out, &plan.algorithm, call.workspace,
                     static_cast<size_t>(call.workspace_bytes), stream)));
  if (fused || call.shape.epilogue == Epilogue::kNone) return {};
  ChainCall chain = EpilogueChain(call);
  chain.plain = !switches_.has(Mechanism::kWideKernels);
  return FromCuda("kernel launch", LaunchKernel(chain, stream, Start::kAfter));
}

bool GemmCache::IsOwn(const GemmShape& shape) {
  const std::lock_guard lock(mutex_);
  const auto it = plans_.find(shape);
  return it != plans_.end() && it->second->own.has_value();
}

Status GemmCache::Launch(const GemmCall& call, cudaStream_t stream,
                         Start start) {
  if (call.shape.m == 0) return {};
  const std::lock_guard lock(mutex_);
  cublasLtHandle_t handle;
  REFRACT_CUDA_RETURN_IF_ERROR(Handle(&handle));
  const auto it = plans_.find(call.shape);
  if (it == plans_.end()) {
    return Status(Code::kFailedPrecondition,
                  "not prepared: " + ToString(call.shape));
  }
  return LaunchPlan(handle, *it->second, call, stream, start);
}

}  // namespace refract::runtime::cuda
