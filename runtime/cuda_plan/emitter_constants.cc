// Constants in the form that devices take.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;

Sizes SizesOf(const base::Dims& dims) {
  Sizes sizes;
  for (const int64_t dim : dims) sizes.push_back(dim);
  return sizes;
}

}  // namespace

// A constant of any type as float32, the type in which weights are uploaded.
absl::StatusOr<std::vector<float>> Emitter::FloatsOf(int local) const {
  const Operand& operand = plan_.constants[local];
  const std::string& name = plan_.locals[local].name;
  if (operand.kind == Operand::Kind::kWeight) {
    return absl::UnimplementedError(absl::StrCat(
        "weight ", name, " is strided and too large to be copied"));
  }
  if (operand.kind != Operand::Kind::kTensor) {
    return absl::UnimplementedError(absl::StrCat(name, " is not a tensor"));
  }
  const base::TensorView& tensor = operand.tensor;
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  const auto convert = [&](auto get) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = get(i);
  };
  switch (tensor.dtype) {
    case base::DType::kFloat32:
      convert([&](size_t i) { return tensor.as<float>()[i]; });
      return values;
    case base::DType::kFloat16:
      convert([&](size_t i) {
        return cuda::Load(tensor.data, DType::kFloat16,
                          static_cast<int64_t>(i));
      });
      return values;
    case base::DType::kBFloat16:
      convert([&](size_t i) {
        return cuda::Load(tensor.data, DType::kBFloat16,
                          static_cast<int64_t>(i));
      });
      return values;
    case base::DType::kFloat64:
      convert(
          [&](size_t i) { return static_cast<float>(tensor.as<double>()[i]); });
      return values;
    case base::DType::kBool:
      convert([&](size_t i) {
        return tensor.data[i] != std::byte{0} ? 1.0f : 0.0f;
      });
      return values;
    case base::DType::kInt32:
    case base::DType::kInt64: {
      const auto integers = IntegersOf(local);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>((*integers)[i]);
        // float32 holds all integers up to 2^24 exactly. The check compares the
        // float: converted back to int64, a value near 2^63 would overflow.
        if (std::abs(values[i]) > 16777216.0f) {
          return absl::UnimplementedError(
              absl::StrCat("constant ", name, " has ", (*integers)[i],
                           ", which float32 may not represent exactly"));
        }
      }
      return values;
    }
    default:
      return absl::UnimplementedError(
          absl::StrCat("constant ", name, " is ", base::Name(tensor.dtype)));
  }
}

cuda::ValueId Emitter::AddWeight(const std::string& name, DType dtype,
                                 int64_t rows, int64_t cols,
                                 const float* data) {
  weights_.push_back({data, rows * cols});
  return builder_.Weight(name, dtype, rows, cols);
}

absl::StatusOr<Tensor> Emitter::AddConstant(int local) {
  const Operand& operand = plan_.constants[local];
  const std::string& name = plan_.locals[local].name;
  switch (operand.tensor.dtype) {
    case base::DType::kBool:
    case base::DType::kInt32:
    case base::DType::kInt64:
      if (operand.kind == Operand::Kind::kTensor) return ExactConstant(local);
      break;
    default:
      break;
  }
  const float* data = nullptr;
  if (operand.kind == Operand::Kind::kTensor &&
      operand.tensor.dtype == base::DType::kFloat32) {
    data = reinterpret_cast<const float*>(operand.tensor.data);
  } else {
    REFRACT_ASSIGN_OR_RETURN(const std::vector<float>* const values,
                             pool_.Floats(local, ConstantPool::Use::kPlain,
                                          [&] { return FloatsOf(local); }));
    data = values->data();
  }
  const base::Dims& dims = operand.tensor.dims;
  if (operand.tensor.num_elements() < 1) {
    return absl::UnimplementedError(
        absl::StrCat("constant ", name, " has no elements"));
  }
  if (dims.size() > cuda::kMaxRank) {
    return absl::UnimplementedError(
        absl::StrCat("constant ", name, " has ", dims.size(), " dimensions"));
  }
  const int64_t cols = dims.empty() ? 1 : dims.back();
  // Constants that are added or compared keep their precision; products use
  // Matrix().
  const cuda::ValueId value = AddWeight(
      name, DType::kFloat32, operand.tensor.num_elements() / cols, cols, data);
  Tensor tensor = Stacked(value, SizesOf(dims));
  tensors_[local] = tensor;
  return tensor;
}

absl::StatusOr<Tensor> Emitter::ExactConstant(int local) {
  const auto found = exact_.find(local);
  if (found != exact_.end()) return found->second;
  const Operand& operand = plan_.constants[local];
  const std::string& name = plan_.locals[local].name;
  if (operand.kind == Operand::Kind::kTensor &&
      operand.tensor.dtype == base::DType::kFloat32) {
    return Get(local);
  }
  const std::optional<DType> dtype = TypeOf(operand.tensor.dtype);
  if (operand.kind != Operand::Kind::kTensor || !dtype) {
    return absl::UnimplementedError(absl::StrCat(
        "constant ", name, " is ", base::Name(operand.tensor.dtype)));
  }
  const base::Dims& dims = operand.tensor.dims;
  const int64_t count = operand.tensor.num_elements();
  if (count < 1)
    return absl::UnimplementedError(
        absl::StrCat("constant ", name, " is empty"));
  const int64_t cols = dims.empty() ? 1 : dims.back();
  // The uploader takes floats as float32 and converts them to the weight's
  // type; other types are copied as they are.
  cuda::WeightData data{.count = count};
  if (cuda::IsFloating(*dtype)) {
    REFRACT_ASSIGN_OR_RETURN(const std::vector<float>* const values,
                             pool_.Floats(local, ConstantPool::Use::kExact,
                                          [&] { return FloatsOf(local); }));
    data.data = values->data();
  } else if (*dtype == DType::kInt32) {
    data.indices = operand.tensor.as<int32_t>().data();
  } else {
    data.bytes = operand.tensor.data;
  }
  weights_.push_back(data);
  Tensor tensor =
      Stacked(builder_.Weight(name, *dtype, count / cols, cols), SizesOf(dims));
  exact_[local] = tensor;
  return tensor;
}

