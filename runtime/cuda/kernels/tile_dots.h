#ifndef REFRACT_RUNTIME_CUDA_KERNELS_TILE_DOTS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_TILE_DOTS_H_

// Bodies of the product for batches between a handful (row_dots.h) and those
// that fill a GPU with cuBLASLt's large tiles: 16 to some hundred rows by
// layers of some hundred columns. There the weights lie in the L2 cache, and
// what takes time is the way from it: few blocks with long sums wait for memory
// most of the time. So tiles are small, for all SMs to have one, the warps of a
// block share the sum over k, and a lane has 16 to 24 loads of 16 bytes under
// way before it uses the first. Sums of warps are added in a fixed order:
// results do not depend on timing.
//
// Factors go from global memory into registers and nowhere else. A sum has no
// order, so a lane may take its 16 bytes of a row for whatever columns of it,
// as long as it does so in both factors: then they are the words that the
// tensor cores want from that lane. Four lanes read 64 bytes of a row, whole
// sectors; there is no shared memory to wait for, nor barriers, before the sums
// are added. These lie in rows of 8 floats more than a tile has columns, so
// that the four rows which half a warp stores at once are in different banks.
//
// Reasoned, not measured: 64 rows of 1024 by 1024 in fp16 are 128 blocks of 32
// by 16, each with 96 KB to read, all of them under way at once in 8 warps;
// together 12 MB, a few microseconds of an H100's L2 cache. Tiles of 32 by 32
// would read 8 MB, on half as many SMs. See interaction.h for what a `Thread`
// is.

#include <cstdint>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/element_ops.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/vector.h"
#include "runtime/cuda/calls/scalar.h"

namespace refract::runtime::cuda {

// A warp's piece of the product by tensor cores: 16-row pieces of `in` by
// 8-row pieces of `weight`. Factors are fp16, bf16 or rounded to TF32, sums are
// fp32.
template <typename T, int kRowPieces, int kColPieces>
struct TensorPiece {
  static constexpr int kRows = 16 * kRowPieces;
  static constexpr int kCols = 8 * kColPieces;
  // Vectors of 16 bytes that a lane reads per step: of `in` and of `weight`.
  static constexpr int kLeft = 2 * kRowPieces;
  static constexpr int kRight = kColPieces;
  // Vectors per row and step, and which of them a lane reads.
  static constexpr int kStepVectors = 4;
  REFRACT_DEVICE static int VectorOf(int lane) { return lane % 4; }
  REFRACT_DEVICE static int LeftRow(int lane, int i) {
    return 8 * i + lane / 4;
  }
  REFRACT_DEVICE static int RightRow(int lane, int i) {
    return 8 * i + lane / 4;
  }

  template <typename Thread>
  REFRACT_DEVICE void MultiplyAdd(Vector16 (&left)[kLeft],
                                  Vector16 (&right)[kRight], Thread& t) {
    for (Vector16& vector : left) Round(vector, t);
    for (Vector16& vector : right) Round(vector, t);
    // Two halves of a vector: two products of the tensor cores.
    for (int half = 0; half < 4; half += 2) {
      for (int c = 0; c < kColPieces; ++c) {
        const uint32_t b[2] = {right[c].words[half], right[c].words[half + 1]};
        for (int r = 0; r < kRowPieces; ++r) {
          const Vector16& upper = left[2 * r];
          const Vector16& lower = left[2 * r + 1];
          const uint32_t a[4] = {upper.words[half], lower.words[half],
                                 upper.words[half + 1], lower.words[half + 1]};
          t.template MultiplyAdd<T>(sums[r][c], a, b);
        }
      }
    }
  }

  // `out`: 8-byte aligned, `ld` even.
  REFRACT_DEVICE void Store(int lane, float* out, int ld) const {
    for (int r = 0; r < kRowPieces; ++r) {
      for (int c = 0; c < kColPieces; ++c) {
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * r + 8 * half + lane / 4;
          const int col = 8 * c + lane % 4 * 2;
          *reinterpret_cast<Pack<float, 2>*>(out + row * ld + col) = {
              {sums[r][c][2 * half], sums[r][c][2 * half + 1]}};
        }
      }
    }
  }

  float sums[kRowPieces][kColPieces][4] = {};

 private:
  template <typename Thread>
  REFRACT_DEVICE static void Round(Vector16& vector, Thread& t) {
    for (uint32_t& word : vector.words) word = t.template Factor<T>(word);
  }
};

