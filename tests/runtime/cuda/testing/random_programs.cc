#include "tests/runtime/cuda/testing/random_programs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "runtime/cuda/calls/index_math.h"

namespace refract::runtime::cuda::testing {

namespace {

using bench::Precision;

constexpr Rows kItems{1, 0};
constexpr int64_t kMaxBatch = 40;

// Builder of one random program.
class Maker {
 public:
  explicit Maker(std::mt19937& random)
      : random_(random),
        precision_(static_cast<Precision>(random() % 4)),
        dtype_(DTypeOf(precision_)),
        builder_("random", precision_ == Precision::kTf32) {
    result_.batch = static_cast<int64_t>(1 + random() % kMaxBatch);
  }

  Case Make() {
    constexpr void (Maker::*kMakers[])() = {
        &Maker::Linear,    &Maker::Interaction, &Maker::Map,
        &Maker::Attention, &Maker::LookUp,      &Maker::Bags,
        &Maker::Takes,     &Maker::Integers,    &Maker::Norm};
    (this->*kMakers[random_() % std::size(kMakers)])();
    auto program = std::move(builder_).Build(kMaxBatch);
    if (!program.ok()) {
      std::fprintf(stderr, "%s\n", program.status().ToString().c_str());
      std::abort();
    }
    result_.model.program = *std::move(program);
    if (result_.inputs.empty()) {
      result_.inputs =
          RandomInputs(result_.model.program, result_.batch, random_);
    }
    result_.what = std::string(Name(precision_)) + ", batch " +
                   std::to_string(result_.batch) + ", " + result_.what;
    return std::move(result_);
  }

