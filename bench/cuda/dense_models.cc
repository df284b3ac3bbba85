#include "bench/cuda/dense_models.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/cuda/calls/index_math.h"

namespace refract::bench {

using runtime::cuda::DeviceProgram;
using runtime::cuda::DeviceProgramBuilder;
using runtime::cuda::DType;
using runtime::cuda::ElementCode;
using runtime::cuda::Epilogue;
using runtime::cuda::kNone;
using runtime::cuda::LinearOp;
using runtime::cuda::MapInput;
using runtime::cuda::MapInstruction;
using runtime::cuda::MapOp;
using runtime::cuda::Op;
using runtime::cuda::Rows;
using runtime::cuda::Value;
using runtime::cuda::ValueId;
using runtime::cuda::WeightData;

std::vector<WeightData> DenseModel::weight_data() const {
  std::vector<WeightData> data;
  for (const std::vector<float>& weight : weights) {
    data.push_back({weight.data(), static_cast<int64_t>(weight.size())});
  }
  return data;
}

const char* Name(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kFloat16:
      return "fp16";
    case Precision::kBFloat16:
      return "bf16";
  }
  return "unknown";
}

DType DTypeOf(Precision precision) {
  switch (precision) {
    case Precision::kFloat16:
      return DType::kFloat16;
    case Precision::kBFloat16:
      return DType::kBFloat16;
    default:
      return DType::kFloat32;
  }
}

DlrmShape MlperfV1() { return {}; }
DlrmShape MlperfV2() {
  DlrmShape shape;
  shape.cross_layers = 3;
  return shape;
}

namespace {

// A whole matrix; with `one_row` its first row, again and again.
MapInput MatrixOf(ValueId id, const Value& value, bool one_row = false) {
  return {{id, {0, 0}, {{0, one_row ? 0 : value.ld}, {0, 1}}}};
}
// `code` over the elements of matrices of `out`'s size.
MapOp MapOver(std::vector<MapInput> inputs, std::vector<MapInstruction> code,
              ValueId out, const Value& value) {
  return {.dims = {value.rows, {0, value.cols}},
          .inputs = std::move(inputs),
          .code = std::move(code),
          .out = MatrixOf(out, value).tensor};
}

// Builds the program and draws its weights side by side.
class DlrmMaker {
 public:
  DlrmMaker(const std::string& name, Precision precision, unsigned seed)
      : builder_(name, precision == Precision::kTf32),
        dtype_(DTypeOf(precision)),
        random_(seed) {}

  DenseModel Make(const DlrmShape& shape, int64_t max_batch) {
    // One row per item, none besides (Rows: per item, fixed).
    const Rows items{1, 0};
    const ValueId dense =
        builder_.Input("dense", dtype_, items, shape.num_dense);
    const int64_t emb_cols = shape.tables * shape.dim;
    ValueId top;
    if (shape.cross_layers == 0) {
      const ValueId emb = Embeddings(shape.sent_inputs, emb_cols);
      const ValueId bottom = Mlp("bottom", dense, shape.bottom, kNone);
      const int64_t features = shape.tables + 1;
      top = builder_.Intermediate(
          "interaction", dtype_, items,
          shape.dim + runtime::cuda::NumPairs(features, false));
      builder_.Interaction({.dense = bottom, .embeddings = emb, .out = top});
      // features · (features − 1) / 2 pairs, each a product of 2 · dim FLOP.
      flops_ += static_cast<double>(features * (features - 1) * shape.dim);
    } else {
      // Embeddings are uploaded next to the output of the bottom layers.
      const ValueId x0 =
          builder_.Intermediate("x0", dtype_, items, shape.dim + emb_cols);
      builder_.InputView(x0, "embeddings", shape.dim, emb_cols, dtype_);
      Mlp("bottom", dense, shape.bottom,
          builder_.View(x0, "bottom_out", 0, shape.dim));
      top = x0;
      const int64_t width = shape.dim + emb_cols;
      for (int64_t layer = 0; layer < shape.cross_layers; ++layer) {
        const std::string prefix = "cross" + std::to_string(layer);
        // A cross layer of low rank: x0 · (U (V x) + b) + x.
        const ValueId low = Linear(prefix + "_v", top, shape.cross_rank,
                                   Epilogue::kNone, kNone);
        const ValueId full =
            Linear(prefix + "_u", low, width, Epilogue::kBias, kNone);
        const ValueId out = builder_.Intermediate(prefix, dtype_, items, width);
        // x0 · full + top: register 3 is the first instruction's.
        Map({x0, full, top},
            {{ElementCode::kMultiply, 0, 1}, {ElementCode::kAdd, 3, 2}}, out);
        top = out;
      }
    }
    const ValueId logit = Mlp("top", top, shape.top, kNone, true);
    const ValueId score =
        builder_.Output("score", DType::kFloat32, items, shape.top.back());
    Map({logit}, {{ElementCode::kSigmoid, 0}}, score);
    auto program = std::move(builder_).Build(max_batch);
    if (!program.ok()) {
      std::fprintf(stderr, "%s\n", program.status().ToString().c_str());
      std::abort();
    }
    return {*std::move(program), std::move(weights_), flops_};
  }

