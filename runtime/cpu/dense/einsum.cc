// Every such product is a batch of [m, k] × [k, n]. Letters of the result that
// both operands have form the batch; the other letters of the result are rows
// (of the left operand) and columns (of the right operand). An operand whose
// letters are in another order is copied first; so is a result.

#include "runtime/cpu/dense/einsum.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/cpu/clones.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/dense/letter_product.h"
#include "runtime/cpu/scratch.h"
#include "runtime/cpu/strided_copy.h"

namespace refract::runtime::cpu {
namespace {

using base::DType;

// Role of each letter of a product. The operands may be swapped, so that the
// right one has the last letters of the result.
struct Layout {
  int left = 0;    // which of the two operands
  Letters batch;   // of both operands, or of the right one alone
  Letters rows;    // of the left operand
  Letters summed;  // of both
  Letters columns;
  Letters result() const { return absl::StrCat(batch, rows, columns); }
};

Layout LayoutOf(const LetterProduct& product, int left) {
  const Letters& a = product.letters[left];
  const Letters& b = product.letters[1 - left];
  Layout layout;
  layout.left = left;
  for (char letter : product.result) {
    if (!Contains(a, letter)) {
      layout.columns += letter;
    } else {
      (Contains(b, letter) ? layout.batch : layout.rows) += letter;
    }
  }
  // The order of the summed letters is operand 0's in either layout, so that
  // the bits of the sum do not depend on the layout.
  for (char letter : product.letters[0]) {
    if (Contains(product.letters[1], letter) &&
        !Contains(product.result, letter)) {
      layout.summed += letter;
    }
  }
  return layout;
}

Layout BestLayout(const LetterProduct& product) {
  Layout layouts[2] = {LayoutOf(product, 0), LayoutOf(product, 1)};
  // A product without columns has one column and fills no vectors: the other
  // layout has one row and many columns instead.
  if (layouts[0].columns.empty()) std::swap(layouts[0], layouts[1]);
  for (Layout& layout : layouts) {
    if (layout.result() == product.result) return layout;
  }
  // Columns that precede the rows in the result: one product per such column.
  for (Layout& layout : layouts) {
    Layout other = layout;
    while (!other.columns.empty() && !other.rows.empty() &&
           product.result.find(other.columns[0]) <
               product.result.find(other.rows[0])) {
      other.batch += other.columns[0];
      other.columns.erase(0, 1);
    }
    if (other.result() == product.result) return other;
  }
  return layouts[0];
}

// out[i] = a[i × a_step] × b[i × b_step]; loops of their own for steps 0 and 1
// vectorise.
REFRACT_CPU_CLONES void MultiplyRow(const float* a, int64_t a_step,
                                    const float* b, int64_t b_step,
                                    int64_t count, float* out) {
  if (a_step == 1 && b_step == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
  } else if (a_step == 0 && b_step == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = a[0] * b[i];
  } else if (a_step == 1 && b_step == 0) {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i] * b[0];
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = a[i * a_step] * b[i * b_step];
  }
}

class EinsumKernel final : public Kernel {
 public:
  explicit EinsumKernel(LetterProduct product)
      : product_(std::move(product)), layout_(BestLayout(product_)) {}

  absl::string_view name() const override { return product_.name; }

