#include "tools/loadgen/request_maker.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/tensor_elements.h"

namespace refract::loadgen {
namespace {

using runtime::FillWith;

// The id of table row `row` in requests: an id of --table-ids, or the row's
// number.
int64_t IdOf(const InputPlan& input, size_t column, int64_t row) {
  if (input.ids.empty() || input.ids[column].empty()) return row;
  return input.ids[column][static_cast<size_t>(row)];
}

size_t CriteoColumns(const InputPlan& input) {
  if (input.input.dims.size() < 2) {
    return std::max<size_t>(input.bags.size(), 1);
  }
  return static_cast<size_t>(input.input.dims[input.feature_major ? 0 : 1]);
}

bool IsCriteoDense(const InputPlan& input) {
  return input.input.dims.size() == 2 && input.input.dims[0] < 0 &&
         input.input.dims[1] == kCriteoIntegers;
}

// A list of ids, or a matrix of a known number of features.
bool IsCriteoIds(const InputPlan& input) {
  const base::Dims& dims = input.input.dims;
  if (dims.empty() || dims.size() > 2) return false;
  const bool feature_major = input.feature_major && dims.size() == 2;
  return dims[feature_major ? 1 : 0] < 0 &&
         (dims.size() == 1 || dims[feature_major ? 0 : 1] > 0);
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
      case InputKind::kLengths:
        fits = fits && input.input.dims.back() < 0;
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

bool HasUnknownIntegers(const InputPlan& input) {
  return input.kind == InputKind::kCounts &&
         input.input.dtype != base::DType::kBool && input.end.is_unknown() &&
         (input.unknown_indices || input.input.dims.size() > 1);
}

absl::Status WithOptionForFiles(const absl::Status& status,
                                absl::string_view option) {
  if (!absl::IsInvalidArgument(status)) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), "; the request was drawn, ", option,
                   " takes requests from files"));
}