// The same by multiplications in fp32, a lane per kRowsPerLane × kColsPerLane:
// rows and columns of a lane are 8 and 4 apart.
template <int kRowsPerLane, int kColsPerLane>
struct FmaPiece {
  static constexpr int kRows = 8 * kRowsPerLane;
  static constexpr int kCols = 4 * kColsPerLane;
  static constexpr int kLeft = kRowsPerLane;
  static constexpr int kRight = kColsPerLane;
  static constexpr int kStepVectors = 1;
  REFRACT_DEVICE static int VectorOf(int) { return 0; }
  REFRACT_DEVICE static int LeftRow(int lane, int i) {
    return 8 * i + lane / 4;
  }
  REFRACT_DEVICE static int RightRow(int lane, int i) {
    return 4 * i + lane % 4;
  }

  template <typename Thread>
  REFRACT_DEVICE void MultiplyAdd(const Vector16 (&left)[kLeft],
                                  const Vector16 (&right)[kRight], Thread&) {
    REFRACT_UNROLL
    for (int e = 0; e < 4; ++e) {
      REFRACT_UNROLL
      for (int r = 0; r < kLeft; ++r) {
        for (int c = 0; c < kRight; ++c) {
          sums[r][c] += scalar_internal::FloatOf(left[r].words[e]) *
                        scalar_internal::FloatOf(right[c].words[e]);
        }
      }
    }
  }

  REFRACT_DEVICE void Store(int lane, float* out, int ld) const {
    for (int r = 0; r < kLeft; ++r) {
      for (int c = 0; c < kRight; ++c) {
        out[(8 * r + lane / 4) * ld + 4 * c + lane % 4] = sums[r][c];
      }
    }
  }

  float sums[kLeft][kRight] = {};
};