  absl::Status Infer(const Operands& operands,
                     absl::Span<KernelOutput> outputs) const override {
    outputs[0].spec.dtype = DType::kFloat32;
    base::Dims& dims = outputs[0].spec.dims;
    dims.clear();
    for (char letter : product_.result) {
      dims.push_back(SizeOf(operands, letter));
    }
    for (int i : {0, 1}) {
      const base::Dims& own = operands[product_.operands[i]].tensor.dims;
      for (size_t d = 0; d < own.size(); ++d) {
        if (own[d] == 1 || own[d] == SizeOf(operands, product_.letters[i][d])) {
          continue;
        }
        return absl::InvalidArgumentError(absl::StrCat(
            product_.name, ": ",
            base::DimsToString(operands[product_.operands[0]].tensor.dims),
            " and ",
            base::DimsToString(operands[product_.operands[1]].tensor.dims),
            " do not fit together"));
      }
    }
    if (product_.bias != kNoOperand &&
        operands[product_.bias].tensor.num_elements() !=
            SizeOf(operands, product_.bias_letter)) {
      return absl::InvalidArgumentError(
          absl::StrCat(product_.name, ": the bias does not fit"));
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Operands& operands,
                   absl::Span<const KernelOutput> outputs,
                   RunStats&) const override {
    if (outputs[0].data == nullptr) return absl::OkStatus();
    float* const out = reinterpret_cast<float*>(outputs[0].data);
    const base::Dims& dims = outputs[0].spec.dims;
    int64_t total = 1;
    for (int64_t dim : dims) total *= dim;
    if (total == 0) return absl::OkStatus();
    if (layout_.summed.empty()) {
      Multiply(operands, dims, out);
    } else {
      Sum(operands, dims, total, out);
    }
    if (product_.bias != kNoOperand) AddBias(operands, dims, out);
    return absl::OkStatus();
  }

 private:
  // Size of a letter in the operands that have it; one of them may broadcast.
  int64_t SizeOf(const Operands& operands, char letter) const {
    int64_t size = 1;
    for (int i : {0, 1}) {
      const size_t d = product_.letters[i].find(letter);
      if (d == Letters::npos) continue;
      const int64_t own = operands[product_.operands[i]].tensor.dims[d];
      if (own != 1) size = own;
    }
    return size;
  }

  // Size of a letter in operand `i` itself: 1 where it broadcasts or lacks the
  // letter.
  int64_t OwnSizeOf(const Operands& operands, int i, char letter) const {
    const size_t d = product_.letters[i].find(letter);
    return d == Letters::npos ? 1
                              : operands[product_.operands[i]].tensor.dims[d];
  }

  int64_t SizeOf(const Operands& operands, const Letters& letters) const {
    int64_t size = 1;
    for (char letter : letters) size *= SizeOf(operands, letter);
    return size;
  }

  base::Dims SizesOf(const Operands& operands, const Letters& letters) const {
    base::Dims sizes;
    for (char letter : letters) sizes.push_back(SizeOf(operands, letter));
    return sizes;
  }

  // Strides of operand `i` in the order `letters`; 0 for letters that it lacks
  // or broadcasts.
  Strides StepsOf(const Operands& operands, int i,
                  const Letters& letters) const {
    const base::Dims& own = operands[product_.operands[i]].tensor.dims;
    const Strides dense = DenseStrides(own);
    Strides steps;
    for (char letter : letters) {
      const size_t d = product_.letters[i].find(letter);
      steps.push_back(d == Letters::npos || own[d] == 1 ? 0 : dense[d]);
    }
    return steps;
  }

  // Products without summed letters.
  void Multiply(const Operands& operands, const base::Dims& dims,
                float* out) const {
    const Strides a_steps = StepsOf(operands, 0, product_.result);
    const Strides b_steps = StepsOf(operands, 1, product_.result);
    const float* a = Floats(operands[product_.operands[0]].tensor);
    const float* b = Floats(operands[product_.operands[1]].tensor);
    // A product of scalars has no dimension.
    const size_t outer = dims.empty() ? 0 : dims.size() - 1;
    // Row by row of the result; the loop below counts through its other
    // dimensions, the last one fastest, and moves both operands along.
    const int64_t row = dims.empty() ? 1 : dims.back();
    const int64_t a_step = dims.empty() ? 0 : a_steps.back();
    const int64_t b_step = dims.empty() ? 0 : b_steps.back();
    base::Dims at(outer, 0);
    while (true) {
      MultiplyRow(a, a_step, b, b_step, row, out);
      out += row;
      size_t d = outer;
      while (d > 0) {
        --d;
        a += a_steps[d];
        b += b_steps[d];
        if (++at[d] < dims[d]) break;
        a -= a_steps[d] * dims[d];
        b -= b_steps[d] * dims[d];
        at[d] = 0;
        if (d == 0) return;
      }
      if (outer == 0) return;
    }
  }

  // Letters of an operand without those of size 1 that neither the other
  // operand nor the result has.
  Letters Known(int i) const {
    Letters known;
    for (char letter : product_.letters[i]) {
      if (Contains(product_.letters[1 - i], letter) ||
          Contains(product_.result, letter)) {
        known += letter;
      }
    }
    return known;
  }

  // Sizes of operand `i` in the order `letters`. Over batch letters it keeps a
  // broadcast size of 1, because expanding would copy the operand per product.
  base::Dims SizesOf(const Operands& operands, int i,
                     const Letters& letters) const {
    base::Dims sizes;
    for (char letter : letters) {
      sizes.push_back(Contains(layout_.batch, letter)
                          ? OwnSizeOf(operands, i, letter)
                          : SizeOf(operands, letter));
    }
    return sizes;
  }

  // Whether operand `i` is stored in the order `letters` with these sizes.
  bool LiesAs(const Operands& operands, int i, const Letters& letters) const {
    if (Known(i) != letters) return false;
    const base::Dims sizes = SizesOf(operands, i, letters);
    for (size_t d = 0; d < letters.size(); ++d) {
      if (OwnSizeOf(operands, i, letters[d]) != sizes[d]) return false;
    }
    return true;
  }

  // Floats of the copy of operand `i` in that order; 0 if no copy is needed.
  int64_t CopySize(const Operands& operands, int i,
                   const Letters& letters) const {
    if (LiesAs(operands, i, letters)) return 0;
    int64_t size = 1;
    for (int64_t own : SizesOf(operands, i, letters)) size *= own;
    return size;
  }

  // Operand `i` dense in the order `letters`, which are all its letters: in
  // place, or copied to `scratch`.
  const float* InOrder(const Operands& operands, int i, const Letters& letters,
                       float* scratch) const {
    const Operand& operand = operands[product_.operands[i]];
    if (LiesAs(operands, i, letters)) return Floats(operand.tensor);
    CopyStrided(operand.tensor.data, SizesOf(operands, i, letters),
                StepsOf(operands, i, letters), sizeof(float),
                reinterpret_cast<std::byte*>(scratch));
    return scratch;
  }

  // Strides from product to product, per letter of the batch; 0: the same
  // matrix.
  Strides BatchSteps(const Operands& operands, int i,
                     const Letters& letters) const {
    const base::Dims sizes = SizesOf(operands, i, letters);
    const Strides dense = DenseStrides(sizes);
    Strides steps;
    for (char letter : layout_.batch) {
      const size_t d = letters.find(letter);
      steps.push_back(d == Letters::npos || sizes[d] == 1 ? 0 : dense[d]);
    }
    return steps;
  }

  void Sum(const Operands& operands, const base::Dims& dims, int64_t total,
           float* out) const {
    const int left = layout_.left;
    const int right = 1 - left;
    Letters own_batch;  // of the left operand
    for (char letter : layout_.batch) {
      if (Contains(product_.letters[left], letter)) own_batch += letter;
    }
    // If the right operand is stored transposed, it is packed transposed
    // instead of copied.
    const Letters turned =
        absl::StrCat(layout_.batch, layout_.columns, layout_.summed);
    const bool transposed = LiesAs(operands, right, turned);
    const Letters columns =
        transposed
            ? turned
            : absl::StrCat(layout_.batch, layout_.summed, layout_.columns);
    const Letters rows = absl::StrCat(own_batch, layout_.rows, layout_.summed);
    const bool in_place = layout_.result() == product_.result;
    const auto padded = [](int64_t count) { return (count + 15) / 16 * 16; };
    const int64_t left_size = padded(CopySize(operands, left, rows));
    const int64_t right_size = padded(CopySize(operands, right, columns));
    float* const scratch = ThreadScratch(
        ScratchUse::kKernel,
        static_cast<size_t>(left_size + right_size + (in_place ? 0 : total)) *
            sizeof(float));
    const float* const a = InOrder(operands, left, rows, scratch);
    const float* const b =
        InOrder(operands, right, columns, scratch + left_size);
    float* const c = in_place ? out : scratch + left_size + right_size;
    MultiplyAll(
        a, BatchSteps(operands, left, rows), b,
        BatchSteps(operands, right, columns), SizesOf(operands, layout_.batch),
        SizeOf(operands, layout_.rows), SizeOf(operands, layout_.summed),
        SizeOf(operands, layout_.columns), transposed, c);
    if (in_place) return;
    const base::Dims made = SizesOf(operands, layout_.result());
    const Strides dense = DenseStrides(made);
    Strides steps;
    for (char letter : product_.result) {
      steps.push_back(dense[layout_.result().find(letter)]);
    }
    CopyStrided(reinterpret_cast<const std::byte*>(c), dims, steps,
                sizeof(float), reinterpret_cast<std::byte*>(out));
  }

  // Computes [m, k] × [k, n] for each index of a batch of `sizes`, to the dense
  // `c`.
  static void MultiplyAll(const float* a, const Strides& a_steps,
                          const float* b, const Strides& b_steps,
                          const base::Dims& sizes, int64_t m, int64_t k,
                          int64_t n, bool transposed, float* c) {
    // Adjacent products that share the right matrix become one product with
    // more rows.
    size_t outer = sizes.size();
    while (outer > 0 &&
           (sizes[outer - 1] == 1 ||
            (b_steps[outer - 1] == 0 && a_steps[outer - 1] == m * k))) {
      m *= sizes[--outer];
    }
    base::Dims at(outer, 0);
    while (true) {
      MultiplyOne(a, m, b, k, n, transposed, c);
      c += m * n;
      size_t d = outer;
      while (d > 0) {
        --d;
        a += a_steps[d];
        b += b_steps[d];
        if (++at[d] < sizes[d]) break;
        a -= a_steps[d] * sizes[d];
        b -= b_steps[d] * sizes[d];
        at[d] = 0;
        if (d == 0) return;
      }
      if (outer == 0) return;
    }
  }

  static void MultiplyOne(const float* a, int64_t m, const float* b, int64_t k,
                          int64_t n, bool transposed, float* c) {
    if (!transposed && m <= kStreamingRows && n % kPanelColumns == 0) {
      GemmUnpacked(a, k, m, b, k, n, {}, c, n);
      return;
    }
    if (!transposed && n == kPanelColumns) {
      Gemm(a, k, m, b, k, n, {}, c, n);  // b is a panel
      return;
    }
    float* const panels =
        ThreadScratch(ScratchUse::kPanels, PackedMatrix::PanelBytes(k, n));
    PackPanels(b, k, n, transposed ? 1 : n, transposed ? k : 1, panels);
    Gemm(a, k, m, panels, k, n, {}, c, n);
  }

  void AddBias(const Operands& operands, const base::Dims& dims,
               float* out) const {
    const float* const bias = Floats(operands[product_.bias].tensor);
    const size_t d = product_.result.find(product_.bias_letter);
    int64_t outer = 1;
    int64_t inner = 1;
    for (size_t e = 0; e < dims.size(); ++e) {
      if (e != d) (e < d ? outer : inner) *= dims[e];
    }
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t j = 0; j < dims[d]; ++j) {
        for (int64_t i = 0; i < inner; ++i) out[i] += bias[j];
        out += inner;
      }
    }
  }

  const LetterProduct product_;
  const Layout layout_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Kernel>> CreateEinsumKernel(
    const KernelRequest& request) {
  std::optional<LetterProduct> product = ReadLetterProduct(request);
  if (!product) return nullptr;
  return std::make_unique<EinsumKernel>(*std::move(product));
}

}  // namespace refract::runtime::cpu
