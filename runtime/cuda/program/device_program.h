#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_DEVICE_PROGRAM_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_DEVICE_PROGRAM_H_

// The program of a device instance: fused operators over matrices whose rows
// depend on the batch. A plain description, without device or memory: made by
// DeviceProgramBuilder, checked by Validate().
//
// Every value is a row-major matrix. A root owns memory, whose rows are padded
// to 16 bytes; a view is a range of columns of a root. Views concatenate values
// without copying: operators write into views of one root. An input may be a
// view too: it is uploaded beside results of operators. Tensors of more
// dimensions lie in a value's memory with strides (strided.h).

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/rows.h"
#include "runtime/cuda/calls/scalar.h"
#include "runtime/cuda/calls/strided.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

enum class ValueKind : uint8_t { kInput, kWeight, kIntermediate, kOutput };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::kIntermediate;
  DType dtype = DType::kFloat32;
  Rows rows;
  int64_t cols = 0;
  int64_t ld = 0;         // the root's, for a view
  ValueId root = kNone;   // itself, for a root
  int64_t first_col = 0;  // in the root
  // The root's memory as a matrix of other sizes. Both are dense.
  bool reshaped = false;
  // An input of one row. Each request sets its number of columns
  // (Instance::SetCount()); operators read that number from another input.
  bool counted = false;
  // Inputs: type of the elements that the caller writes. A floating type other
  // than `dtype` is converted on the device, which needs one row per item.
  DType host_dtype = DType::kFloat32;
};

struct LinearOp {
  ValueId in, weight, bias = kNone, out;  // weight [out.cols, in.cols]
  Epilogue epilogue = Epilogue::kNone;
};
struct InteractionOp {
  ValueId dense, embeddings, out;
  bool diagonal = false;
  bool copy_dense = true;
};
struct Op {
  std::string name;  // for errors
  std::variant<LinearOp, InteractionOp, MapOp, MatMulOp, ReduceOp, LookUpOp,
               IntegerOp, TakesOp, BagsOp, ForeignOp>
      kind;
};
std::vector<ValueId> InputsOf(const Op& op);
// At least one value; only a TakesOp, a BagsOp or a ForeignOp has several.
std::vector<ValueId> OutputsOf(const Op& op);

struct DeviceProgram {
  std::string name;
  std::vector<Value> values;
  std::vector<Op> ops;
  // In the order in which callers pass and receive them.
  std::vector<ValueId> inputs, weights, outputs;
  // Whether fp32 products may use TensorFloat-32.
  bool tf32 = false;

  const Value& value(ValueId id) const {
    return values[static_cast<size_t>(id)];
  }
  // Whether ids of a request can be out of range.
  bool counts_faults() const;
  // Whether an operator reads the number of items of a request.
  bool reads_batch() const;
};

// InvalidArgument names operator and value if sizes, types or order do not fit:
// a value is read before it is written, written twice (also by overlapping
// views), a shape differs, a chain's instruction names no operand, sizes exceed
// 31 bits at `max_batch`.
Status Validate(const DeviceProgram& program, int64_t max_batch);

// Whether the columns between cols and ld of root `id` are zero when operators
// read it: true for weights, for memory of slots (cleared once) and for results
// of our own kernels; a matrix product leaves them alone.
bool HasZeroPadding(const DeviceProgram& program, ValueId root);

// The inputs, by their place in program.inputs, that reach the device side by
// side in one copy; a kernel then lays them out. These are all inputs with one
// row per item but bools, if they are more than two or any is converted. A copy
// costs the CPU and the copy engine some microseconds, and a model may have an
// input per table; two copies cost what a copy and a kernel cost.
std::vector<size_t> StagedInputs(const DeviceProgram& program);

// Roots in memory of a slot, not of the shared arena: values uploaded or
// downloaded while another request computes, wholly or in views.
std::vector<bool> InSlot(const DeviceProgram& program);

// Adds values and operators in execution order. Ids stay valid. Build() reports
// mistakes. `out` of every Add…: a value made by Intermediate(), Output() or
// View().
class DeviceProgramBuilder {
 public:
  explicit DeviceProgramBuilder(std::string name, bool tf32 = false);

  // `host_dtype`: Value::host_dtype; `dtype` without it.
  ValueId Input(std::string name, DType dtype, Rows rows, int64_t cols,
                std::optional<DType> host_dtype = std::nullopt);
  ValueId Weight(std::string name, DType dtype, int64_t rows, int64_t cols);
  ValueId Intermediate(std::string name, DType dtype, Rows rows, int64_t cols);
  ValueId Output(std::string name, DType dtype, Rows rows, int64_t cols);
  ValueId View(ValueId of, std::string name, int64_t first_col, int64_t cols);
  // All of root `of` with `rows` rows of `cols` columns. Both must be dense.
  ValueId Reshape(ValueId of, std::string name, Rows rows, int64_t cols);
  // A vector of up to `capacity` elements (Value::counted).
  ValueId CountedInput(std::string name, DType dtype, int64_t capacity);
  // A view that callers upload, as `host_dtype` (Value::host_dtype).
  ValueId InputView(ValueId of, std::string name, int64_t first_col,
                    int64_t cols, DType host_dtype);

  void Linear(LinearOp op);
  void Interaction(InteractionOp op);
  void Map(MapOp op);
  void MatMul(MatMulOp op);
  void Reduce(ReduceOp op);
  void LookUp(LookUpOp op);
  void Integers(IntegerOp op);
  void Takes(TakesOp op);
  void Bags(BagsOp op);
  void Foreign(ForeignOp op);

  const Value& value(ValueId id) const { return program_.value(id); }
  size_t num_ops() const { return program_.ops.size(); }
  size_t num_values_but_weights() const {
    return program_.values.size() - program_.weights.size();
  }
  const Op& op(size_t i) const { return program_.ops[i]; }

  // Checks the program for `max_batch`.
  Result<DeviceProgram> Build(int64_t max_batch) &&;

 private:
  ValueId Add(Value value);
  void AddOp(Op op);

  DeviceProgram program_;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_DEVICE_PROGRAM_H_
