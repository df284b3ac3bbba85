#ifndef REFRACT_RUNTIME_CUDA_KERNELS_INTERACTION_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_INTERACTION_H_

// Bodies of the dot interaction kernels.
//
// A kernel is a struct with kMaxThreads (threads of a block), Shape(call) and
// Run(call, thread), and Takes(call) where another kernel computes the rest.
// launch.cu implements a `Thread` for a GPU, the tests (simt.h) for the CPU:
//   lane(), warp(), thread(), threads(), block(), blocks()
//   shared()                          the block's dynamic shared memory
//   SyncWarp(), SyncBlock(), ShuffleXor(value, mask), AtomicAdd(address, value)
//   Left<T>, Right<T>, Tile<T>        16 × 16 products of a warp on tensor
//                                     cores: Tile += Left · Rightᵀ

#include <cstdint>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// Size of the square tiles of a warp's matrix product.
inline constexpr int kTile = 16;
// Rows of dot products in shared memory: 32 columns and 4 more, so that the
// rows of a tile start in different banks.
inline constexpr int kDotsLd = 2 * kTile + 4;

// A warp per sample. All feature rows stay in shared memory, padded with zero
// rows to whole tiles; the tiles of the lower triangle are computed by tensor
// cores; the dots go through shared memory, so that each output row is written
// once, in order. Reads and writes each byte once: bound by memory, as long as
// enough loads are under way (kInFlight) and instructions per sample are few.
// The place of each pair's dot is therefore read from a table of the block.
template <typename T>
struct InteractionTiles {
  static constexpr int kMaxThreads = 4 * kWarp;
  // Accesses of 16 bytes that a lane begins before it uses the first. An SM
  // needs some 20 KB on their way to keep an H100's memory busy: 32 lanes · 128
  // bytes · the 12 (fp32) to 24 (16 bits) warps that shared memory has room for
  // is 2 to 4 times that.
  static constexpr int kInFlight = 8;
  // Most blocks of a launch. With more samples a warp takes several.
  static constexpr int64_t kMostBlocks = 2 * kMaxBlocks;

  // Elements between staged rows: 16 bytes off a power of two, against bank
  // conflicts, while tiles stay 32-byte aligned.
  REFRACT_HOST_DEVICE static int RowLd(int dim) {
    return dim + static_cast<int>(16 / sizeof(T));
  }
  REFRACT_HOST_DEVICE static int PaddedRows(int features) {
    return static_cast<int>(RoundUp(features, kTile));
  }
  REFRACT_HOST_DEVICE static int64_t WarpBytes(int features, int dim) {
    const int64_t rows = PaddedRows(features);
    const int64_t staged = rows * RowLd(dim) * static_cast<int64_t>(sizeof(T));
    const int64_t dots = rows * kDotsLd * static_cast<int64_t>(sizeof(float));
    return RoundUp(staged > dots ? staged : dots, 128);
  }
  // Size of the block's table of pairs.
  REFRACT_HOST_DEVICE static int64_t TableBytes(const InteractionCall& call) {
    return RoundUp(NumPairs(call.features, call.diagonal) *
                       static_cast<int64_t>(sizeof(uint16_t)),
                   128);
  }