 private:
  ValueId Embeddings(int64_t sent_inputs, int64_t cols) {
    const Rows items{1, 0};
    if (sent_inputs == 0) {
      return builder_.Input("embeddings", dtype_, items, cols);
    }
    const ValueId all =
        builder_.Intermediate("embeddings", dtype_, items, cols);
    const int64_t width = cols / sent_inputs;
    for (int64_t i = 0; i < sent_inputs; ++i) {
      // Each input is uploaded into its columns of one matrix.
      builder_.InputView(all, "embeddings" + std::to_string(i), i * width,
                         width, DType::kFloat32);
    }
    return all;
  }

  // Inputs of one row are added to every row.
  void Map(const std::vector<ValueId>& inputs, std::vector<MapInstruction> code,
           ValueId out) {
    std::vector<MapInput> matrices;
    for (ValueId id : inputs) {
      const Value& value = builder_.value(id);
      matrices.push_back(
          MatrixOf(id, value, value.rows == runtime::cuda::kOneRow));
    }
    builder_.Map(MapOver(std::move(matrices), std::move(code), out,
                         builder_.value(out)));
  }

  ValueId Weight(const std::string& name, int64_t rows, int64_t cols,
                 double scale) {
    std::normal_distribution<float> normal(0.0f, static_cast<float>(scale));
    std::vector<float>& values = weights_.emplace_back();
    values.resize(static_cast<size_t>(rows * cols));
    for (float& value : values) {
      unsigned char memory[4];
      // Rounded to the program's type, so that a reference in float computes
      // with the same weights.
      runtime::cuda::Store(normal(random_), memory, dtype_, 0);
      value = runtime::cuda::Load(memory, dtype_, 0);
    }
    return builder_.Weight(name, dtype_, rows, cols);
  }

  ValueId Linear(const std::string& name, ValueId in, int64_t n,
                 Epilogue epilogue, ValueId out) {
    const int64_t k = builder_.value(in).cols;
    // Keeps the size of activations through the layers (He).
    const ValueId weight =
        Weight(name + "_weight", n, k, std::sqrt(2.0 / static_cast<double>(k)));
    const ValueId bias =
        epilogue == Epilogue::kNone ? kNone : Weight(name + "_bias", 1, n, 0.1);
    if (out == kNone) out = builder_.Intermediate(name, dtype_, Rows{1, 0}, n);
    builder_.Linear({in, weight, bias, out, epilogue});
    flops_ += 2.0 * static_cast<double>(n * k);
    return out;
  }

  // `out`: the value that the last layer writes to.
  ValueId Mlp(const std::string& name, ValueId in,
              const std::vector<int64_t>& sizes, ValueId out,
              bool last_is_linear = false) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool last = i + 1 == sizes.size();
      in =
          Linear(name + std::to_string(i), in, sizes[i],
                 last && last_is_linear ? Epilogue::kBias : Epilogue::kReluBias,
                 last ? out : kNone);
    }
    return in;
  }

  DeviceProgramBuilder builder_;
  const DType dtype_;
  std::mt19937 random_;
  std::vector<std::vector<float>> weights_;
  double flops_ = 0;
};

}  // namespace

DenseModel MakeDlrm(const std::string& name, const DlrmShape& shape,
                    Precision precision, int64_t max_batch, unsigned seed) {
  return DlrmMaker(name, precision, seed).Make(shape, max_batch);
}

DenseModel SeparateEpilogues(const DenseModel& model) {
  DenseModel separate = model;
  DeviceProgram& program = separate.program;
  program.ops.clear();
  for (const Op& op : model.program.ops) {
    const auto* linear = std::get_if<LinearOp>(&op.kind);
    if (linear == nullptr || linear->epilogue == Epilogue::kNone) {
      program.ops.push_back(op);
      continue;
    }
    // One more value of the output's shape for each step before the last.
    auto another = [&](const char* suffix) {
      Value value = program.value(linear->out);
      value.name += suffix;
      value.kind = runtime::cuda::ValueKind::kIntermediate;
      value.root = static_cast<ValueId>(program.values.size());
      value.first_col = 0;
      value.ld = runtime::cuda::PaddedLd(value.cols, value.dtype);
      program.values.push_back(value);
      return value.root;
    };
    ValueId last = another("_product");
    program.ops.push_back({op.name + "_product",
                           LinearOp{linear->in, linear->weight, kNone, last}});
    const bool bias = linear->bias != kNone;
    std::vector<ElementCode> steps;
    if (bias) steps.push_back(ElementCode::kAdd);
    if (linear->epilogue == Epilogue::kRelu ||
        linear->epilogue == Epilogue::kReluBias) {
      steps.push_back(ElementCode::kRelu);
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const ValueId out =
          i + 1 == steps.size() ? linear->out : another("_biased");
      std::vector<MapInput> inputs = {MatrixOf(last, program.value(last))};
      if (steps[i] == ElementCode::kAdd) {
        inputs.push_back(
            MatrixOf(linear->bias, program.value(linear->bias), true));
      }
      program.ops.push_back(
          {op.name, MapOver(std::move(inputs), {{steps[i], 0, 1}}, out,
                            program.value(out))});
      last = out;
    }
  }
  return separate;
}

}  // namespace refract::bench