// A block computes kDown × kAcross pieces, each by kSplit warps that share the
// sum over k step by step in turn. T: the type of all operands in memory (Tf32
// for float).
template <typename T, typename Piece, int kDown, int kAcross, int kSplit>
struct TileDots {
  static constexpr int kRows = kDown * Piece::kRows;
  static constexpr int kCols = kAcross * Piece::kCols;
  static constexpr int kMaxThreads = kDown * kAcross * kSplit * kWarp;
  static constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));
  static constexpr int kStep = Piece::kStepVectors * kPerVector;
  static constexpr DType kType = kDTypeOf<T>;
  // Steps whose vectors a lane has under way: 16 to 24 of them, which is what
  // registers allow (one block of 256 threads per SM).
  static constexpr int kVectors = Piece::kLeft + Piece::kRight;
  static constexpr int kAhead = 24 / kVectors < 4 ? 24 / kVectors : 4;
  // Of the sums in shared memory: kSplit planes of kRows rows.
  static constexpr int kLd = kCols + 8;
  static constexpr int kPlane = kRows * kLd;
  static constexpr int64_t kSharedBytes = int64_t{4} * kSplit * kPlane;
  static_assert(kSharedBytes <= kMaxSharedBytes);

  // Results that a thread writes at once, neighbours of a row.
  static constexpr int kEven = kRows * kCols / kMaxThreads;
  static constexpr int kOutWidth = kEven < 2            ? 2
                                   : kEven > kPerVector ? kPerVector
                                                        : kEven;
  // A thread keeps its columns, and so its biases, from pass to pass.
  static constexpr int kPass = kMaxThreads * kOutWidth;
  static_assert(kPass % kCols == 0);

  static bool Takes(const GemmCall& call) {
    const GemmShape& s = call.shape;
    constexpr int64_t kMost = int64_t{1} << 30;  // indices are of 32 bits
    return s.dtype == kType && s.m < kMost && s.n < kMost && s.k > 0 &&
           s.k < kMost && RowsAligned(call.in, s.ld_in, s.dtype) &&
           RowsAligned(call.weight, s.ld_weight, s.dtype);
  }
  static LaunchShape Shape(const GemmCall& call) {
    return {CeilDiv(call.shape.m, kRows) * CeilDiv(call.shape.n, kCols),
            kMaxThreads, kSharedBytes};
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const GemmCall& call, Thread& t) {
    // Neighbouring blocks: the same columns, so that weights that are not yet
    // in the L2 cache are asked for once.
    const auto block = static_cast<uint32_t>(t.block());
    const auto down = static_cast<uint32_t>(call.shape.m + kRows - 1) / kRows;
    const int first_row = static_cast<int>(block % down) * kRows;
    const int first_col = static_cast<int>(block / down) * kCols;
    const int piece = t.warp() / kSplit;
    const int split = t.warp() % kSplit;
    const int piece_row = piece / kAcross * Piece::kRows;
    const int piece_col = piece % kAcross * Piece::kCols;

    T bias[kOutWidth] = {};
    Piece mine;
    Accumulate(call, first_row + piece_row, first_col + piece_col, split, mine,
               t, [&] {
                 if (call.bias == nullptr) return;
                 const int n = static_cast<int>(call.shape.n);
                 for (int i = 0; i < kOutWidth; ++i) {
                   const int col = first_col + OutCol(t) + i;
                   bias[i] =
                       static_cast<const T*>(call.bias)[col < n ? col : n - 1];
                 }
               });
    float* const sums = reinterpret_cast<float*>(t.shared());
    mine.Store(t.lane(), sums + split * kPlane + piece_row * kLd + piece_col,
               kLd);
    t.SyncBlock();
    const bool wide =
        first_col + kCols <= call.shape.n &&
        call.shape.ld_out % kOutWidth == 0 &&
        reinterpret_cast<uintptr_t>(call.out) % (kOutWidth * sizeof(T)) == 0;
    if (wide) {
      Write<true>(call, first_row, first_col, sums, bias, t);
    } else {
      Write<false>(call, first_row, first_col, sums, bias, t);
    }
  }

 private:
  struct Vectors {
    Vector16 left[Piece::kLeft];
    Vector16 right[Piece::kRight];
  };
  // Vectors from one step of a warp to its next.
  static constexpr int kStride = kSplit * Piece::kStepVectors;
  // Where a lane reads, in its rows.
  struct Cursor {
    const Vector16* left[Piece::kLeft];
    const Vector16* right[Piece::kRight];
    int vector;  // of those of a row
  };

  // This warp's steps of the sum over k. `meanwhile` runs while the first
  // vectors are on their way.
  template <typename Thread, typename Meanwhile>
  REFRACT_DEVICE static void Accumulate(const GemmCall& call, int first_row,
                                        int first_col, int split, Piece& mine,
                                        Thread& t, Meanwhile meanwhile) {
    const int m = static_cast<int>(call.shape.m);
    const int n = static_cast<int>(call.shape.n);
    const int k = static_cast<int>(call.shape.k);
    const int lane = t.lane();
    Cursor cursor;
    cursor.vector = split * Piece::kStepVectors + Piece::VectorOf(lane);
    for (int i = 0; i < Piece::kLeft; ++i) {
      // Rows that there are not repeat the last, and are not written.
      const int row = first_row + Piece::LeftRow(lane, i);
      cursor.left[i] =
          At(call.in, row < m ? row : m - 1, call.shape.ld_in, cursor.vector);
    }
    for (int i = 0; i < Piece::kRight; ++i) {
      const int row = first_col + Piece::RightRow(lane, i);
      cursor.right[i] = At(call.weight, row < n ? row : n - 1,
                           call.shape.ld_weight, cursor.vector);
    }
    const int row_vectors = (k + kPerVector - 1) / kPerVector;
    Vectors ahead[kAhead] = {};
    REFRACT_UNROLL
    for (int a = 0; a < kAhead; ++a) Read(row_vectors, cursor, a, ahead[a]);
    meanwhile();
    for (int first = split; first * kStep < k; first += kAhead * kSplit) {
      Advance(cursor);
      REFRACT_UNROLL
      for (int a = 0; a < kAhead; ++a) {
        const int begin = (first + a * kSplit) * kStep;
        // The whole warp. A branch also keeps the reads where they are: in one
        // block of code they would all be put behind the last product.
        if (begin >= k) break;
        if (begin + kStep > k) {
          ClearAfter(k - begin - Piece::VectorOf(lane) * kPerVector, ahead[a]);
        }
        mine.MultiplyAdd(ahead[a].left, ahead[a].right, t);
        Read(row_vectors, cursor, a, ahead[a]);
      }
    }
  }

  REFRACT_DEVICE static const Vector16* At(const void* data, int row,
                                           int64_t ld, int vector) {
    return reinterpret_cast<const Vector16*>(static_cast<const T*>(data) +
                                             row * ld) +
           vector;
  }
  // The vectors of this warp's step `a` from where the cursor is; nothing
  // beyond the end of a row.
  REFRACT_DEVICE static void Read(int row_vectors, const Cursor& cursor, int a,
                                  Vectors& out) {
    const int at = a * kStride;
    if (cursor.vector + at >= row_vectors) return;
    for (int i = 0; i < Piece::kLeft; ++i) out.left[i] = cursor.left[i][at];
    for (int i = 0; i < Piece::kRight; ++i) out.right[i] = cursor.right[i][at];
  }
  // By kAhead steps.
  REFRACT_DEVICE static void Advance(Cursor& cursor) {
    cursor.vector += kAhead * kStride;
    for (const Vector16*& row : cursor.left) row += kAhead * kStride;
    for (const Vector16*& row : cursor.right) row += kAhead * kStride;
  }
  // Leaves the first `used` elements of each vector (none where negative):
  // what lies behind a row's columns may be anything.
  REFRACT_DEVICE static void ClearAfter(int used, Vectors& vectors) {
    constexpr int kPerWord = kPerVector / 4;
    for (int w = 0; w < 4; ++w) {
      const int of_word = used - w * kPerWord;
      const uint32_t mask = of_word >= kPerWord ? 0xFFFFFFFFu
                            : of_word > 0       ? 0xFFFFu
                                                : 0u;
      for (Vector16& vector : vectors.left) vector.words[w] &= mask;
      for (Vector16& vector : vectors.right) vector.words[w] &= mask;
    }
  }

  // Where the columns of a thread begin in the block's tile.
  template <typename Thread>
  REFRACT_DEVICE static int OutCol(Thread& t) {
    return t.thread() * kOutWidth % kCols;
  }
  // Adds up the planes. kWide: all columns of the tile are there, and aligned
  // for kOutWidth elements at once.
  template <bool kWide, typename Thread>
  REFRACT_DEVICE static void Write(const GemmCall& call, int first_row,
                                   int first_col, const float* sums,
                                   const T (&bias)[kOutWidth], Thread& t) {
    constexpr int kPack = kOutWidth < 4 ? kOutWidth : 4;
    const GemmShape& s = call.shape;
    const int64_t col = first_col + OutCol(t);
    for (int at = t.thread() * kOutWidth; at < kRows * kCols; at += kPass) {
      const int tile_row = at / kCols;
      const int64_t row = first_row + tile_row;
      if (row >= s.m) break;
      const float* const from = sums + tile_row * kLd + OutCol(t);
      float values[kOutWidth] = {};
      for (int plane = 0; plane < kSplit; ++plane) {
        for (int i = 0; i < kOutWidth; i += kPack) {
          const auto part = *reinterpret_cast<const Pack<float, kPack>*>(
              from + plane * kPlane + i);
          for (int e = 0; e < kPack; ++e) values[i + e] += part.values[e];
        }
      }
      for (int i = 0; i < kOutWidth; ++i) {
        if (call.bias != nullptr) values[i] += ToFloat(bias[i]);
        if (s.epilogue == Epilogue::kRelu ||
            s.epilogue == Epilogue::kReluBias) {
          values[i] = ApplyUnary(ElementOp::kRelu, values[i]);
        } else if (s.epilogue == Epilogue::kGeluTanhBias) {
          values[i] = ApplyUnary(ElementOp::kGeluTanh, values[i]);
        }
      }
      const int64_t to = row * s.ld_out + col;
      if constexpr (kWide) {
        StoreWide(values, call.out, kType, to);
      } else {
        for (int i = 0; i < kOutWidth; ++i) {
          if (col + i < s.n) Store(values[i], call.out, kType, to + i);
        }
      }
    }
  }
};

// What a warp computes of a type: float without rounding of its factors.
template <typename T, int kRowPieces, int kColPieces>
struct PieceOf {
  using Type = TensorPiece<T, kRowPieces, kColPieces>;
};
template <int kRowPieces, int kColPieces>
struct PieceOf<float, kRowPieces, kColPieces> {
  using Type = FmaPiece<2 * kRowPieces, 2 * kColPieces>;
};

// The sizes that there are (ProductKernel), eight warps each.
template <typename T>
using Tiles16x16 = TileDots<T, typename PieceOf<T, 1, 2>::Type, 1, 1, 8>;
template <typename T>
using Tiles32x16 = TileDots<T, typename PieceOf<T, 2, 2>::Type, 1, 1, 8>;
template <typename T>
using Tiles32x32 = TileDots<T, typename PieceOf<T, 2, 4>::Type, 1, 1, 8>;
template <typename T>
using Tiles64x32 = TileDots<T, typename PieceOf<T, 2, 4>::Type, 2, 1, 4>;
template <typename T>
using Tiles64x64 = TileDots<T, typename PieceOf<T, 2, 4>::Type, 2, 2, 2>;

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_TILE_DOTS_H_
