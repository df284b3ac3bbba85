#include "tools/loadgen/request_maker.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "runtime/cpu/half.h"

namespace refract::loadgen {
namespace {

using runtime::cpu::BFloat16;
using runtime::cpu::Float16;

// Writes value_at(i), in the tensor's own integer or floating type.
template <typename F>
void FillWith(base::Tensor& tensor, F value_at) {
  auto fill = [&](auto span) {
    using T = typename decltype(span)::value_type;
    for (size_t i = 0; i < span.size(); ++i) {
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
        FromFloat(static_cast<float>(value_at(i)), span[i]);
      } else {
        span[i] = static_cast<T>(value_at(i));
      }
    }
  };
  switch (tensor.dtype()) {
    case base::DType::kFloat32:
      return fill(tensor.as<float>());
    case base::DType::kFloat64:
      return fill(tensor.as<double>());
    case base::DType::kFloat16:
      return fill(tensor.as<Float16>());
    case base::DType::kBFloat16:
      return fill(tensor.as<BFloat16>());
    case base::DType::kInt8:
      return fill(tensor.as<int8_t>());
    case base::DType::kInt16:
      return fill(tensor.as<int16_t>());
    case base::DType::kInt32:
      return fill(tensor.as<int32_t>());
    case base::DType::kInt64:
      return fill(tensor.as<int64_t>());
    case base::DType::kBool:
    case base::DType::kUInt8:
      return fill(tensor.as<uint8_t>());
    case base::DType::kUnknown:
      break;
  }
  LOG(FATAL) << "of no type";  // PlanRequests() refuses these
}

// The id of table row `row` in requests: an id of --table-ids, or the row's
// number.
int64_t IdOf(const InputPlan& input, size_t column, int64_t row) {
  if (input.ids.empty() || input.ids[column].empty()) return row;
  return input.ids[column][static_cast<size_t>(row)];
}

size_t CriteoColumns(const InputPlan& input) {
  if (input.input.dims.size() < 2) return 1;
  return static_cast<size_t>(input.input.dims[1]);
}

bool IsCriteoDense(const InputPlan& input) {
  return input.input.dims.size() == 2 && input.input.dims[0] < 0 &&
         input.input.dims[1] == kCriteoIntegers;
}

// A list of ids, or a matrix of a known number of columns, a row per item.
bool IsCriteoIds(const InputPlan& input) {
  const base::Dims& dims = input.input.dims;
  return !dims.empty() && dims.size() <= 2 && dims[0] < 0 &&
         (dims.size() == 1 || dims[1] > 0);
}

absl::Status CheckCriteo(const RequestPlan& plan) {
  size_t dense = 0, columns = 0;
  bool fits = true;
  for (const InputPlan& input : plan.inputs) {
    switch (input.kind) {
      case InputKind::kDense:
        ++dense;
        fits = fits && IsCriteoDense(input);
        break;
      case InputKind::kIds:
        fits = fits && IsCriteoIds(input);
        if (fits) columns += CriteoColumns(input);
        break;
      case InputKind::kOffsets:
        fits = fits && input.input.dims[0] < 0;
        break;
      case InputKind::kCounts:
        fits = false;
        break;
    }
  }
  if (fits && dense == 1 && columns == kCriteoCategories) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--criteo: the model does not take one dense input of ", kCriteoIntegers,
      " features and ", kCriteoCategories, " columns of ids per item"));
}

}  // namespace

bool IsUnknownMatrix(const InputPlan& input) {
  return input.kind == InputKind::kCounts && input.input.dims.size() > 1 &&
         input.input.dtype != base::DType::kBool;
}

RequestMaker::RequestMaker(RequestPlan plan, RequestOptions options)
    : plan_(std::move(plan)),
      options_(std::move(options)),
      random_(options_.seed, "requests"),
      samplers_(plan_.inputs.size()),
      bag_sizes_(plan_.num_bags) {
  for (size_t i = 0; i < plan_.inputs.size(); ++i) {
    for (int64_t rows : plan_.inputs[i].rows) {
      samplers_[i].emplace_back(options_.ids, rows);
    }
  }
}

