#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench/cuda/dense_models.h"

namespace refract::bench {
namespace {

using runtime::cuda::ChainOp;
using runtime::cuda::CrossOp;
using runtime::cuda::ElementOp;
using runtime::cuda::Epilogue;
using runtime::cuda::GatherOp;
using runtime::cuda::Instruction;
using runtime::cuda::InteractionOp;
using runtime::cuda::kNone;
using runtime::cuda::LinearOp;
using runtime::cuda::Op;
using runtime::cuda::Program;
using runtime::cuda::RowNormOp;
using runtime::cuda::Source;
using runtime::cuda::Value;
using runtime::cuda::ValueId;

double Unary(ElementOp op, double x) {
  switch (op) {
    case ElementOp::kNeg:
      return -x;
    case ElementOp::kAbs:
      return std::fabs(x);
    case ElementOp::kSquare:
      return x * x;
    case ElementOp::kSqrt:
      return std::sqrt(x);
    case ElementOp::kRsqrt:
      return 1 / std::sqrt(x);
    case ElementOp::kReciprocal:
      return 1 / x;
    case ElementOp::kExp:
      return std::exp(x);
    case ElementOp::kLog:
      return std::log(x);
    case ElementOp::kRelu:
      return std::isnan(x) ? x : std::max(x, 0.0);
    case ElementOp::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case ElementOp::kTanh:
      return std::tanh(x);
    case ElementOp::kSilu:
      return x / (1 + std::exp(-x));
    case ElementOp::kGelu:
      return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    case ElementOp::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
      std::fprintf(stderr, "no reference for an operator\n");
      std::abort();
  }
}

double Binary(ElementOp op, double a, double b) {
  switch (op) {
    case ElementOp::kLoad:
      return b;
    case ElementOp::kAdd:
      return a + b;
    case ElementOp::kSub:
      return a - b;
    case ElementOp::kSubFrom:
      return b - a;
    case ElementOp::kMul:
      return a * b;
    case ElementOp::kDiv:
      return a / b;
    case ElementOp::kDivInto:
      return b / a;
    case ElementOp::kMaximum:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case ElementOp::kMinimum:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    default:
      std::fprintf(stderr, "no reference for an operator\n");
      std::abort();
  }
}

class Reference {
 public:
  Reference(const Program& program, int64_t batch)
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
          sum = Unary(ElementOp::kRelu, sum);
        } else if (op.epilogue == Epilogue::kGeluTanhBias) {
          sum = Unary(ElementOp::kGeluTanh, sum);
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
  void operator()(const ChainOp& op) {
    for (int64_t r = 0; r < rows(op.out); ++r) {
      for (int64_t c = 0; c < cols(op.out); ++c) {
        double acc = 0;
        double saved[runtime::cuda::kNumTemporaries] = {};
        for (const Instruction& i : op.instructions) {
          if (i.op == ElementOp::kSave) {
            saved[i.index] = acc;
          } else if (runtime::cuda::IsUnary(i.op)) {
            acc = Unary(i.op, acc);
          } else {
            double source = i.number;
            if (i.source == Source::kTemporary) source = saved[i.index];
            if (i.source == Source::kOperand) {
              const auto& operand = op.operands[i.index];
              source = at(operand.value,
                          program_.value(operand.value).rows ==
                                  program_.value(op.out).rows
                              ? r
                              : 0,
                          operand.one_column ? 0 : c);
            }
            acc = Binary(i.op, acc, source);
          }
        }
        at(op.out, r, c) = acc;
      }
    }
  }
  void operator()(const CrossOp& op) {
    for (int64_t r = 0; r < rows(op.out); ++r) {
      for (int64_t c = 0; c < cols(op.out); ++c) {
        const double bias = op.bias == kNone ? 0 : at(op.bias, 0, c);
        at(op.out, r, c) =
            at(op.x0, r, c) * (at(op.y, r, c) + bias) + at(op.x, r, c);
      }
    }
  }
  void operator()(const GatherOp& op) {
    for (int64_t r = 0; r < rows(op.out); ++r) {
      const auto from = static_cast<int64_t>(at(op.index, r, 0));
      const bool found = from >= 0 && from < at(op.num_unique, 0, 0);
      for (int64_t c = 0; c < cols(op.out); ++c) {
        at(op.out, r, c) = found ? at(op.unique, from, c) : 0;
      }
    }
  }
  void operator()(const RowNormOp& op) {
    const auto width = static_cast<double>(cols(op.in));
    for (int64_t r = 0; r < rows(op.in); ++r) {
      double sum = 0, largest = -INFINITY;
      for (int64_t c = 0; c < cols(op.in); ++c) {
        sum += at(op.in, r, c);
        largest = std::max(largest, at(op.in, r, c));
      }
      double squares = 0, exps = 0;
      for (int64_t c = 0; c < cols(op.in); ++c) {
        squares += std::pow(at(op.in, r, c) - sum / width, 2);
        exps += std::exp(at(op.in, r, c) - largest);
      }
      for (int64_t c = 0; c < cols(op.in); ++c) {
        const double x = at(op.in, r, c);
        double y = op.softmax ? std::exp(x - largest) / exps
                              : (x - sum / width) /
                                    std::sqrt(squares / width + op.epsilon);
        if (op.gamma != kNone) y *= at(op.gamma, 0, c);
        if (op.beta != kNone) y += at(op.beta, 0, c);
        at(op.out, r, c) = y;
      }
    }
  }

 private:
  const Program& program_;
  const int64_t batch_;
  std::vector<std::vector<double>> roots_;
};

}  // namespace

std::vector<std::vector<double>> RunReference(
    const Program& program, const std::vector<std::vector<float>>& weights,
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

}  // namespace refract::bench
