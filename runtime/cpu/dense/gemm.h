#ifndef REFRACT_RUNTIME_CPU_DENSE_GEMM_H_
#define REFRACT_RUNTIME_CPU_DENSE_GEMM_H_

// Matrix products with packed weights.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensor.h"
#include "runtime/cpu/dense/tile.h"
#include "runtime/cpu/dense/weight_arena.h"

namespace refract::runtime::cpu {

// The elements of a float32 tensor.
inline const float* Floats(const base::TensorView& view) {
  return reinterpret_cast<const float*>(view.data);
}

// A matrix [k, n] as panels of kPanelColumns columns, each [k][kPanelColumns],
// so that a product reads it sequentially; the last panel is padded with zeros.
// Immutable.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `b[i × row_stride + j × column_stride]` is element [i, j]: strides (n, 1)
  // for a dense [k, n], (1, k) for the transpose of a dense [n, k], the layout
  // of nn.Linear. The panels are allocated in `arena`, which its matrices own
  // together; null: an arena of this matrix alone.
  PackedMatrix(const float* b, int64_t k, int64_t n, int64_t row_stride,
               int64_t column_stride, WeightForm form,
               std::shared_ptr<WeightArena> arena = nullptr);

  // Bytes that PackPanels() needs.
  static size_t PanelBytes(int64_t k, int64_t n);

  int64_t k() const { return k_; }
  int64_t n() const { return n_; }
  WeightForm form() const { return form_; }
  const void* data() const { return panels_; }
  // Per column; null unless kInt8.
  const float* scale() const {
    return scale_.empty() ? nullptr : scale_.data();
  }
  size_t bytes() const { return bytes_; }
  // True when no weight in the panels is infinite or NaN (a scale may be).
  bool finite() const { return finite_; }
  // The value of an element after rounding, for error bounds.
  float At(int64_t k, int64_t n) const;

 private:
  int64_t k_ = 0;
  int64_t n_ = 0;
  WeightForm form_ = WeightForm::kFloat32;
  size_t bytes_ = 0;
  bool finite_ = false;
  std::shared_ptr<const WeightArena> arena_;
  const std::byte* panels_ = nullptr;
  std::vector<float> scale_;
};

// Packs as the constructor with kFloat32, into the caller's memory.
void PackPanels(const float* b, int64_t k, int64_t n, int64_t row_stride,
                int64_t column_stride, float* panels);

// Applied to a sum before it is stored, see Tile.
struct Epilogue {
  const float* bias = nullptr;  // n numbers, or null
  bool relu = false;
};

// c[m, n] = epilogue(a[m, k] × b[k, n]). Rows of `a` and `c` are `a_stride` and
// `c_stride` floats apart; c overlaps nothing else. Each element is the sum
// that Tile defines. With a single row, zeros of `a` may be left out where all
// weights are finite, which can change the sign of a zero sum. Runs on the
// calling thread; allocates nothing once warm (see scratch.h).
void Gemm(const float* a, int64_t a_stride, int64_t m, const PackedMatrix& b,
          const Epilogue& epilogue, float* c, int64_t c_stride);
// A range of the sum's terms: the columns of `a` are multiplied with rows
// [first, first + count) of b.
struct Terms {
  int64_t first = 0;
  int64_t count = 0;
  bool resumes = false;  // c holds the sums over the earlier rows
  bool ends = true;      // else c gets sums without the epilogue
};
// As above for some terms. All terms in ascending order give the same bits as
// one call.
void Gemm(const float* a, int64_t a_stride, int64_t m, const PackedMatrix& b,
          const Terms& terms, const Epilogue& epilogue, float* c,
          int64_t c_stride);
// With panels from PackPanels(), or with a dense b of kPanelColumns columns,
// which has the layout of a panel. `resumes`: as in Terms.
void Gemm(const float* a, int64_t a_stride, int64_t m, const float* panels,
          int64_t k, int64_t n, const Epilogue& epilogue, float* c,
          int64_t c_stride, bool resumes = false);
// As above for some terms: `panels` hold all k rows.
void Gemm(const float* a, int64_t a_stride, int64_t m, const float* panels,
          int64_t k, int64_t n, const Terms& terms, const Epilogue& epilogue,
          float* c, int64_t c_stride);
// With an unpacked b [k, n], n a multiple of kPanelColumns, for at most
// kStreamingRows rows: packing would take longer than the product.
void GemmUnpacked(const float* a, int64_t a_stride, int64_t m, const float* b,
                  int64_t k, int64_t n, const Epilogue& epilogue, float* c,
                  int64_t c_stride);
// With a given tile set instead of the chosen one.
void Gemm(const TileSet& tiles, const float* a, int64_t a_stride, int64_t m,
          const PackedMatrix& b, const Terms& terms, const Epilogue& epilogue,
          float* c, int64_t c_stride);
void Gemm(const TileSet& tiles, const float* a, int64_t a_stride, int64_t m,
          const PackedMatrix& b, const Epilogue& epilogue, float* c,
          int64_t c_stride);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_GEMM_H_
