#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "bench/gather/baseline.h"

namespace refract::bench {
namespace {

at::Tensor Wrap(const void* data, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), sizes, type);
}

at::Tensor WrapInts(const base::Tensor& tensor) {
  return Wrap(tensor.view().data, {tensor.view().num_elements()}, at::kLong);
}

std::vector<float> FloatsOf(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.to(at::kFloat).contiguous();
  const float* const data = dense.const_data_ptr<float>();
  return {data, data + dense.numel()};
}

class Bags : public Baseline {
 public:
  void Run(const Request& request) override {
    const c10::InferenceMode mode;
    std::vector<at::Tensor> pooled;
    pooled.reserve(tables_.size());
    for (size_t t = 0; t < tables_.size(); ++t) {
      pooled.push_back(LookUp(tables_[t], WrapInts(request.ids[t]),
                              WrapInts(request.offsets[t])));
    }
    result_ = at::cat(pooled, 1);
  }
  std::vector<float> Result() const override { return FloatsOf(result_); }

 protected:
  virtual at::Tensor LookUp(const at::Tensor& table, const at::Tensor& ids,
                            const at::Tensor& offsets) = 0;
  std::vector<at::Tensor> tables_;

 private:
  at::Tensor result_;
};

class EmbeddingBags final : public Bags {
 public:
  explicit EmbeddingBags(const Tables& tables) {
    for (int64_t t = 0; t < tables.count; ++t) {
      tables_.push_back(
          Wrap(tables.at(t), {tables.rows, tables.layout.dim}, at::kFloat));
    }
  }
  at::Tensor LookUp(const at::Tensor& table, const at::Tensor& ids,
                    const at::Tensor& offsets) override {
    return std::get<0>(at::embedding_bag(table, ids, offsets));
  }
};

// Rows with scale and bias at their end, in tables of bytes, as
// torch.ops.quantized has them.
class QuantizedBags final : public Bags {
 public:
  QuantizedBags(const Tables& tables, const char* name)
      : operator_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "")) {
    for (int64_t t = 0; t < tables.count; ++t) {
      tables_.push_back(
          Wrap(tables.at(t), {tables.rows, tables.layout.stride}, at::kByte));
    }
  }
  at::Tensor LookUp(const at::Tensor& table, const at::Tensor& ids,
                    const at::Tensor& offsets) override {
    // The operator's arguments in the order of its schema: weight, indices,
    // offsets, scale_grad_by_freq, mode (0: sum), pruned_weights,
    // per_sample_weights, compressed_indices_mapping, include_last_offset.
    std::vector<c10::IValue> stack = {table,         ids,           offsets,
                                      false,         int64_t{0},    false,
                                      c10::IValue(), c10::IValue(), false};
    operator_.callBoxed(&stack);
    return stack.front().toTensor();
  }

 private:
  const c10::OperatorHandle operator_;
};

class TableBatched final : public Baseline {
 public:
  // `type`: FBGEMM's SparseType.
  TableBatched(const Tables& tables, uint8_t type)
      : operator_(c10::Dispatcher::singleton().findSchemaOrThrow(
            "fbgemm::int_nbit_split_embedding_codegen_lookup_function", "")) {
    const int64_t count = tables.count;
    const std::byte* const first = tables.at(0);
    // All tables are one tensor of bytes for FBGEMM, with the byte offset of
    // each table in it and the column of its first result. Tables that lie in
    // one block make this possible without a copy.
    at::Tensor offsets = at::empty({count}, at::kLong);
    at::Tensor dims = at::empty({count + 1}, at::kInt);
    for (int64_t t = 0; t < count; ++t) {
      offsets.data_ptr<int64_t>()[t] = tables.at(t) - first;
      dims.data_ptr<int32_t>()[t] = static_cast<int32_t>(t * tables.layout.dim);
    }
    dims.data_ptr<int32_t>()[count] =
        static_cast<int32_t>(count * tables.layout.dim);
    const int64_t dim = tables.layout.dim;
    const auto max_dim = [&](uint8_t of) { return type == of ? dim : 0; };
    const at::Tensor blob = Wrap(
        first,
        {tables.at(count - 1) - first + tables.rows * tables.layout.stride},
        at::kByte);
    // The arguments that do not change between runs, in the order of the
    // schema; Run() adds the others. `max_dim` is per element type, 0 for types
    // without tables.
    before_ = {blob,
               at::empty({0}, at::kByte),
               at::full({count}, 3, at::kInt),  // HOST
               offsets,
               at::full({count}, type, at::kByte),
               dims,
               count * dim,
               max_dim(4),
               max_dim(3),
               max_dim(2),
               max_dim(1),
               max_dim(0)};
  }

  void Run(const Request& request) override {
    const c10::InferenceMode mode;
    std::vector<c10::IValue> stack = before_;
    stack.reserve(23);
    stack.emplace_back(WrapInts(request.joined_ids));
    stack.emplace_back(WrapInts(request.joined_offsets));
    stack.emplace_back(int64_t{0});     // sum
    stack.emplace_back(c10::IValue());  // no weights
    stack.emplace_back(int64_t{0});     // fp32 results
    stack.emplace_back(c10::IValue());
    stack.emplace_back(c10::IValue());
    stack.emplace_back(int64_t{16});  // row alignment
    stack.emplace_back(int64_t{0});
    stack.emplace_back(int64_t{-1});
    stack.emplace_back(int64_t{-1});
    operator_.callBoxed(&stack);
    result_ = stack.front().toTensor();
  }
  std::vector<float> Result() const override { return FloatsOf(result_); }

 private:
  const c10::OperatorHandle operator_;
  std::vector<c10::IValue> before_;
  at::Tensor result_;
};

}  // namespace

std::unique_ptr<Baseline> MakeEmbeddingBags(const Tables& tables) {
  return std::make_unique<EmbeddingBags>(tables);
}

std::unique_ptr<Baseline> MakeQuantizedBags(const Tables& tables) {
  const absl::string_view name = models::NameOf(tables.layout.format);
  if (name == "fused-8bit") {
    return std::make_unique<QuantizedBags>(
        tables, "quantized::embedding_bag_byte_rowwise_offsets");
  }
  if (name == "fused-4bit") {
    return std::make_unique<QuantizedBags>(
        tables, "quantized::embedding_bag_4bit_rowwise_offsets");
  }
  return nullptr;
}

std::unique_ptr<Baseline> MakeTableBatched(const Tables& tables) {
  const absl::string_view name = models::NameOf(tables.layout.format);
  const std::pair<absl::string_view, uint8_t> types[] = {
      {"fp32", 0}, {"fp16", 1}, {"tbe-int8", 2}, {"tbe-int4", 3}};
  for (const auto& [known, type] : types) {
    if (known == name) return std::make_unique<TableBatched>(tables, type);
  }
  return nullptr;
}

}  // namespace refract::bench