  // Whether this kernel can compute `call`.
  static bool Takes(const InteractionCall& call) {
    return call.features <= 2 * kTile && call.dim % kTile == 0 &&
           WarpBytes(call.features, call.dim) + TableBytes(call) <=
               kMaxSharedBytes &&
           RowsAligned(call.dense, call.ld_dense, call.dtype) &&
           RowsAligned(call.embeddings, call.ld_embeddings, call.dtype) &&
           RowsAligned(call.out, call.ld_out, call.dtype);
  }
  static LaunchShape Shape(const InteractionCall& call) {
    const int64_t warp_bytes = WarpBytes(call.features, call.dim);
    const int64_t table_bytes = TableBytes(call);
    int64_t warps = (kMaxSharedBytes - table_bytes) / warp_bytes;
    if (warps > kMaxThreads / kWarp) warps = kMaxThreads / kWarp;
    const int64_t blocks = CeilDiv(call.samples, warps);
    return {blocks < kMostBlocks ? blocks : kMostBlocks,
            static_cast<int>(warps) * kWarp, table_bytes + warps * warp_bytes};
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const InteractionCall& call, Thread& t) {
    const int pairs = static_cast<int>(NumPairs(call.features, call.diagonal));
    uint16_t* const table = reinterpret_cast<uint16_t*>(t.shared());
    for (int p = t.thread(); p < pairs; p += t.threads()) {
      int i, j;
      PairOf(p, call.diagonal, &i, &j);
      table[p] = static_cast<uint16_t>(i * kDotsLd + j);
    }
    t.SyncBlock();
    unsigned char* const memory = t.shared() + TableBytes(call) +
                                  t.warp() * WarpBytes(call.features, call.dim);
    const int warps = t.threads() / kWarp;
    for (int64_t sample = t.block() * warps + t.warp(); sample < call.samples;
         sample += t.blocks() * warps) {  // whole warps leave
      OneSample(call, sample, memory, table, pairs, t);
    }
  }

 private:
  template <typename Thread>
  REFRACT_DEVICE static void OneSample(const InteractionCall& call,
                                       int64_t sample, unsigned char* memory,
                                       const uint16_t* table, int pairs,
                                       Thread& t) {
    T* rows = reinterpret_cast<T*>(memory);
    float* dots = reinterpret_cast<float*>(memory);
    const int ld = RowLd(call.dim);
    const int padded = PaddedRows(call.features);
    T* out = static_cast<T*>(call.out) + sample * call.ld_out;

    const T* dense = static_cast<const T*>(call.dense) + sample * call.ld_dense;
    const T* embeddings =
        static_cast<const T*>(call.embeddings) + sample * call.ld_embeddings;
    constexpr int kPerVector = static_cast<int>(16 / sizeof(T));
    const int row_vectors = call.dim / kPerVector;
    const int used = call.features * row_vectors;
    const int total_vectors = padded * row_vectors;
    for (int first = t.lane(); first < total_vectors;
         first += kInFlight * kWarp) {
      Vector16 vectors[kInFlight];
      for (int n = 0; n < kInFlight; ++n) {
        const int v = first + n * kWarp;
        vectors[n] = {{0, 0, 0, 0}};
        if (v < used) {
          // The embeddings lie one after another.
          const T* from =
              v < row_vectors
                  ? dense + static_cast<int64_t>(v) * kPerVector
                  : embeddings +
                        static_cast<int64_t>(v - row_vectors) * kPerVector;
          vectors[n] = *reinterpret_cast<const Vector16*>(from);
        }
      }
      for (int n = 0; n < kInFlight; ++n) {
        const int v = first + n * kWarp;
        if (v < total_vectors) {
          const int row = v / row_vectors;
          const int col = (v - row * row_vectors) * kPerVector;
          *reinterpret_cast<Vector16*>(rows + row * ld + col) = vectors[n];
          if (row == 0 && call.copy_dense) {
            *reinterpret_cast<Vector16*>(out + col) = vectors[n];
          }
        }
      }
    }
    t.SyncWarp();

    using Left = typename Thread::template Left<T>;
    using Right = typename Thread::template Right<T>;
    using Tile = typename Thread::template Tile<T>;
    Tile top, low_left, low_right;
    for (int k = 0; k < call.dim; k += Left::kDepth) {
      Left left;
      Right right;
      left.Load(t, rows + k, ld);
      right.Load(t, rows + k, ld);
      top.MultiplyAdd(t, left, right);
      if (padded > kTile) {
        left.Load(t, rows + kTile * ld + k, ld);
        low_left.MultiplyAdd(t, left, right);
        right.Load(t, rows + kTile * ld + k, ld);
        low_right.MultiplyAdd(t, left, right);
      }
    }
    t.SyncWarp();  // the dots overwrite the rows
    top.Store(t, dots, kDotsLd);
    if (padded > kTile) {
      low_left.Store(t, dots + kTile * kDotsLd, kDotsLd);
      low_right.Store(t, dots + kTile * kDotsLd + kTile, kDotsLd);
    }
    t.SyncWarp();

    const int total = pairs + call.pad;
    T* tail = out + (call.copy_dense ? call.dim : 0);
    // Words of 4 bytes; the last may be half.
    constexpr int kPerWord = static_cast<int>(4 / sizeof(T));
    for (int p = t.lane() * kPerWord; p < total; p += kWarp * kPerWord) {
      Pack<T, kPerWord> word;
      for (int e = 0; e < kPerWord; ++e) {
        const float dot = p + e < pairs ? dots[table[p + e]] : 0.0f;
        FromFloat(dot, word.values[e]);
      }
      if (p + kPerWord <= total) {
        *reinterpret_cast<Pack<T, kPerWord>*>(tail + p) = word;
      } else {
        tail[p] = word.values[0];
      }
    }
    t.SyncWarp();  // the next sample's rows overwrite the dots
  }
};

