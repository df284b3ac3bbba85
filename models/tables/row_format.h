#ifndef REFRACT_MODELS_TABLES_ROW_FORMAT_H_
#define REFRACT_MODELS_TABLES_ROW_FORMAT_H_

// Row formats of embedding tables: how the bytes of one row hold `dim` floats.
//
// A table is `rows` rows of `stride` bytes. A row is a payload of `dim`
// elements and, in quantised formats, a scale and a bias (the parameters):
//
//   value[d] = scale × q[d] + bias,  q[d] = 0 … 2^bits − 1
//
//   name        bytes of one row                  written by
//   fp32        [4·dim]
//   fp16        [2·dim], IEEE binary16
//   bf16        [2·dim], bfloat16
//   tbe-int8    [fp16 scale][fp16 bias][dim]      FBGEMM's table-batched
//   tbe-int4    [fp16 scale][fp16 bias][dim / 2]  embedding (TBE) for inference,
//   tbe-int2    [fp16 scale][fp16 bias][dim / 4]  TorchRec's quantised tables
//   fused-8bit  [dim][fp32 scale][fp32 bias]      torch.ops.quantized:
//   fused-4bit  [dim / 2][fp16 scale][fp16 bias]  embedding_bag_byte_prepack,
//   fused-2bit  [dim / 4][fp16 scale][fp16 bias]  …_4bit_prepack, …_2bit_prepack
//
// All numbers are little-endian. In a byte of two or four elements, the lowest
// bits hold the first column. dim is a multiple of the elements of a byte. The
// end of a row may be padded: TorchRec rounds TBE rows up to 16 bytes.
// Parameters need not be aligned in memory.
//
// Sources: FBGEMM src/QuantUtils.cc (fused rows), fbgemm_gpu/
// split_table_batched_embeddings_ops_inference.py (TBE rows), PyTorch
// aten/src/ATen/native/quantized/cpu/qembeddingbag_prepack.cpp.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"

namespace refract::models {

enum class RowElement : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,  // unsigned, as the two below
  kInt4,
  kInt2,
};

// Bits of one element.
constexpr int BitsOf(RowElement element) {
  switch (element) {
    case RowElement::kFloat32:
      return 32;
    case RowElement::kFloat16:
    case RowElement::kBFloat16:
      return 16;
    case RowElement::kInt8:
      return 8;
    case RowElement::kInt4:
      return 4;
    case RowElement::kInt2:
      return 2;
  }
  return 0;
}

// Where the scale and the bias of a row are. The scale precedes the bias.
enum class RowParameters : uint8_t { kNone, kFirst, kLast };

struct RowFormat {
  RowElement element = RowElement::kFloat32;
  RowParameters parameters = RowParameters::kNone;
  // Type of scale and bias: kFloat16, kFloat32, or kUnknown without them.
  base::DType parameter_dtype = base::DType::kUnknown;

  bool is_quantised() const { return parameters != RowParameters::kNone; }
  // Largest q.
  int levels() const { return (1 << BitsOf(element)) - 1; }
  bool operator==(const RowFormat&) const = default;
};

// The format called `name` in the table above. InvalidArgument: an unknown name
// (lists the known names), or a format that is known and not read: FBGEMM's
// fp8, mx4 and nfp8 rows, tables whose pruned rows were removed, NVE's rows.
absl::StatusOr<RowFormat> RowFormatNamed(absl::string_view name);
// "" for a combination without a name.
absl::string_view NameOf(const RowFormat& format);
// "fp32, fp16, …"
std::string RowFormatNames();

// The row format of a whole table.
struct RowLayout {
  RowFormat format;
  int64_t dim = 0;         // elements of a row
  int64_t stride = 0;      // bytes from a row to the next
  int64_t payload = 0;     // byte in the row at which elements begin
  int64_t parameters = 0;  // byte of the scale; 0 without parameters

  bool operator==(const RowLayout&) const = default;
};

// Address of a table must be a multiple of this: floating-point elements are
// read in place.
int64_t AlignmentOf(const RowFormat& format);

// Bytes of a row without padding.
int64_t RowBytes(const RowFormat& format, int64_t dim);

// `stride` 0: RowBytes() rounded up to a multiple of `alignment`, which is a
// power of two ≤ 4096; otherwise `alignment` is ignored. InvalidArgument: dim ≤
// 0, dim ≥ 2^31, dim no multiple of the elements of a byte, a stride that is
// less than RowBytes(), or more than 4096 bytes above it; floating-point
// elements at a stride that is no multiple of their size.
absl::StatusOr<RowLayout> LayoutOf(const RowFormat& format, int64_t dim,
                                   int64_t stride = 0, int64_t alignment = 1);

// Text form of a layout in the metadata of safetensors files, under the key
// "refract.rows.TENSOR" for the uint8 tensor [rows, stride] that holds the
// rows:
//   "tbe-int8 dim=64"
// The stride is a dimension of the tensor.
inline constexpr absl::string_view kRowsKeyPrefix = "refract.rows.";
std::string RowsText(const RowLayout& layout);
// InvalidArgument names `text` or the argument that contradicts `stride`.
absl::StatusOr<RowLayout> ParseRowsText(absl::string_view text, int64_t stride);

}  // namespace refract::models

#endif  // REFRACT_MODELS_TABLES_ROW_FORMAT_H_