RequestMaker::RequestMaker(RequestPlan plan, RequestOptions options)
    : plan_(std::move(plan)),
      options_(std::move(options)),
      random_(options_.seed, "requests"),
      samplers_(plan_.inputs.size()),
      bag_sizes_(plan_.num_bags) {
  for (size_t i = 0; i < plan_.inputs.size(); ++i) {
    for (int64_t rows : plan_.inputs[i].rows) {
      samplers_[i].emplace_back(options_.ids, std::max<int64_t>(rows, 1));
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

int64_t RequestMaker::BagsOf(const InputPlan& ids) const {
  int64_t bags = 0;
  for (const int bag : ids.bags) {
    bags += static_cast<int64_t>(bag_sizes_[bag].size());
  }
  return bags;
}

int64_t RequestMaker::IdsIn(int bag) const {
  const std::vector<int64_t>& sizes = bag_sizes_[bag];
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

void RequestMaker::BindWithin(const std::string& symbol, int64_t size,
                              bool rows) {
  const auto limits = plan_.limits.find(symbol);
  if (limits != plan_.limits.end()) {
    const auto [least, most] = limits->second;
    // Rows that cannot be as many as the items stand beside all of them.
    size = rows && size > most ? least : std::clamp(size, least, most);
  }
  bindings_.try_emplace(symbol, size);
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
    if (const auto solved = offsets.sizes.back().Solve(items + extra)) {
      BindWithin(solved->symbol, solved->value, /*rows=*/true);
    }
    const auto size = offsets.sizes.back().Evaluate(bindings_);
    if (!size.ok() || *size < extra) {
      return absl::InvalidArgumentError(
          absl::StrCat("input ", offsets.input.name, ": cannot work out size ",
                       offsets.sizes.back().ToString()));
    }
    // One entry per bag. With Criteo rows the initial 1 stays: a row has one id
    // per field.
    for (const int bag : offsets.bags) bag_sizes_[bag].assign(*size - extra, 1);
  }
  for (const InputPlan& lengths : plan_.inputs) {
    if (lengths.kind != InputKind::kLengths) continue;
    // Lengths of one item after the other, of piece after piece. A TorchScript
    // model may have a symbol of its own for their number.
    const auto pieces = static_cast<int64_t>(lengths.bags.size());
    if (const auto symbol = lengths.sizes[0].symbol();
        symbol && lengths.sizes.size() == 1) {
      bindings_.try_emplace(*symbol, items * pieces);
    }
    int64_t count = 1;
    for (const models::SymExpr& size : lengths.sizes) {
      const auto value = size.Evaluate(bindings_);
      if (!value.ok() || *value < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("input ", lengths.input.name,
                         ": cannot work out size ", size.ToString()));
      }
      count *= *value;
    }
    for (const int bag : lengths.bags)
      bag_sizes_[bag].assign(count / pieces, 1);
  }
  for (const InputPlan& ids : plan_.inputs) {
    if (ids.kind != InputKind::kIds || ids.partner < 0) continue;
    const models::SymExpr& number = ids.sizes.back();
    const auto wanted = number.Evaluate(given);
    const int64_t bags = BagsOf(ids);
    // Even bags, over which the remainder is spread: the first k bags have
    // ⌈k · wanted / bags⌉ ids.
    int64_t k = 0;
    const auto ids_before = [&](int64_t bag) {
      return (bag * *wanted + bags - 1) / bags;
    };
    int64_t count = 0;
    for (const int bag : ids.bags) {
      for (int64_t& size : bag_sizes_[bag]) {
        if (wanted.ok() && *wanted >= 0) {
          size = ids_before(k + 1) - ids_before(k);
          ++k;
        } else if (options_.criteo.empty()) {
          size = options_.bags.Draw(bag, random_);
        }
        count += size;
      }
    }
    // The number of ids is an expression of one symbol, for example N or N + 1.
    if (const auto solved = number.Solve(count)) {
      bindings_.try_emplace(solved->symbol, solved->value);
    }
  }
  for (const auto& [symbol, size] : given) bindings_.try_emplace(symbol, size);
  // Rows that several inputs have are items, too: users beside candidates.
  std::set<std::string> leading;
  for (const InputPlan& input : plan_.inputs) {
    if (input.sizes.empty()) continue;
    const auto symbol = input.sizes[0].symbol();
    if (symbol && !leading.insert(*symbol).second) {
      BindWithin(*symbol, items, /*rows=*/true);
    }
  }
  for (const InputPlan& input : plan_.inputs) {
    for (const models::SymExpr& size : input.sizes) {
      for (const std::string& symbol : size.Symbols()) {
        BindWithin(symbol, options_.length, /*rows=*/false);
      }
    }
  }
  return absl::OkStatus();
}

void RequestMaker::FillOffsets(const InputPlan& input,
                               base::Tensor& tensor) const {
  const auto columns = static_cast<size_t>(tensor.dims().back());
  int64_t begin = 0;
  FillWith(tensor, [&](size_t i) {
    // The offset of a bag is the sum of the sizes before it in its row. An
    // element beyond the bags (include_last) gets the number of ids.
    const size_t row = i / columns;
    const size_t bag = i % columns;
    const std::vector<int64_t>& sizes =
        bag_sizes_[input.bags[row % input.bags.size()]];
    if (bag == 0) begin = 0;
    const int64_t offset = begin;
    if (bag < sizes.size()) begin += sizes[bag];
    return offset;
  });
}

void RequestMaker::FillLengths(const InputPlan& input,
                               base::Tensor& tensor) const {
  size_t piece = 0;
  size_t bag = 0;
  FillWith(tensor, [&](size_t) -> int64_t {
    while (piece < input.bags.size() &&
           bag == bag_sizes_[input.bags[piece]].size()) {
      ++piece;
      bag = 0;
    }
    return piece < input.bags.size() ? bag_sizes_[input.bags[piece]][bag++] : 0;
  });
}

template <typename F>
void RequestMaker::FillIds(const InputPlan& input, size_t features,
                           base::Tensor& tensor, F id_of) const {
  if (input.bags.size() > 1) {
    // Pieces of a list. Piece k ends where the ids of its bags do.
    size_t piece = 0;
    int64_t item = 0;
    int64_t end = IdsIn(input.bags[0]);
    FillWith(tensor, [&](size_t) {
      while (item >= end && piece + 1 < input.bags.size()) {
        end = IdsIn(input.bags[++piece]);
        item = 0;
      }
      return id_of(piece % features, static_cast<size_t>(item++));
    });
    return;
  }
  const auto columns =
      tensor.dims().empty() ? 1 : static_cast<size_t>(tensor.dims().back());
  FillWith(tensor, [&](size_t i) {
    return input.feature_major ? id_of(i / columns, i % columns)
                               : id_of(i % features, i / features);
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
      if (base::IsFloatingPoint(tensor.dtype())) {
        FillIds(input, samplers.size(), tensor, [&](size_t feature, size_t) {
          return input.rows[feature] == 0
                     ? random_.Normal()
                     : static_cast<double>(samplers[feature].Draw(random_));
        });
        return;
      }
      FillIds(input, samplers.size(), tensor, [&](size_t feature, size_t) {
        return IdOf(input, feature, samplers[feature].Draw(random_));
      });
      return;
    }
    case InputKind::kLengths:
      FillLengths(input, tensor);
      return;
    case InputKind::kOffsets:
      FillOffsets(input, tensor);
      return;
    case InputKind::kCounts: {
      // Flags are 0 or 1, indices in their range, other lists 0 to `length`,
      // matrices 0 (RequestOptions::length), as far as the type holds it. The
      // bound is exclusive.
      uint64_t bound = 2;
      const auto least = static_cast<uint64_t>(input.least);
      if (tensor.dtype() != base::DType::kBool) {
        bound = HasUnknownIntegers(input) ? 1 : options_.length + 1;
        // Its symbols may be sizes that no input has.
        if (const auto end = input.end.Evaluate(bindings_); end.ok()) {
          bound =
              static_cast<uint64_t>(std::max<int64_t>(*end - input.least, 1));
        }
        bound = std::min<uint64_t>(bound, LargestOf(tensor.dtype()) + 1);
      }
      FillWith(tensor, [&](size_t) { return least + random_.Below(bound); });
      return;
    }
  }
}

void RequestMaker::FillCriteo(const InputPlan& input, size_t first_column,
                              base::Tensor& tensor) {
  // The tensor is walked element by element in row-major order. `first_column`
  // counts the categories of the ids inputs before this input, since a model
  // may have one input per category or a matrix.
  const auto row_at = [this](size_t item) -> const CriteoRow& {
    return options_.criteo[(next_criteo_row_ + item) % options_.criteo.size()];
  };
  if (input.kind == InputKind::kDense) {
    FillWith(tensor, [&](size_t i) {
      return row_at(i / kCriteoIntegers).dense[i % kCriteoIntegers];
    });
  } else if (input.kind == InputKind::kIds) {
    const size_t columns = CriteoColumns(input);
    FillIds(input, columns, tensor, [&](size_t column, size_t item) {
      // `rows` has one number for all columns or one per column.
      const size_t of_rows = column % input.rows.size();
      return IdOf(input, of_rows,
                  CriteoId(row_at(item).categories[first_column + column],
                           input.rows[of_rows]));
    });
  } else if (input.kind == InputKind::kLengths) {
    FillLengths(input, tensor);
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
    if (input.kind == InputKind::kIds && input.partner >= 0) {
      int64_t ids = 0;
      for (const int bag : input.bags) ids += IdsIn(bag);
      if (ids != dims.back()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input ", input.input.name, ": the drawn bags do not hold ",
            input.sizes.back().ToString(), " = ", dims.back(),
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