absl::StatusOr<RequestMaker> RequestMaker::Create(RequestPlan plan,
                                                  RequestOptions options) {
  if (options.criteo.empty()) {
    REFRACT_RETURN_IF_ERROR(options.bags.CheckInputs(plan.num_bags));
  } else {
    REFRACT_RETURN_IF_ERROR(CheckCriteo(plan));
  }
  return RequestMaker(std::move(plan), std::move(options));
}

// Gives every symbol a value: the number of items, then the numbers of ids of
// the bag inputs, then the values of `given`, then `length` for other symbols.
absl::Status RequestMaker::BindSizes(int64_t items,
                                     const models::SymbolBindings& given) {
  // In this order: sizes of offsets follow from the items, the drawn bag sizes
  // give the number of ids, and `given` must not override either (try_emplace
  // keeps the first value). `given` reaches the number of ids through its bag
  // sizes.
  bindings_.clear();
  bindings_[plan_.batch_symbol] = items;
  for (const InputPlan& offsets : plan_.inputs) {
    if (offsets.kind != InputKind::kOffsets) continue;
    // A TorchScript model may have a symbol of its own for this size.
    const int64_t extra = offsets.include_last ? 1 : 0;
    if (const auto symbol = offsets.sizes[0].symbol()) {
      bindings_.try_emplace(*symbol, items + extra);
    }
    const auto size = offsets.sizes[0].Evaluate(bindings_);
    if (!size.ok() || *size < extra) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", offsets.input.name, ": cannot work out size ",
                       offsets.sizes[0].ToString()));
    }
    // One entry per bag. With Criteo rows the initial 1 stays: a row has one id
    // per field.
    std::vector<int64_t>& sizes = bag_sizes_[offsets.bag];
    sizes.assign(*size - extra, 1);
    const InputPlan& partner = plan_.inputs[offsets.partner];
    const auto wanted = partner.sizes[0].Evaluate(given);
    if (wanted.ok() && *wanted >= 0 && !sizes.empty()) {
      const int64_t bags = static_cast<int64_t>(sizes.size());
      // Even bags; the first ones take the remainder.
      for (int64_t i = 0; i < bags; ++i) {
        sizes[i] = *wanted / bags + (i < *wanted % bags ? 1 : 0);
      }
    } else if (options_.criteo.empty()) {
      for (int64_t& bag : sizes) {
        bag = options_.bags.Draw(offsets.bag, random_);
      }
    }
    const int64_t ids = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    // The number of ids is an expression of one symbol, for example N or N + 1.
    if (const auto solved = partner.sizes[0].Solve(ids)) {
      bindings_.try_emplace(solved->symbol, solved->value);
    }
  }
  for (const auto& [symbol, size] : given) bindings_.try_emplace(symbol, size);
  for (const InputPlan& input : plan_.inputs) {
    for (const models::SymExpr& size : input.sizes) {
      for (const std::string& symbol : size.Symbols()) {
        bindings_.try_emplace(symbol, options_.length);
      }
    }
  }
  return absl::OkStatus();
}

void RequestMaker::FillOffsets(const InputPlan& input,
                               base::Tensor& tensor) const {
  const std::vector<int64_t>& sizes = bag_sizes_[input.bag];
  int64_t begin = 0;
  FillWith(tensor, [&](size_t i) {
    // The offset of a bag is the sum of the sizes before it. An element beyond
    // the bags (include_last) gets the number of ids.
    const int64_t offset = begin;
    if (i < sizes.size()) begin += sizes[i];
    return offset;
  });
}

