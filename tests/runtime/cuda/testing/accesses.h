#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_ACCESSES_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_ACCESSES_H_

// The memory that a launch reads and writes, from its arguments.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/foreign.h"
#include "runtime/cuda/calls/index_math.h"

namespace refract::runtime::cuda::testing {

struct Access {
  const std::byte* begin;
  int64_t bytes;
  bool write;
  bool host;  // pinned rather than device memory
};

// Row by row, because columns next to a view belong to other tensors.
inline void AddRows(const void* data, int64_t rows, int64_t cols, int64_t ld,
                    DType dtype, bool write, std::vector<Access>& accesses) {
  if (data == nullptr || cols == 0) return;
  const int64_t size = SizeOf(dtype);
  for (int64_t row = 0; row < rows; ++row) {
    accesses.push_back({static_cast<const std::byte*>(data) + row * ld * size,
                        cols * size, write, false});
  }
}
// For a strided tensor, the runs of neighbours or, if there are many, the range
// from its first to its last element.
inline void AddStrided(const void* data, const int64_t* strides,
                       const int64_t* dims, int rank, DType dtype, bool write,
                       std::vector<Access>& accesses) {
  constexpr size_t kMostRuns = 64;
  if (data == nullptr) return;
  int64_t count = 1, last = 0;
  for (int d = 0; d < rank; ++d) {
    count *= dims[d];
    last += (dims[d] - 1) * strides[d];
  }
  if (count == 0) return;
  const int64_t size = SizeOf(dtype);
  const auto* begin = static_cast<const std::byte*>(data);
  std::vector<Access> runs;
  for (int64_t i = 0; i < count && runs.size() <= kMostRuns; ++i) {
    int64_t rest = i, at = 0;
    for (int d = rank - 1; d >= 0; --d) {
      at += rest % dims[d] * strides[d];
      rest /= dims[d];
    }
    const std::byte* element = begin + at * size;
    if (!runs.empty() && runs.back().begin + runs.back().bytes == element) {
      runs.back().bytes += size;
    } else if (runs.empty() || runs.back().begin != element) {
      runs.push_back({element, size, write, false});
    }
  }
  if (runs.size() > kMostRuns) {
    runs = {{begin, (last + 1) * size, write, false}};
  }
  accesses.insert(accesses.end(), runs.begin(), runs.end());
}
inline void AddStrided(const StridedOperand& operand, const int64_t* dims,
                       int rank, std::vector<Access>& accesses) {
  AddStrided(operand.data, operand.strides, dims, rank, operand.dtype, false,
             accesses);
}
inline void AddAccesses(const MapCall& c, std::vector<Access>& a) {
  for (int i = 0; i < c.num_inputs; ++i) {
    AddStrided(c.inputs[i], c.dims, c.rank, a);
  }
  AddStrided(c.out, c.out_strides, c.dims, c.rank, c.out_dtype, true, a);
}
inline void AddAccesses(const MatMulCall& c, std::vector<Access>& a) {
  int64_t dims[kMaxRank] = {};
  std::copy(c.dims, c.dims + c.rank, dims);
  const auto matrix = [&](int64_t rows, int64_t cols) {
    dims[c.rank] = rows;
    dims[c.rank + 1] = cols;
    return dims;
  };
  AddStrided(c.a, matrix(c.m, c.k), c.rank + 2, a);
  AddStrided(c.b, matrix(c.k, c.n), c.rank + 2, a);
  AddStrided(c.bias, &c.n, 1, a);
  AddStrided(c.out, c.out_strides, matrix(c.m, c.n), c.rank + 2, c.out_dtype,
             true, a);
}
inline void AddAccesses(const ReduceCall& c, std::vector<Access>& a) {
  const int all = c.rank + c.inner_rank;
  AddStrided(c.in, c.dims, all, a);
  AddStrided(c.gamma, c.dims + c.rank, c.inner_rank, a);
  AddStrided(c.beta, c.dims + c.rank, c.inner_rank, a);
  AddStrided(c.out, c.out_strides, c.dims, KeepsElements(c.kind) ? all : c.rank,
             c.out_dtype, true, a);
}
inline void AddAccesses(const LookUpCall& c, std::vector<Access>& a) {
  const int64_t* dims = c.dims;
  AddStrided(c.index, dims, c.rank, a);
  AddStrided(c.table, dims, c.rank, a);  // of the first row
  AddRows(c.table.data, c.table_rows, 1, c.row_stride, c.table.dtype, false, a);
  AddRows(c.batch, 1, 1, 1, DType::kInt32, false, a);
  AddRows(c.faults, 1, 1, 1, DType::kInt32, true, a);
  AddStrided(c.out, c.out_strides, dims, c.rank, c.out_dtype, true, a);
}
inline void AddAccesses(const IntegerCall& c, std::vector<Access>& a) {
  for (int i = 0; i < OperandsOf(c.code); ++i) {
    const IntegerOperand& operand = c.operands[i];
    AddStrided(operand.data, operand.strides, c.dims, c.rank + c.inner_rank,
               operand.dtype, false, a);
  }
  AddStrided(c.out, c.out_strides, c.dims, c.rank, c.out_dtype, true, a);
}

inline void AddAccesses(const TakesCall& c, std::vector<Access>& a) {
  for (int i = 0; i < c.num_tables; ++i) {
    const TakeTable& table = c.tables[i];
    const int64_t dims[] = {c.rows, table.inner, table.dim};
    const int64_t ids[] = {table.id_stride, table.inner_id_stride};
    const int64_t out[] = {table.out_stride, table.inner_out_stride, 1};
    // Any of its rows; nothing else lies between them.
    AddRows(table.table, 1,
            (table.table_rows - 1) * table.row_stride + table.dim, 0,
            table.dtype, false, a);
    AddStrided(table.ids, ids, dims, 2, table.id_dtype, false, a);
    AddStrided(table.out, out, dims, 3, table.out_dtype, true, a);
  }
  AddRows(c.batch, 1, 1, 1, DType::kInt32, false, a);
  AddRows(c.faults, 1, 1, 1, DType::kInt32, true, a);
}
inline void AddAccesses(const BagsCall& c, std::vector<Access>& a) {
  for (int i = 0; i < c.num_tables; ++i) {
    const BagTable& bag = c.tables[i];
    const auto each = [&](const void* data, int64_t count, int64_t stride,
                          DType dtype) {
      AddStrided(data, &stride, &count, 1, dtype, false, a);
    };
    // Any of its rows; nothing else lies between them.
    AddRows(bag.table, 1, (bag.table_rows - 1) * bag.row_stride + bag.dim, 0,
            bag.dtype, false, a);
    each(bag.ids, bag.entries, bag.id_stride, bag.id_dtype);
    each(bag.offsets, c.rows + (bag.include_last ? 1 : 0), bag.offset_stride,
         bag.offset_dtype);
    each(bag.weights, bag.entries, bag.weight_stride, bag.weight_dtype);
    AddRows(bag.out, c.rows, bag.dim, bag.out_stride, bag.out_dtype, true, a);
  }
  AddRows(c.batch, 1, 1, 1, DType::kInt32, false, a);
  AddRows(c.faults, 1, 1, 1, DType::kInt32, true, a);
}

inline std::vector<Access> AccessesOf(const ForeignCall& call) {
  std::vector<Access> a;
  const auto add = [&](const ForeignTensor& tensor, bool write) {
    AddStrided(tensor.data, tensor.strides.data(), tensor.dims.data(),
               static_cast<int>(tensor.dims.size()), tensor.dtype, write, a);
  };
  for (const ForeignOperand& operand : call.operands) {
    if (operand.kind == ForeignKind::kTensor) add(operand.tensor, false);
  }
  for (const ForeignTensor& result : call.results) add(result, true);
  AddRows(call.faults, 1, 1, 1, DType::kInt32, true, a);
  return a;
}
inline std::vector<Access> AccessesOf(const Call& call) {
  std::vector<Access> a;
  if (const auto* c = std::get_if<GemmCall>(&call)) {
    const GemmShape& s = c->shape;
    AddRows(c->in, s.m, s.k, s.ld_in, s.dtype, false, a);
    AddRows(c->weight, s.n, s.k, s.ld_weight, s.dtype, false, a);
    AddRows(c->bias, 1, s.n, s.n, s.dtype, false, a);
    AddRows(c->out, s.m, s.n, s.ld_out, s.dtype, true, a);
    a.push_back({static_cast<std::byte*>(c->workspace), c->workspace_bytes,
                 true, false});
  } else if (const auto* c = std::get_if<InteractionCall>(&call)) {
    AddRows(c->dense, c->samples, c->dim, c->ld_dense, c->dtype, false, a);
    AddRows(c->embeddings, c->samples, (c->features - 1) * c->dim,
            c->ld_embeddings, c->dtype, false, a);
    AddRows(c->out, c->samples,
            (c->copy_dense ? c->dim : 0) + NumPairs(c->features, c->diagonal) +
                c->pad,
            c->ld_out, c->dtype, true, a);
  } else if (const auto* c = std::get_if<MapCall>(&call)) {
    AddAccesses(*c, a);
  } else if (const auto* c = std::get_if<MatMulCall>(&call)) {
    AddAccesses(*c, a);
  } else if (const auto* c = std::get_if<ReduceCall>(&call)) {
    AddAccesses(*c, a);
  } else if (const auto* c = std::get_if<LookUpCall>(&call)) {
    AddAccesses(*c, a);
  } else if (const auto* c = std::get_if<IntegerCall>(&call)) {
    AddAccesses(*c, a);
  } else if (const auto* c = std::get_if<TakesCall>(&call)) {
    AddAccesses(*c, a);
  } else if (const auto* c = std::get_if<BagsCall>(&call)) {
    AddAccesses(*c, a);
  }
  return a;
}

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_ACCESSES_H_