 private:
  int64_t Pick(std::initializer_list<int64_t> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  bool Coin() { return random_() % 2 == 0; }
  ValueId Weight(const std::string& name, int64_t rows, int64_t cols) {
    const auto values = RandomValues(rows * cols, dtype_, random_);
    result_.model.weights.emplace_back(values.begin(), values.end());
    return builder_.Weight(name, dtype_, rows, cols);
  }
  ValueId In(const std::string& name, int64_t cols) {
    return builder_.Input(name, dtype_, kItems, cols);
  }
  ValueId Out(int64_t cols) {
    return builder_.Output("out", dtype_, kItems, cols);
  }
  // A sum of `terms` products of numbers up to 1: fp32 rounding at each of
  // them, TF32's of the factors, and one of the result, which is at most
  // `largest`.
  double Tolerance(int64_t terms, double largest) const {
    const auto n = static_cast<double>(terms);
    double tolerance = n * n * 6e-8 + 1e-6;
    if (precision_ == Precision::kTf32) tolerance += n * 1e-3;
    if (dtype_ == DType::kFloat16) tolerance += largest * std::ldexp(1, -11);
    if (dtype_ == DType::kBFloat16) tolerance += largest * std::ldexp(1, -8);
    return tolerance;
  }

  void Linear() {
    const int64_t k = Pick({1, 5, 13, 64, 100, 479});
    const int64_t n = Pick({1, 8, 9, 64, 130});
    const auto epilogue = static_cast<Epilogue>(random_() % 4);
    const ValueId in = In("x", k);
    const ValueId weight = Weight("w", n, k);
    const ValueId b = HasBias(epilogue) ? Weight("b", 1, n) : kNone;
    builder_.Linear({in, weight, b, Out(n), epilogue});
    result_.what = "linear " + std::to_string(k) + " -> " + std::to_string(n) +
                   ", " + Name(epilogue);
    result_.tolerance = Tolerance(k, static_cast<double>(k + 1));
  }
  void Interaction() {
    const int64_t features = Pick({2, 5, 16, 17, 27, 32, 40});
    const int64_t dim = Pick({1, 8, 16, 32, 64, 128});
    const bool diagonal = Coin();
    const bool copy = Coin();
    const ValueId dense = In("dense", dim);
    const ValueId emb = In("embeddings", (features - 1) * dim);
    builder_.Interaction({dense, emb,
                          Out((copy ? dim : 0) + NumPairs(features, diagonal)),
                          diagonal, copy});
    result_.what = "interaction of " + std::to_string(features) + " x " +
                   std::to_string(dim);
    result_.tolerance = Tolerance(dim, static_cast<double>(dim));
  }
  // A matrix, a column and a row, and instructions that read any register.
  void Map() {
    const int64_t cols = Pick({1, 4, 7, 64, 200});
    const ValueId out = Out(cols);
    const auto input = [&](ValueId id, bool one_row, bool one_column) {
      const int64_t ld = one_row ? 0 : builder_.value(id).ld;
      return MapInput{{id, {0, 0}, {{0, ld}, {0, one_column ? 0 : 1}}}};
    };
    MapOp op{.dims = {kItems, {0, cols}},
             .inputs = {input(In("a", cols), false, false),
                        input(In("column", 1), false, true),
                        input(Weight("row", 1, cols), true, false),
                        {{}, 0.5f}},
             .code = {{ElementCode::kMultiply, 0, 2}},
             .out = input(out, false, false).tensor};
    // Codes whose results stay small.
    constexpr ElementCode kCodes[] = {
        ElementCode::kAdd,     ElementCode::kSubtract, ElementCode::kMultiply,
        ElementCode::kMaximum, ElementCode::kMinimum,  ElementCode::kAbsolute,
        ElementCode::kNegate,  ElementCode::kSquare,   ElementCode::kRelu,
        ElementCode::kSigmoid, ElementCode::kTanh,     ElementCode::kSilu,
        ElementCode::kGelu,    ElementCode::kGeluTanh};
    const auto any = [&] {
      return static_cast<uint8_t>(random_() %
                                  (op.inputs.size() + op.code.size()));
    };
    for (int i = 0; i < 6; ++i) {
      const uint8_t a = any(), b = any(), c = any();
      op.code.push_back({kCodes[random_() % std::size(kCodes)], a, b, c});
    }
    // Into (-1, 1), whatever came before.
    op.code.push_back(
        {ElementCode::kTanh,
         static_cast<uint8_t>(op.inputs.size() + op.code.size() - 1)});
    builder_.Map(std::move(op));
    result_.what = "element-wise over " + std::to_string(cols) + " columns";
    result_.tolerance = Tolerance(1, 1) + 1e-4;
  }
  // A mask for a square of scores: −∞, in the first row everywhere.
  TensorRef Mask(int64_t length) {
    const ValueId id = builder_.Weight("mask", dtype_, length, length);
    auto& values = result_.model.weights.emplace_back();
    for (int64_t i = 0; i < length * length; ++i) {
      values.push_back(i < length || Coin() ? -INFINITY : 0.5f);
    }
    return {id, {0, 0}, {{0, 0}, {0, 0}, {0, builder_.value(id).ld}, {0, 1}}};
  }
  // softmax(x · yᵀ + 1) · x over heads that lie turned, and a mean over them.
  void Attention() {
    const int64_t length = Pick({1, 3, 5});
    const int64_t heads = Pick({1, 2});
    const int64_t width = Pick({2, 5, 8});
    const int64_t cols = length * heads * width;
    const std::vector<Rows> lead = {kItems, {0, heads}};
    // [b, length, heads · width] seen as [b, heads, length, width].
    const auto turned = [&](ValueId id) {
      return TensorRef{
          id,
          {0, 0},
          {{0, builder_.value(id).ld}, {0, width}, {0, heads * width}, {0, 1}}};
    };
    const ValueId x = In("x", cols);
    const ValueId y = In("y", cols);
    const auto square = [&](const char* name) {
      const ValueId id = builder_.Intermediate(name, DType::kFloat32, kItems,
                                               heads * length * length);
      return TensorRef{id,
                       {0, 0},
                       {{0, builder_.value(id).ld},
                        {0, length * length},
                        {0, length},
                        {0, 1}}};
    };
    const TensorRef scores = square("scores");
    const TensorRef moved = square("moved");
    const TensorRef weights = square("weights");
    TensorRef across = turned(y);
    std::swap(across.strides[2], across.strides[3]);
    builder_.MatMul({.dims = lead,
                     .m = {0, length},
                     .n = {0, length},
                     .k = {0, width},
                     .a = turned(x),
                     .b = across,
                     .bias = {},
                     .out = scores});
    const std::vector<Rows> all = {
        kItems, {0, heads}, {0, length}, {0, length}};
    constexpr ReduceKind kKinds[] = {ReduceKind::kSoftmax,
                                     ReduceKind::kLogSoftmax,
                                     ReduceKind::kMaskedSoftmax};
    const ReduceKind kind = kKinds[random_() % 3];
    MapOp sum = {.dims = all,
                 .inputs = {{scores}, {{}, 1.0f}},
                 .code = {{ElementCode::kAdd, 0, 1}},
                 .out = moved};
    if (kind == ReduceKind::kMaskedSoftmax) sum.inputs[1] = {Mask(length)};
    builder_.Map(std::move(sum));
    builder_.Reduce({.kind = kind,
                     .dims = all,
                     .in = moved,
                     .gamma = {},
                     .beta = {},
                     .out = weights});
    const ValueId mixed =
        builder_.Intermediate("mixed", DType::kFloat32, kItems, cols);
    builder_.MatMul({.dims = lead,
                     .m = {0, length},
                     .n = {0, width},
                     .k = {0, length},
                     .a = weights,
                     .b = turned(x),
                     .bias = {},
                     .out = turned(mixed)});
    const ValueId out = Out(length * width);
    TensorRef heads_last = turned(mixed);
    // [b, length, width, heads]
    heads_last.strides = {heads_last.strides[0], heads_last.strides[2],
                          heads_last.strides[3], heads_last.strides[1]};
    builder_.Reduce(
        {.kind = ReduceKind::kMean,
         .dims = {kItems, {0, length}, {0, width}, {0, heads}},
         .in = heads_last,
         .gamma = {},
         .beta = {},
         .out = {
             out, {0, 0}, {{0, builder_.value(out).ld}, {0, width}, {0, 1}}}});
    result_.what = "attention of " + std::to_string(heads) + " x " +
                   std::to_string(length) + " x " + std::to_string(width);
    result_.tolerance = Tolerance(4 * width, 8) + 1e-5;
  }
  void LookUp() {
    const int64_t rows = Pick({1, 7, 50});
    const int64_t cols = Pick({1, 6, 16});
    const int64_t ids = Pick({1, 3});
    const ValueId table = Weight("table", rows, cols);
    const ValueId index = builder_.Input("index", DType::kInt32, kItems, ids);
    const ValueId out = Out(ids * cols);
    builder_.LookUp(
        {.dims = {kItems, {0, ids}, {0, cols}},
         .table = {table, {0, 0}, {{0, 0}, {0, 0}, {0, 1}}},
         .index = {index, {0, 0}, {{0, ids}, {0, 1}, {0, 0}}},
         .out = {out, {0, 0}, {{0, builder_.value(out).ld}, {0, cols}, {0, 1}}},
         .row_stride = {0, builder_.value(table).ld},
         .table_rows = rows,
         .outside = Outside::kZero});
    result_.inputs.resize(1);
    for (int64_t i = 0; i < result_.batch * ids; ++i) {
      // Some are outside, on either side.
      result_.inputs[0].push_back(static_cast<double>(
          static_cast<int64_t>(random_() % static_cast<unsigned>(rows + 2)) -
          1));
    }
    result_.what = "look-up of " + std::to_string(cols) + " columns";
    result_.tolerance = 0;
  }
  // Any operator on integers of either width, of views, in one dimension
  // folded.
  void Integers() {
    IntegerOp op;
    op.code = static_cast<IntegerCode>(random_() %
                                       static_cast<unsigned>(kNumIntegerCodes));
    op.fold = static_cast<IntegerFold>(random_() % 3);
    const int64_t steps = Pick({1, 3, 7});
    const int64_t width = Pick({1, 2, 33});
    op.inner = Coin() ? 1 : 0;
    op.dims = {kItems, {0, width}, {0, steps}};
    for (int n = 0; n < OperandsOf(op.code); ++n) {
      IntegerInput& input = op.inputs.emplace_back();
      // Some are 0, some negative.
      const auto draw = [&] {
        return static_cast<int64_t>(random_() % 41) - 20;
      };
      if (n > 0 && Coin()) {
        input.number = draw();
        continue;
      }
      const ValueId in = builder_.Input(
          std::string(1, static_cast<char>('a' + n)),
          Coin() ? DType::kInt32 : DType::kInt64, kItems, width * steps);
      // Turned, or one for all steps.
      input.tensor = {
          in,
          {0, 0},
          {{0, width * steps}, {0, 1}, {0, n > 0 && Coin() ? 0 : width}}};
      auto& values = result_.inputs.emplace_back();
      for (int64_t i = 0; i < result_.batch * width * steps; ++i) {
        values.push_back(static_cast<double>(draw()));
      }
    }
    const int64_t cols = op.inner == 1 ? width : width * steps;
    constexpr DType kTypes[] = {DType::kInt32, DType::kInt64, DType::kBool};
    op.out.value = builder_.Output("out", kTypes[random_() % 3], kItems, cols);
    op.out.strides = {{0, builder_.value(op.out.value).ld},
                      {0, op.inner == 1 ? 1 : steps}};
    if (op.inner == 0) op.out.strides.push_back({0, 1});
    result_.what = "integer operator " +
                   std::to_string(static_cast<int>(op.code)) + " of " +
                   std::to_string(width) + " x " + std::to_string(steps);
    builder_.Integers(std::move(op));
    result_.tolerance = 0;
  }
  // Some tables at once, with one or several ids per item.
  void Takes() {
    TakesOp op{.rows = kItems, .takes = {}};
    const int64_t tables = Pick({1, 3, 8});
    for (int64_t n = 0; n < tables; ++n) {
      const std::string name = std::to_string(n);
      Take take;
      take.table_rows = Pick({1, 7, 50});
      take.dim = Pick({1, 6, 16, 24, 200});
      take.inner = Pick({1, 1, 3});
      take.outside = Coin() ? Outside::kZero : Outside::kFirstRow;
      const ValueId table = Weight("table" + name, take.table_rows, take.dim);
      take.table = {table, {0, 0}, {{0, builder_.value(table).ld}, {0, 1}}};
      take.ids = {
          builder_.Input("ids" + name, Coin() ? DType::kInt32 : DType::kInt64,
                         kItems, take.inner),
          {0, 0},
          {{0, take.inner}, {0, 1}}};
      const ValueId out =
          builder_.Output("out" + name, dtype_, kItems, take.inner * take.dim);
      take.out = {
          out, {0, 0}, {{0, builder_.value(out).ld}, {0, take.dim}, {0, 1}}};
      auto& ids = result_.inputs.emplace_back();
      for (int64_t i = 0; i < result_.batch * take.inner; ++i) {
        // Some are outside, on either side.
        const auto id = random_() % static_cast<unsigned>(take.table_rows + 2);
        ids.push_back(static_cast<double>(id) - 1);
      }
      op.takes.push_back(std::move(take));
    }
    builder_.Takes(std::move(op));
    result_.what = "takes of " + std::to_string(tables) + " tables";
    result_.tolerance = 0;
  }
  // Some tables at once, each with bags of its own. The first batch + 1 of what
  // an input of offsets holds are those of the request.
  void Bags() {
    constexpr int64_t kCapacity = 300;
    BagsOp op{.rows = kItems, .bags = {}};
    std::vector<std::vector<double>> inputs;
    int64_t longest = 0;
    const int64_t tables = Pick({1, 3});
    for (int64_t n = 0; n < tables; ++n) {
      const std::string name = std::to_string(n);
      Bag bag;
      bag.table_rows = Pick({1, 7, 50});
      bag.dim = Pick({1, 6, 16, 24, 200});
      bag.mode = static_cast<BagMode>(random_() % 3);
      bag.outside = Coin() ? Outside::kZero : Outside::kFirstRow;
      if (Coin()) bag.padding_id = Pick({0, bag.table_rows - 1});
      const ValueId table = Weight("table" + name, bag.table_rows, bag.dim);
      bag.table = {table, {0, 0}, {{0, builder_.value(table).ld}, {0, 1}}};
      const DType id_type = Coin() ? DType::kInt32 : DType::kInt64;
      std::vector<double> offsets = {0};
      if (Coin()) {
        bag.length = Pick({1, 3});
        bag.entries = {bag.length, 0};
        for (int64_t row = 0; row < result_.batch; ++row) {
          offsets.push_back(offsets.back() + static_cast<double>(bag.length));
        }
        bag.ids.value =
            builder_.Input("ids" + name, id_type, kItems, bag.length);
      } else {
        bag.include_last = true;
        bag.entries = {0, kCapacity};
        for (int64_t row = 0; row < result_.batch; ++row) {
          const auto size = static_cast<double>(random_() % 6);
          offsets.push_back(offsets.back() + size);
        }
        bag.offsets = {builder_.Input("offsets" + name, id_type, {1, 1}, 1),
                       {0, 0},
                       {{0, 1}}};
        inputs.push_back(offsets);
        bag.ids.value = builder_.CountedInput("ids" + name, id_type, kCapacity);
      }
      bag.ids.strides = {{0, 1}};
      const bool weighted = bag.mode == BagMode::kSum && bag.length == 0;
      const auto entries = static_cast<size_t>(
          bag.length > 0 ? offsets.back() : static_cast<double>(kCapacity));
      auto& ids = inputs.emplace_back();
      for (size_t i = 0; i < entries; ++i) {
        // Some are outside, on either side.
        const auto id = random_() % static_cast<unsigned>(bag.table_rows + 2);
        ids.push_back(static_cast<double>(id) - 1);
      }
      if (weighted) {
        bag.weights = {
            builder_.CountedInput("weights" + name, dtype_, kCapacity),
            {0, 0},
            {{0, 1}}};
        const auto values = RandomValues(kCapacity, dtype_, random_);
        inputs.emplace_back(values.begin(), values.end());
      }
      const ValueId out =
          builder_.Output("out" + name, dtype_, kItems, bag.dim);
      bag.out = {out, {0, 0}, {{0, builder_.value(out).ld}, {0, 1}}};
      for (size_t row = 1; row < offsets.size(); ++row) {
        longest = std::max(
            longest, static_cast<int64_t>(offsets[row] - offsets[row - 1]));
      }
      op.bags.push_back(std::move(bag));
    }
    builder_.Bags(std::move(op));
    result_.inputs = std::move(inputs);
    result_.what = "bags of " + std::to_string(tables) + " tables";
    result_.tolerance = Tolerance(1, static_cast<double>(longest));
  }
  void Norm() {
    const int64_t cols = Pick({2, 31, 64, 300});
    const bool softmax = Coin();
    const bool affine = !softmax && Coin();
    const ValueId in = In("x", cols);
    const ValueId gamma = affine ? Weight("gamma", 1, cols) : kNone;
    const ValueId beta = affine ? Weight("beta", 1, cols) : kNone;
    const ValueId out = Out(cols);
    const auto matrix = [&](ValueId id) {
      return TensorRef{id, {0, 0}, {{0, builder_.value(id).ld}, {0, 1}}};
    };
    const auto row = [&](ValueId id) {
      return id == kNone ? TensorRef{} : TensorRef{id, {0, 0}, {{0, 1}}};
    };
    builder_.Reduce(
        {.kind = softmax ? ReduceKind::kSoftmax : ReduceKind::kLayerNorm,
         .dims = {kItems, {0, cols}},
         .in = matrix(in),
         .gamma = row(gamma),
         .beta = row(beta),
         .out = matrix(out),
         .epsilon = 1e-2f});
    result_.what = std::string(softmax ? "softmax" : "layer norm") + " of " +
                   std::to_string(cols);
    result_.tolerance =
        Tolerance(1, 1 + std::sqrt(static_cast<double>(cols))) + 2e-5;
  }

  std::mt19937& random_;
  const Precision precision_;
  const DType dtype_;
  DeviceProgramBuilder builder_;
  Case result_;
};

}  // namespace

Case RandomCase(std::mt19937& random) { return Maker(random).Make(); }

std::vector<double> RandomValues(int64_t count, DType dtype,
                                 std::mt19937& random) {
  std::uniform_real_distribution<float> distribution(-1, 1);
  std::vector<double> values;
  values.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    unsigned char memory[4];
    Store(distribution(random), memory, dtype, 0);
    values.push_back(Load(memory, dtype, 0));
  }
  return values;
}

std::vector<std::vector<double>> RandomInputs(const DeviceProgram& program,
                                              int64_t batch,
                                              std::mt19937& random) {
  std::vector<std::vector<double>> inputs;
  for (ValueId id : program.inputs) {
    const Value& value = program.value(id);
    inputs.push_back(
        RandomValues(value.rows.At(batch) * value.cols, value.dtype, random));
  }
  return inputs;
}

Status RunOnce(Instance& instance, int64_t batch,
               const std::vector<std::vector<double>>& inputs,
               std::vector<std::vector<double>>& outputs) {
  const DeviceProgram& program = instance.program();
  auto slot = instance.Acquire(batch);
  if (!slot.ok()) return slot.status();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const DType dtype = program.value(program.inputs[i]).host_dtype;
    for (size_t e = 0; e < inputs[i].size(); ++e) {
      if (dtype == DType::kInt32) {
        const auto number = static_cast<int32_t>(inputs[i][e]);
        std::memcpy(instance.input(*slot, i) + 4 * e, &number, sizeof(number));
      } else if (dtype == DType::kInt64) {
        const auto number = static_cast<int64_t>(inputs[i][e]);
        std::memcpy(instance.input(*slot, i) + 8 * e, &number, sizeof(number));
      } else {
        Store(static_cast<float>(inputs[i][e]), instance.input(*slot, i), dtype,
              static_cast<int64_t>(e));
      }
    }
  }
  Status status = instance.Submit(*slot);
  if (status.ok()) status = instance.Wait(*slot);
  outputs.clear();
  for (size_t i = 0; status.ok() && i < program.outputs.size(); ++i) {
    const DType dtype = program.value(program.outputs[i]).dtype;
    auto& output = outputs.emplace_back();
    const int64_t count = instance.output_bytes(*slot, i) / SizeOf(dtype);
    const std::byte* const data = instance.output(*slot, i);
    for (int64_t e = 0; e < count; ++e) {
      const auto as = [&](auto number) {
        std::memcpy(&number, data + e * static_cast<int64_t>(sizeof(number)),
                    sizeof(number));
        return static_cast<double>(number);
      };
      output.push_back(dtype == DType::kInt32   ? as(int32_t{})
                       : dtype == DType::kInt64 ? as(int64_t{})
                       : dtype == DType::kBool  ? as(uint8_t{})
                                                : Load(data, dtype, e));
    }
  }
  instance.Release(*slot);
  return status;
}

}  // namespace refract::runtime::cuda::testing
