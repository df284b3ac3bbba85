#include "tests/runtime/cuda/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <variant>

namespace refract::runtime::cuda::testing {
namespace {

double Relu(double x) { return std::isnan(x) ? x : std::max(x, 0.0); }
double GeluTanh(double x) {
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double Mapped(const MapInstruction& i, double a, double b, double c) {
  switch (i.code) {
    case ElementCode::kNegate:
      return -a;
    case ElementCode::kAbsolute:
      return std::fabs(a);
    case ElementCode::kRelu:
      return Relu(a);
    case ElementCode::kSigmoid:
      return 1 / (1 + std::exp(-a));
    case ElementCode::kTanh:
      return std::tanh(a);
    case ElementCode::kExp:
      return std::exp(a);
    case ElementCode::kLog:
      return std::log(a);
    case ElementCode::kLog1p:
      return std::log1p(a);
    case ElementCode::kSqrt:
      return std::sqrt(a);
    case ElementCode::kReciprocalSqrt:
      return 1 / std::sqrt(a);
    case ElementCode::kReciprocal:
      return 1 / a;
    case ElementCode::kSquare:
      return a * a;
    case ElementCode::kErf:
      return std::erf(a);
    case ElementCode::kGelu:
      return a * 0.5 * std::erfc(-a / std::sqrt(2.0));
    case ElementCode::kGeluTanh:
      return GeluTanh(a);
    case ElementCode::kSilu:
      return a / (1 + std::exp(-a));
    case ElementCode::kNot:
      return a == 0;
    case ElementCode::kLeakyRelu:
      return a < 0 ? a * i.x : a;
    case ElementCode::kElu:
      return a < 0 ? i.x * std::expm1(a) : a;
    case ElementCode::kClamp:
      return std::isnan(a) ? a : std::clamp<double>(a, i.x, i.y);
    case ElementCode::kScale:
      return a * i.x;
    case ElementCode::kCopy:
      return a;
    case ElementCode::kSign:
      return (a > 0) - (a < 0);
    case ElementCode::kAdd:
      return a + b;
    case ElementCode::kSubtract:
      return a - b;
    case ElementCode::kMultiply:
      return a * b;
    case ElementCode::kDivide:
      return a / b;
    case ElementCode::kMinimum:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case ElementCode::kMaximum:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case ElementCode::kPower:
      return std::pow(a, b);
    case ElementCode::kEqual:
      return a == b;
    case ElementCode::kNotEqual:
      return a != b;
    case ElementCode::kLess:
      return a < b;
    case ElementCode::kLessEqual:
      return a <= b;
    case ElementCode::kGreater:
      return a > b;
    case ElementCode::kGreaterEqual:
      return a >= b;
    case ElementCode::kAnd:
      return a != 0 && b != 0;
    case ElementCode::kOr:
      return a != 0 || b != 0;
    case ElementCode::kSelect:
      return a != 0 ? b : c;
  }
  return NAN;
}

// For integers below 2^53 whose results are below it, too.
double OfIntegers(IntegerCode code, double a, double b, double c) {
  const auto bits = [&](auto combine) {
    return static_cast<double>(
        combine(static_cast<int64_t>(a), static_cast<int64_t>(b)));
  };
  switch (code) {
    case IntegerCode::kCopy:
      return std::trunc(a);
    case IntegerCode::kNegate:
      return -a;
    case IntegerCode::kAbsolute:
      return std::fabs(a);
    case IntegerCode::kInvert:
      return -a - 1;
    case IntegerCode::kNot:
      return a == 0;
    case IntegerCode::kTruth:
      return a != 0;
    case IntegerCode::kAdd:
      return a + b;
    case IntegerCode::kSubtract:
      return a - b;
    case IntegerCode::kMultiply:
      return a * b;
    case IntegerCode::kMinimum:
      return std::min(a, b);
    case IntegerCode::kMaximum:
      return std::max(a, b);
    case IntegerCode::kFloorDivide:
      return b == 0 ? 0 : std::floor(a / b);
    case IntegerCode::kTruncDivide:
      return b == 0 ? 0 : std::trunc(a / b);
    case IntegerCode::kRemainder:
      return b == 0 ? 0 : a - b * std::floor(a / b);
    case IntegerCode::kModulo:
      return b == 0 ? 0 : std::fmod(a, b);
    case IntegerCode::kBitAnd:
      return bits([](int64_t x, int64_t y) { return x & y; });
    case IntegerCode::kBitOr:
      return bits([](int64_t x, int64_t y) { return x | y; });
    case IntegerCode::kBitXor:
      return bits([](int64_t x, int64_t y) { return x ^ y; });
    case IntegerCode::kAnd:
      return a * b != 0;
    case IntegerCode::kOr:
      return std::fabs(a) + std::fabs(b) != 0;
    case IntegerCode::kXor:
      return (a == 0) != (b == 0);
    case IntegerCode::kEqual:
      return a == b;
    case IntegerCode::kNotEqual:
      return a != b;
    case IntegerCode::kLess:
      return a < b;
    case IntegerCode::kLessEqual:
      return a <= b;
    case IntegerCode::kGreater:
      return a > b;
    case IntegerCode::kGreaterEqual:
      return a >= b;
    case IntegerCode::kFromEnd:
      return a < 0 ? a + b : a;
    case IntegerCode::kClamp:
      return std::min(std::max(a, b), c);
    case IntegerCode::kSelect:
      return a != 0 ? b : c;
  }
  std::abort();
}

class Reference {
 public:
  Reference(const DeviceProgram& program, int64_t batch)
      : program_(program), batch_(batch), roots_(program.values.size()) {
    for (const Value& value : program.values) {
      const Value& root = program.value(value.root);
      roots_[static_cast<size_t>(value.root)].resize(
          static_cast<size_t>(root.rows.At(batch) * root.cols));
    }
  }

  double& at(ValueId id, int64_t row, int64_t col) {
    const Value& value = program_.value(id);
    return roots_[static_cast<size_t>(value.root)][static_cast<size_t>(
        row * program_.value(value.root).cols + value.first_col + col)];
  }
  int64_t rows(ValueId id) const { return program_.value(id).rows.At(batch_); }
  int64_t cols(ValueId id) const { return program_.value(id).cols; }
  template <typename T>
  void Set(ValueId id, const std::vector<T>& values) {
    for (int64_t r = 0; r < rows(id); ++r) {
      for (int64_t c = 0; c < cols(id); ++c) {
        at(id, r, c) = values[static_cast<size_t>(r * cols(id) + c)];
      }
    }
  }
  std::vector<double> Get(ValueId id) {
    std::vector<double> values;
    for (int64_t r = 0; r < rows(id); ++r) {
      for (int64_t c = 0; c < cols(id); ++c) values.push_back(at(id, r, c));
    }
    return values;
  }

  void operator()(const LinearOp& op) {
    for (int64_t m = 0; m < rows(op.in); ++m) {
      for (int64_t n = 0; n < cols(op.out); ++n) {
        double sum = op.bias == kNone ? 0 : at(op.bias, 0, n);
        for (int64_t k = 0; k < cols(op.in); ++k) {
          sum += at(op.in, m, k) * at(op.weight, n, k);
        }
        if (op.epilogue == Epilogue::kRelu ||
            op.epilogue == Epilogue::kReluBias) {
          sum = Relu(sum);
        }
        at(op.out, m, n) = sum;
      }
    }
  }
  void operator()(const InteractionOp& op) {
    const int64_t dim = cols(op.dense);
    const int64_t features = 1 + cols(op.embeddings) / dim;
    auto feature = [&](int64_t s, int64_t f, int64_t d) {
      return f == 0 ? at(op.dense, s, d)
                    : at(op.embeddings, s, (f - 1) * dim + d);
    };
    for (int64_t s = 0; s < rows(op.dense); ++s) {
      int64_t col = 0;
      for (; op.copy_dense && col < dim; ++col) {
        at(op.out, s, col) = at(op.dense, s, col);
      }
      for (int64_t i = 0; i < features; ++i) {
        for (int64_t j = 0; op.diagonal ? j <= i : j < i; ++j) {
          double dot = 0;
          for (int64_t d = 0; d < dim; ++d) {
            dot += feature(s, i, d) * feature(s, j, d);
          }
          at(op.out, s, col++) = dot;
        }
      }
    }
  }
  void operator()(const MapOp& op) {
    ForEach(op.dims, [&](const std::vector<int64_t>& index) {
      std::vector<double> registers;
      for (const auto& input : op.inputs) {
        registers.push_back(input.tensor.value == kNone
                                ? input.number
                                : at(input.tensor, index));
      }
      for (const MapInstruction& i : op.code) {
        // A register beyond the instruction's arguments need not exist.
        const int arguments = ArgumentsOf(i.code);
        registers.push_back(Mapped(i, registers[i.a],
                                   arguments > 1 ? registers[i.b] : 0,
                                   arguments > 2 ? registers[i.c] : 0));
      }
      at(op.out, index) = registers.back();
    });
  }
  void operator()(const MatMulOp& op) {
    ForEach(op.dims, [&](std::vector<int64_t> index) {
      const size_t i = index.size();
      index.resize(i + 2);
      const auto element = [&](const TensorRef& ref, int64_t row,
                               int64_t col) -> double& {
        index[i] = row;
        index[i + 1] = col;
        return at(ref, index);
      };
      for (int64_t m = 0; m < op.m.At(batch_); ++m) {
        for (int64_t n = 0; n < op.n.At(batch_); ++n) {
          double sum = op.bias.value == kNone ? 0 : at(op.bias, {n});
          for (int64_t k = 0; k < op.k.At(batch_); ++k) {
            sum += element(op.a, m, k) * element(op.b, k, n);
          }
          element(op.out, m, n) = op.relu ? Relu(sum) : sum;
        }
      }
    });
  }
  void operator()(const ReduceOp& op) {
    const auto split = op.dims.end() - op.inner;
    const std::vector<Rows> inner(split, op.dims.end());
    ForEach({op.dims.begin(), split}, [&](const std::vector<int64_t>& outer) {
      std::vector<double> x;
      std::vector<std::vector<int64_t>> places;
      ForEach(inner, [&](const std::vector<int64_t>& j) {
        std::vector<int64_t> index = outer;
        index.insert(index.end(), j.begin(), j.end());
        x.push_back(at(op.in, index));
        places.push_back(j);
      });
      const auto count = static_cast<double>(x.size());
      double sum = 0, exps = 0, squares = 0;
      const double most = *std::max_element(x.begin(), x.end());
      for (double v : x) sum += v;
      for (double v : x) {
        exps += std::exp(v - most);
        squares += std::pow(v - sum / count, 2);
      }
      switch (op.kind) {
        case ReduceKind::kSum:
          at(op.out, outer) = sum;
          return;
        case ReduceKind::kMean:
          at(op.out, outer) = sum / count;
          return;
        case ReduceKind::kMaximum:
          at(op.out, outer) = most;
          return;
        case ReduceKind::kMinimum:
          at(op.out, outer) = *std::min_element(x.begin(), x.end());
          return;
        default:
          break;
      }
      for (size_t i = 0; i < x.size(); ++i) {
        double y = std::exp(x[i] - most) / exps;
        if (op.kind == ReduceKind::kMaskedSoftmax && most == -INFINITY) {
          y = 0;
        } else if (op.kind == ReduceKind::kLogSoftmax) {
          y = x[i] - most - std::log(exps);
        } else if (op.kind == ReduceKind::kLayerNorm) {
          y = (x[i] - sum / count) / std::sqrt(squares / count + op.epsilon);
          if (op.gamma.value != kNone) y *= at(op.gamma, places[i]);
          if (op.beta.value != kNone) y += at(op.beta, places[i]);
        }
        std::vector<int64_t> index = outer;
        index.insert(index.end(), places[i].begin(), places[i].end());
        at(op.out, index) = y;
      }
    });
  }
  void operator()(const LookUpOp& op) {
    ForEach(op.dims, [&](const std::vector<int64_t>& index) {
      const int64_t row = Found(at(op.index, index), op.table_rows, op.outside);
      TensorRef table = op.table;
      table.offset.fixed += row * op.row_stride.At(batch_);
      at(op.out, index) = row >= 0 ? at(table, index) : 0;
    });
  }
  void operator()(const IntegerOp& op) {
    const auto split = op.dims.end() - op.inner;
    const std::vector<Rows> inner(split, op.dims.end());
    const bool truth = program_.value(op.out.value).dtype == DType::kBool;
    ForEach({op.dims.begin(), split}, [&](const std::vector<int64_t>& outer) {
      std::vector<double> results;
      ForEach(inner, [&](const std::vector<int64_t>& j) {
        std::vector<int64_t> index = outer;
        index.insert(index.end(), j.begin(), j.end());
        double x[3] = {};
        for (size_t n = 0; n < op.inputs.size(); ++n) {
          const auto& input = op.inputs[n];
          x[n] = input.tensor.value == kNone ? static_cast<double>(input.number)
                                             : at(input.tensor, index);
        }
        results.push_back(OfIntegers(op.code, x[0], x[1], x[2]));
      });
      double& out = at(op.out, outer);
      switch (op.fold) {
        case IntegerFold::kSum:
          out = 0;
          for (const double result : results) out += result;
          break;
        case IntegerFold::kMinimum:
          out = *std::min_element(results.begin(), results.end());
          break;
        case IntegerFold::kMaximum:
          out = *std::max_element(results.begin(), results.end());
          break;
      }
      if (truth) out = out != 0;
    });
  }
  void operator()(const TakesOp& op) {
    for (const Take& take : op.takes) {
      ForEach({op.rows, {0, take.inner}, {0, take.dim}}, [&](const std::vector<
                                                             int64_t>& index) {
        const int64_t row = Found(at(take.ids, {index[0], index[1]}),
                                  take.table_rows, take.outside);
        at(take.out, index) = row >= 0 ? at(take.table, {row, index[2]}) : 0;
      });
    }
  }
  void operator()(const BagsOp& op) {
    for (const Bag& bag : op.bags) {
      for (int64_t row = 0; row < op.rows.At(batch_); ++row) Read(op, bag, row);
    }
  }
  // Only the test that made it knows what it computes.
  void operator()(const ForeignOp&) { std::abort(); }

 private:
  // The row that an index names; negative: none.
  static int64_t Found(double index, int64_t rows, Outside outside) {
    const auto row = static_cast<int64_t>(index);
    if (row >= 0 && row < rows) return row;
    return outside == Outside::kFirstRow ? 0 : -1;
  }
  void Read(const BagsOp& op, const Bag& bag, int64_t row) {
    const bool has_next = bag.include_last || row + 1 < op.rows.At(batch_);
    double begin = static_cast<double>(row * bag.length);
    double end = begin + static_cast<double>(bag.length);
    if (bag.offsets.value != kNone) {
      begin = at(bag.offsets, {row});
      end = has_next ? at(bag.offsets, {row + 1})
                     : static_cast<double>(bag.entries.At(batch_));
    }
    for (int64_t col = 0; col < bag.dim; ++col) {
      double result = 0;
      int64_t taken = 0;
      for (auto i = static_cast<int64_t>(begin); i < end; ++i) {
        auto id = static_cast<int64_t>(at(bag.ids, {i}));
        if (bag.padding_id >= 0 && id == bag.padding_id) continue;
        bool found = id >= 0 && id < bag.table_rows;
        if (!found && bag.outside == Outside::kFirstRow) {
          id = 0;
          found = true;
        }
        double value = found ? at(bag.table, {id, col}) : 0;
        if (bag.weights.value != kNone && found) value *= at(bag.weights, {i});
        ++taken;
        if (bag.mode == BagMode::kMaximum) {
          result = taken == 1 ? value : std::max(result, value);
        } else {
          result += value;
        }
      }
      if (bag.mode == BagMode::kMean && taken > 1) {
        result /= static_cast<double>(taken);
      }
      at(bag.out, {row, col}) = result;
    }
  }
  double& at(const TensorRef& ref, const std::vector<int64_t>& index) {
    int64_t flat = ref.offset.At(batch_);
    for (size_t d = 0; d < index.size(); ++d) {
      flat += index[d] * ref.strides[d].At(batch_);
    }
    const int64_t ld = program_.value(ref.value).ld;
    return at(ref.value, flat / ld, flat % ld);
  }
  // Calls `body(index)` for all indices within `dims`.
  template <typename Body>
  void ForEach(const std::vector<Rows>& dims, Body body) const {
    int64_t count = 1;
    for (const Rows& dim : dims) count *= dim.At(batch_);
    std::vector<int64_t> index(dims.size());
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      for (size_t d = dims.size(); d-- > 0;) {
        index[d] = rest % dims[d].At(batch_);
        rest /= dims[d].At(batch_);
      }
      body(index);
    }
  }

  const DeviceProgram& program_;
  const int64_t batch_;
  std::vector<std::vector<double>> roots_;
};

}  // namespace

std::vector<std::vector<double>> RunReference(
    const DeviceProgram& program,
    const std::vector<std::vector<float>>& weights,
    const std::vector<std::vector<double>>& inputs, int64_t batch) {
  Reference reference(program, batch);
  for (size_t i = 0; i < weights.size(); ++i) {
    reference.Set(program.weights[i], weights[i]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    reference.Set(program.inputs[i], inputs[i]);
  }
  for (const Op& op : program.ops) std::visit(reference, op.kind);
  std::vector<std::vector<double>> outputs;
  for (ValueId id : program.outputs) outputs.push_back(reference.Get(id));
  return outputs;
}

double LargestError(const std::vector<std::vector<double>>& got,
                    const std::vector<std::vector<double>>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].size() != want[i].size()) {
      return std::numeric_limits<double>::infinity();
    }
    for (size_t e = 0; e < got[i].size(); ++e) {
      if (std::isnan(got[i][e]) != std::isnan(want[i][e])) {
        return std::numeric_limits<double>::infinity();
      }
      if (!std::isnan(want[i][e])) {
        largest = std::max(largest, std::abs(got[i][e] - want[i][e]));
      }
    }
  }
  return largest;
}

}  // namespace refract::runtime::cuda::testing