// Any number of features, any width and alignment, and true fp32: a block per
// sample, a thread per pair, products summed in order. Rows are staged in
// shared memory as floats where they fit.
struct InteractionPairs {
  static constexpr int kMaxThreads = 128;

  // An odd stride: threads of a warp that read one column of neighbouring rows
  // hit different banks.
  REFRACT_HOST_DEVICE static int RowLd(int dim) { return dim | 1; }
  REFRACT_HOST_DEVICE static int64_t StagedBytes(const InteractionCall& call) {
    return static_cast<int64_t>(call.features) * RowLd(call.dim) *
           static_cast<int64_t>(sizeof(float));
  }
  REFRACT_HOST_DEVICE static bool Stages(const InteractionCall& call) {
    return StagedBytes(call) <= kMaxSharedBytes;
  }
  static LaunchShape Shape(const InteractionCall& call) {
    return {call.samples, kMaxThreads, Stages(call) ? StagedBytes(call) : 0};
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const InteractionCall& call, Thread& t) {
    const int64_t sample = t.block();
    const int64_t dense_at = sample * call.ld_dense;
    const int64_t embeddings_at = sample * call.ld_embeddings;
    const int64_t out_at = sample * call.ld_out;
    auto element = [&](int row, int d) {
      return row == 0 ? Load(call.dense, call.dtype, dense_at + d)
                      : Load(call.embeddings, call.dtype,
                             embeddings_at +
                                 static_cast<int64_t>(row - 1) * call.dim + d);
    };
    float* rows = reinterpret_cast<float*>(t.shared());
    const int ld = RowLd(call.dim);
    const bool stages = Stages(call);
    if (stages) {
      for (int v = t.thread(); v < call.features * call.dim; v += t.threads()) {
        const int row = v / call.dim;
        const int d = v - row * call.dim;
        rows[row * ld + d] = element(row, d);
      }
      t.SyncBlock();
    }
    if (call.copy_dense) {
      for (int d = t.thread(); d < call.dim; d += t.threads()) {
        Store(element(0, d), call.out, call.dtype, out_at + d);
      }
    }
    const int64_t tail = out_at + (call.copy_dense ? call.dim : 0);
    const int pairs = static_cast<int>(NumPairs(call.features, call.diagonal));
    for (int p = t.thread(); p < pairs + call.pad; p += t.threads()) {
      float dot = 0.0f;
      if (p < pairs) {
        int i, j;
        PairOf(p, call.diagonal, &i, &j);
        if (stages) {
          for (int d = 0; d < call.dim; ++d) {
            dot += rows[i * ld + d] * rows[j * ld + d];
          }
        } else {
          for (int d = 0; d < call.dim; ++d) {
            dot += element(i, d) * element(j, d);
          }
        }
      }
      Store(dot, call.out, call.dtype, tail + p);
    }
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_INTERACTION_H_
