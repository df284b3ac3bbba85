// Stand-in for cuBLASLt, see fake_cuda.h.

#include <cublasLt.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/cuda/calls/scalar.h"
#include "tests/runtime/cuda/device/fake_streams.h"

namespace refract::runtime::cuda::testing {
namespace {

// Contents of cuBLASLt's opaque structures.
struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, cols;
  int64_t ld;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t a = 256, b = 256, c = 256, d = 256;
};
struct Algorithm {
  Layout a, b, d;
  Preference preference;
  uint64_t workspace;
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

std::vector<Algorithm>& Algorithms() {
  static std::vector<Algorithm> algorithms;
  return algorithms;
}

template <typename T, typename Opaque>
T Read(const Opaque* opaque) {
  T value;
  std::memcpy(static_cast<void*>(&value), opaque, sizeof(value));
  return value;
}
template <typename T, typename Opaque>
void Write(const T& value, Opaque* opaque) {
  std::memcpy(static_cast<void*>(opaque), &value, sizeof(value));
}

DType TypeOf(int type) {
  if (type == CUDA_R_16F) return DType::kFloat16;
  if (type == CUDA_R_16BF) return DType::kBFloat16;
  if (type != CUDA_R_32F) Violation("a type that products do not take");
  return DType::kFloat32;
}

bool Aligned(const void* pointer, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// D = epilogue(op(A) · op(B)), column-major.
void Multiply(const Operation& op, const void* a, const Layout& la,
              const void* b, const Layout& lb, void* d, const Layout& ld) {
  const bool ta = op.a == CUBLAS_OP_T;
  const bool tb = op.b == CUBLAS_OP_T;
  const uint64_t m = ta ? la.cols : la.rows;
  const uint64_t k = ta ? la.rows : la.cols;
  const uint64_t n = tb ? lb.rows : lb.cols;
  if ((tb ? lb.cols : lb.rows) != k || ld.rows != m || ld.cols != n) {
    Violation("a product of shapes that do not fit");
    return;
  }
  auto at = [](const void* data, const Layout& layout, uint64_t row,
               uint64_t col) {
    return static_cast<double>(Load(
        data, TypeOf(layout.type),
        static_cast<int64_t>(row + col * static_cast<uint64_t>(layout.ld))));
  };
  for (uint64_t row = 0; row < m; ++row) {
    for (uint64_t col = 0; col < n; ++col) {
      double sum = 0;
      for (uint64_t i = 0; i < k; ++i) {
        sum += (ta ? at(a, la, i, row) : at(a, la, row, i)) *
               (tb ? at(b, lb, col, i) : at(b, lb, i, col));
      }
      const bool bias = op.epilogue == CUBLASLT_EPILOGUE_BIAS ||
                        op.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS;
      if (bias) {
        sum += Load(
            op.bias,
            TypeOf(op.bias_type < 0 ? static_cast<int>(ld.type) : op.bias_type),
            static_cast<int64_t>(row));
      }
      if (op.epilogue == CUBLASLT_EPILOGUE_RELU ||
          op.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) {
        sum = sum < 0 ? 0 : sum;
      }
      Store(static_cast<float>(sum), d, TypeOf(ld.type),
            static_cast<int64_t>(row + col * static_cast<uint64_t>(ld.ld)));
    }
  }
}

}  // namespace
}  // namespace refract::runtime::cuda::testing

// NOLINTBEGIN: names and signatures are CUDA's.
using refract::runtime::cuda::testing::Algorithm;
using refract::runtime::cuda::testing::Algorithms;
using refract::runtime::cuda::testing::Aligned;
using refract::runtime::cuda::testing::Do;
using refract::runtime::cuda::testing::Layout;
using refract::runtime::cuda::testing::Multiply;
using refract::runtime::cuda::testing::Operation;
using refract::runtime::cuda::testing::Preference;
using refract::runtime::cuda::testing::Read;
using refract::runtime::cuda::testing::TheFakeCuda;
using refract::runtime::cuda::testing::Violation;
using refract::runtime::cuda::testing::Write;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t) { return "a status"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc,
                                        cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t{};
  Write(Operation{compute, scale}, *desc);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(
    cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
    const void* value, size_t size) {
  auto op = Read<Operation>(desc);
  auto set = [&](auto& field) {
    if (size != sizeof(field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, size);
    Write(op, desc);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(op.a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(op.b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(op.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(op.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(op.bias_type);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                          cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  if (ld < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new cublasLtMatrixLayoutOpaque_t{};
  Write(Layout{type, rows, cols, ld}, *layout);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(
    cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t{};
  Write(Preference{}, *preference);
  ++TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(
    cublasLtMatmulPreference_t preference) {
  delete preference;
  --TheFakeCuda().live;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t opaque,
    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
    size_t size) {
  auto preference = Read<Preference>(opaque);
  auto set = [&](auto& field) {
    if (size != sizeof(field)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&field, value, size);
    Write(preference, opaque);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference.a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference.b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference.c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference.d);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int requested,
    cublasLtMatmulHeuristicResult_t results[], int* count) {
  ++TheFakeCuda().heuristics;
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto wanted = Read<Preference>(preference);
  *count = 0;
  if (!TheFakeCuda().has_algorithms) return CUBLAS_STATUS_NOT_SUPPORTED;
  // Uses all the allowed workspace.
  Algorithms().push_back({Read<Layout>(a), Read<Layout>(b), Read<Layout>(d),
                          wanted, wanted.workspace});
  *count = 1;
  results[0] = {};
  results[0].algo.data[0] = Algorithms().size();
  results[0].workspaceSize = wanted.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                              const void* alpha, const void* a,
                              cublasLtMatrixLayout_t la, const void* b,
                              cublasLtMatrixLayout_t lb, const void* beta,
                              const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  ++TheFakeCuda().products;
  const auto op = Read<Operation>(desc);
  if (op.scale != CUDA_R_32F || *static_cast<const float*>(alpha) != 1.0f ||
      *static_cast<const float*>(beta) != 0.0f || c != d) {
    Violation("a product that is scaled or added to");
  }
  if (algo == nullptr || algo->data[0] < 1 ||
      algo->data[0] > Algorithms().size()) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Algorithm& chosen = Algorithms()[algo->data[0] - 1];
  auto same = [](const Layout& x, const Layout& y) {
    return x.type == y.type && x.rows == y.rows && x.cols == y.cols &&
           x.ld == y.ld;
  };
  const auto layout_a = Read<Layout>(la);
  const auto layout_b = Read<Layout>(lb);
  const auto layout_d = Read<Layout>(ld);
  if (!same(chosen.a, layout_a) || !same(chosen.b, layout_b) ||
      !same(chosen.d, layout_d)) {
    Violation("an algorithm for another shape");
  }
  if (!Aligned(a, chosen.preference.a) || !Aligned(b, chosen.preference.b) ||
      !Aligned(d, chosen.preference.d)) {
    Violation("an operand less aligned than was said");
  }
  if (workspace_bytes < chosen.workspace || !Aligned(workspace, 256)) {
    Violation("too little workspace");
  }
  return Do(stream,
            [=] { Multiply(op, a, layout_a, b, layout_b, d, layout_d); }) ==
                 cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_INVALID_VALUE;
}

}  // extern "C"
// NOLINTEND