absl::StatusOr<cuda::ValueId> Emitter::Matrix(int local, bool turn) {
  const auto key = std::make_pair(local, turn);
  const auto found = matrices_.find(key);
  if (found != matrices_.end()) return found->second;
  const base::TensorView& tensor = plan_.constants[local].tensor;
  int64_t rows = tensor.dims[0];
  int64_t cols = tensor.dims[1];
  const float* data = nullptr;
  // The mapped weight file is read in place. Any other form is made once and
  // kept in the pool.
  if (tensor.dtype == base::DType::kFloat32 && !turn) {
    data = reinterpret_cast<const float*>(tensor.data);
  } else {
    const auto make = [&]() -> absl::StatusOr<std::vector<float>> {
      REFRACT_ASSIGN_OR_RETURN(std::vector<float> values, FloatsOf(local));
      if (!turn) return values;
      std::vector<float> turned(values.size());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          turned[static_cast<size_t>(c * rows + r)] =
              values[static_cast<size_t>(r * cols + c)];
        }
      }
      return turned;
    };
    REFRACT_ASSIGN_OR_RETURN(const std::vector<float>* const values,
                             pool_.Floats(local,
                                          turn ? ConstantPool::Use::kTurned
                                               : ConstantPool::Use::kMatrix,
                                          make));
    data = values->data();
    if (turn) std::swap(rows, cols);
  }
  const cuda::ValueId id =
      AddWeight(plan_.locals[local].name, compute_type_, rows, cols, data);
  matrices_[key] = id;
  return id;
}

absl::StatusOr<cuda::ValueId> Emitter::BiasRow(int local) {
  // Shares the map with Matrix(). A bias cannot be the key of a matrix, because
  // it has one dimension.
  const auto key = std::make_pair(local, false);
  const auto found = matrices_.find(key);
  if (found != matrices_.end()) return found->second;
  REFRACT_ASSIGN_OR_RETURN(const std::vector<float>* const values,
                           pool_.Floats(local, ConstantPool::Use::kBias,
                                        [&] { return FloatsOf(local); }));
  const cuda::ValueId id =
      AddWeight(plan_.locals[local].name, compute_type_, 1,
                static_cast<int64_t>(values->size()), values->data());
  matrices_[key] = id;
  return id;
}

absl::StatusOr<Tensor> Emitter::Indices(const std::string& name,
                                        const std::vector<int64_t>& values) {
  // 32 bits suffice for places in a tensor of the device, and save half of the
  // reads.
  std::vector<int32_t> narrow;
  for (const int64_t value : values) {
    if (value < INT32_MIN || value > INT32_MAX) {
      return absl::UnimplementedError(
          absl::StrCat("index ", value, " of ", name, " is beyond 2^31"));
    }
    narrow.push_back(static_cast<int32_t>(value));
  }
  const auto cols = static_cast<int64_t>(values.size());
  if (cols == 0)
    return absl::UnimplementedError(absl::StrCat(name, " has no elements"));
  // Equal lists of indices share one weight's memory.
  weights_.push_back({nullptr, cols, pool_.Integers(std::move(narrow)).data()});
  Tensor tensor;
  tensor.dtype = DType::kInt32;
  tensor.value = builder_.Weight(name, DType::kInt32, 1, cols);
  tensor.dims = {cols};
  tensor.strides = {1};
  return tensor;
}

Tensor Emitter::CausalMask(int64_t queries, int64_t keys) {
  // One mask for all attention of the program: its upper left corner is the
  // mask of fewer queries and keys.
  const int64_t wanted = std::max(queries, keys);
  if (causal_mask_ == cuda::kNone ||
      builder_.value(causal_mask_).cols < wanted) {
    const ConstantPool::Mask& mask = pool_.CausalMask(wanted);
    causal_mask_ = AddWeight("causal mask", DType::kFloat32, mask.size,
                             mask.size, mask.values.data());
  }
  Tensor tensor;
  tensor.value = causal_mask_;
  tensor.dims = {queries, keys};
  tensor.strides = {builder_.value(causal_mask_).ld, 1};
  return tensor;
}

Tensor Emitter::Range(int64_t start, int64_t step, int64_t count) {
  // Likewise the numbers 0, 1, 2, … are one weight; a range is a view of it.
  const int64_t wanted = start + step * (count - 1) + 1;
  if (counting_ == cuda::kNone || builder_.value(counting_).cols < wanted) {
    const std::vector<int64_t>& numbers = pool_.Counting(wanted);
    const auto cols = static_cast<int64_t>(numbers.size());
    weights_.push_back({.count = cols, .bytes = numbers.data()});
    counting_ = builder_.Weight("counting", DType::kInt64, 1, cols);
  }
  Tensor tensor;
  tensor.dtype = DType::kInt64;
  tensor.value = counting_;
  tensor.dims = {count};
  tensor.strides = {step};
  tensor.offset = start;
  return tensor;
}

}  // namespace refract::runtime::cuda_plan