void RequestMaker::FillRandom(const InputPlan& input, base::Tensor& tensor) {
  switch (input.kind) {
    case InputKind::kDense:
      FillWith(tensor, [this](size_t) { return random_.Normal(); });
      return;
    case InputKind::kIds: {
      const std::vector<IdSampler>& samplers =
          samplers_[&input - plan_.inputs.data()];
      FillWith(tensor, [&](size_t i) {
        const size_t column = i % samplers.size();
        return IdOf(input, column, samplers[column].Draw(random_));
      });
      return;
    }
    case InputKind::kOffsets:
      FillOffsets(input, tensor);
      return;
    case InputKind::kCounts: {
      // Flags are 0 or 1, lists 0 to `length`, matrices 0
      // (RequestOptions::length), as far as the type holds it. The bound is
      // exclusive.
      uint64_t bound = 2;
      if (tensor.dtype() != base::DType::kBool) {
        bound = IsUnknownMatrix(input) ? 1 : options_.length + 1;
        bound = std::min<uint64_t>(bound, LargestOf(tensor.dtype()) + 1);
      }
      FillWith(tensor, [&](size_t) { return random_.Below(bound); });
      return;
    }
  }
}

void RequestMaker::FillCriteo(const InputPlan& input, size_t first_column,
                              base::Tensor& tensor) {
  // The tensor is walked element by element in row-major order: element i
  // belongs to item i / columns. `first_column` counts the categories of the
  // ids inputs before this input, since a model may have one input per category
  // or a matrix.
  const auto row_at = [this](size_t item) -> const CriteoRow& {
    return options_.criteo[(next_criteo_row_ + item) % options_.criteo.size()];
  };
  if (input.kind == InputKind::kDense) {
    FillWith(tensor, [&](size_t i) {
      return row_at(i / kCriteoIntegers).dense[i % kCriteoIntegers];
    });
  } else if (input.kind == InputKind::kIds) {
    const size_t columns = CriteoColumns(input);
    FillWith(tensor, [&](size_t i) {
      const size_t column = i % columns;
      // `rows` has one number for all columns or one per column.
      const size_t of_rows = column % input.rows.size();
      return IdOf(
          input, of_rows,
          CriteoId(row_at(i / columns).categories[first_column + column],
                   input.rows[of_rows]));
    });
  } else {
    FillOffsets(input, tensor);
  }
}

absl::StatusOr<std::vector<base::Tensor>> RequestMaker::Make(int64_t items) {
  return Make(items, {});
}

absl::StatusOr<std::vector<base::Tensor>> RequestMaker::Make(
    int64_t items, const models::SymbolBindings& sizes) {
  REFRACT_RETURN_IF_ERROR(BindSizes(items, sizes));
  std::vector<base::Tensor> tensors;
  size_t criteo_column = 0;
  for (const InputPlan& input : plan_.inputs) {
    base::Dims dims;
    for (const models::SymExpr& size : input.sizes) {
      const auto value = size.Evaluate(bindings_);
      if (!value.ok()) {
        return base::Annotate(value.status(),
                              absl::StrCat("input ", input.input.name));
      }
      dims.push_back(*value);
    }
    // For example two bags that share a size but not their lengths.
    if (input.kind == InputKind::kIds && input.bag >= 0) {
      const std::vector<int64_t>& bags = bag_sizes_[input.bag];
      if (std::accumulate(bags.begin(), bags.end(), int64_t{0}) != dims[0]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input ", input.input.name, ": the drawn bags do not hold ",
            input.sizes[0].ToString(), " = ", dims[0],
            " ids; other --bag-sizes may"));
      }
    }
    absl::StatusOr<base::Tensor> tensor =
        base::Tensor::Allocate(input.input.dtype, dims);
    if (!tensor.ok()) {
      return base::Annotate(tensor.status(),
                            absl::StrCat("input ", input.input.name));
    }
    if (options_.criteo.empty()) {
      FillRandom(input, *tensor);
    } else {
      FillCriteo(input, criteo_column, *tensor);
      if (input.kind == InputKind::kIds) criteo_column += CriteoColumns(input);
    }
    tensors.push_back(*std::move(tensor));
  }
  next_criteo_row_ += static_cast<size_t>(items);
  return tensors;
}

}  // namespace refract::loadgen
