#include "runtime/cuda/program/strided_ops.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace refract::runtime::cuda {
namespace {

int64_t Count(const std::vector<Rows>& dims, int64_t batch) {
  int64_t count = 1;
  for (const Rows& dim : dims) count *= dim.At(batch);
  return count;
}

// Lowers an operator over strided tensors to its launch at one batch: sizes,
// strides and offsets, lines over the batch in the program, become numbers, and
// values become addresses.
struct StridedLowerer {
  const LoweringContext& context;
  const std::function<void*(ValueId)>& address;

  int64_t At(const Rows& rows) const { return rows.At(context.batch); }

  std::byte* AddressOf(const TensorRef& ref) const {
    return static_cast<std::byte*>(address(ref.value)) +
           At(ref.offset) * SizeOf(context.program.value(ref.value).dtype);
  }
  void Strides(const TensorRef& ref, int64_t (&strides)[kMaxRank]) const {
    for (size_t d = 0; d < ref.strides.size(); ++d) {
      strides[d] = At(ref.strides[d]);
    }
  }
  StridedOperand Operand(const TensorRef& ref) const {
    StridedOperand operand;
    if (ref.value == kNone) return operand;
    operand.data = AddressOf(ref);
    operand.dtype = context.program.value(ref.value).dtype;
    Strides(ref, operand.strides);
    return operand;
  }
  // Sets dims and rank; returns the number of elements.
  template <typename StridedCall>
  int64_t Dims(const std::vector<Rows>& dims, StridedCall& call) const {
    for (size_t d = 0; d < dims.size(); ++d) call.dims[d] = At(dims[d]);
    call.rank = static_cast<int32_t>(dims.size());
    return Count(dims, context.batch);
  }
  template <typename StridedCall>
  void Out(const TensorRef& ref, StridedCall& call) const {
    call.out = AddressOf(ref);
    call.out_dtype = context.program.value(ref.value).dtype;
    Strides(ref, call.out_strides);
  }

  Call operator()(const MapOp& op) const {
    MapCall call;
    call.count = Dims(op.dims, call);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      call.inputs[i] = Operand(op.inputs[i].tensor);
      call.inputs[i].number = op.inputs[i].number;
    }
    call.num_inputs = static_cast<int32_t>(op.inputs.size());
    std::copy(op.code.begin(), op.code.end(), call.code);
    call.num_instructions = static_cast<int32_t>(op.code.size());
    Out(op.out, call);
    MergeDims(call);
    return call;
  }

  // Merges dimensions that adjoin in every operand, because each dimension
  // costs a division per element.
  static void MergeDims(MapCall& call) {
    const auto adjoins = [&](const int64_t* strides, int d) {
      return strides[d] == strides[d + 1] * call.dims[d + 1];
    };
    // Dimension d goes into d + 1, whose stride serves both.
    const auto drop = [&](int64_t* list, int d) {
      std::copy(list + d + 1, list + call.rank, list + d);
      list[call.rank - 1] = 0;
    };
    for (int d = call.rank - 2; d >= 0; --d) {
      bool merges = adjoins(call.out_strides, d);
      for (int i = 0; i < call.num_inputs; ++i) {
        merges = merges && adjoins(call.inputs[i].strides, d);
      }
      if (!merges) continue;
      call.dims[d + 1] *= call.dims[d];
      drop(call.dims, d);
      drop(call.out_strides, d);
      for (int i = 0; i < call.num_inputs; ++i) {
        drop(call.inputs[i].strides, d);
      }
      --call.rank;
    }
  }

  Call operator()(const MatMulOp& op) const {
    MatMulCall call;
    call.m = At(op.m);
    call.n = At(op.n);
    call.k = At(op.k);
    call.count = Dims(op.dims, call) * call.m * call.n;
    call.a = Operand(op.a);
    call.b = Operand(op.b);
    call.bias = Operand(op.bias);
    call.relu = op.relu;
    Out(op.out, call);
    return call;
  }

  // The last `op.inner` dimensions are reduced: rows × cols elements, a result
  // or a statistic for each row.
  Call operator()(const ReduceOp& op) const {
    ReduceCall call;
    (void)Dims(op.dims, call);
    call.inner_rank = op.inner;
    call.rank -= op.inner;
    call.rows = call.cols = 1;
    for (int d = 0; d < call.rank; ++d) call.rows *= call.dims[d];
    for (int d = 0; d < op.inner; ++d) call.cols *= call.dims[call.rank + d];
    call.in = Operand(op.in);
    call.gamma = Operand(op.gamma);
    call.beta = Operand(op.beta);
    call.epsilon = op.epsilon;
    call.kind = op.kind;
    Out(op.out, call);
    return call;
  }

  Call operator()(const LookUpOp& op) const {
    LookUpCall call;
    call.count = Dims(op.dims, call);
    // The kernel reports an index out of range by its item and ignores unused
    // rows of the bucket, so it must know which dimension counts items.
    for (size_t d = 0; d < op.dims.size(); ++d) {
      if (op.dims[d].per_item == 0) continue;
      call.batch_dim = static_cast<int32_t>(d);
      call.rows_per_item = op.dims[d].per_item;
      call.fixed_rows = op.dims[d].fixed;
    }
    call.table = Operand(op.table);
    call.index = Operand(op.index);
    call.batch = context.device_batch;
    call.faults = context.faults;
    call.row_stride = At(op.row_stride);
    call.table_rows = op.table_rows;
    call.outside = op.outside;
    Out(op.out, call);
    return call;
  }

  Call operator()(const IntegerOp& op) const {
    IntegerCall call;
    (void)Dims(op.dims, call);
    call.inner_rank = op.inner;
    call.rank -= op.inner;
    call.count = 1;
    for (int d = 0; d < call.rank; ++d) call.count *= call.dims[d];
    for (int d = 0; d < op.inner; ++d) {
      call.inner_count *= call.dims[call.rank + d];
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const StridedOperand from = Operand(op.inputs[i].tensor);
      IntegerOperand& to = call.operands[i];
      to.data = from.data;
      to.dtype = from.dtype;
      to.number = op.inputs[i].number;
      std::copy(std::begin(from.strides), std::end(from.strides), to.strides);
    }
    call.code = op.code;
    call.fold = op.fold;
    Out(op.out, call);
    return call;
  }

  // Launches over tables hold strides in 32 bits, which Validate() has checked.
  int32_t Stride(const TensorRef& ref, size_t d) const {
    return static_cast<int32_t>(At(ref.strides[d]));
  }
  DType TypeOf(const TensorRef& ref) const {
    return context.program.value(ref.value).dtype;
  }

  // A launch over several tables; the caller fills in the tables.
  template <typename TablesCall>
  TablesCall ForTables(const Rows& rows, size_t tables) const {
    TablesCall call;
    call.batch = context.device_batch;
    call.faults = context.faults;
    call.rows = At(rows);
    call.rows_per_item = rows.per_item;
    call.fixed_rows = rows.fixed;
    call.num_tables = static_cast<int32_t>(tables);
    return call;
  }

  Call operator()(const TakesOp& op) const {
    auto call = ForTables<TakesCall>(op.rows, op.takes.size());
    for (size_t i = 0; i < op.takes.size(); ++i) {
      const Take& take = op.takes[i];
      call.tables[i] = {.table = AddressOf(take.table),
                        .ids = AddressOf(take.ids),
                        .out = AddressOf(take.out),
                        .table_rows = take.table_rows,
                        .row_stride = Stride(take.table, 0),
                        .dim = static_cast<int32_t>(take.dim),
                        .inner = static_cast<int32_t>(take.inner),
                        .id_stride = Stride(take.ids, 0),
                        .inner_id_stride = Stride(take.ids, 1),
                        .out_stride = Stride(take.out, 0),
                        .inner_out_stride = Stride(take.out, 1),
                        .dtype = TypeOf(take.table),
                        .out_dtype = TypeOf(take.out),
                        .id_dtype = TypeOf(take.ids),
                        .outside = take.outside};
    }
    return call;
  }

  Call operator()(const BagsOp& op) const {
    auto call = ForTables<BagsCall>(op.rows, op.bags.size());
    for (size_t i = 0; i < op.bags.size(); ++i) {
      call.tables[i] = TableOf(op.bags[i]);
    }
    return call;
  }
  BagTable TableOf(const Bag& bag) const {
    BagTable table;
    table.table = AddressOf(bag.table);
    table.dtype = TypeOf(bag.table);
    table.row_stride = Stride(bag.table, 0);
    table.table_rows = bag.table_rows;
    table.dim = static_cast<int32_t>(bag.dim);
    table.ids = AddressOf(bag.ids);
    table.id_dtype = TypeOf(bag.ids);
    table.id_stride = Stride(bag.ids, 0);
    // The entries at this batch bound the room; the kernel computes a request's
    // own number from its number of items.
    table.entries = static_cast<int32_t>(At(bag.entries));
    table.entries_per_item = static_cast<int32_t>(bag.entries.per_item);
    table.fixed_entries = static_cast<int32_t>(bag.entries.fixed);
    table.length = static_cast<int32_t>(bag.length);
    table.include_last = bag.include_last;
    if (bag.offsets.value != kNone) {
      table.offsets = AddressOf(bag.offsets);
      table.offset_dtype = TypeOf(bag.offsets);
      table.offset_stride = Stride(bag.offsets, 0);
    }
    if (bag.weights.value != kNone) {
      table.weights = AddressOf(bag.weights);
      table.weight_dtype = TypeOf(bag.weights);
      table.weight_stride = Stride(bag.weights, 0);
    }
    table.out = AddressOf(bag.out);
    table.out_dtype = TypeOf(bag.out);
    table.out_stride = Stride(bag.out, 0);
    table.mode = bag.mode;
    table.outside = bag.outside;
    table.padding_id = bag.padding_id;
    return table;
  }
};

// The values that an operator reads, for the memory plan.
struct Lister {
  std::vector<ValueId> ids;
  void Add(const TensorRef& ref) {
    if (ref.value != kNone) ids.push_back(ref.value);
  }
  void operator()(const MapOp& op) {
    for (const MapInput& input : op.inputs) Add(input.tensor);
  }
  void operator()(const MatMulOp& op) {
    for (const TensorRef* ref : {&op.a, &op.b, &op.bias}) Add(*ref);
  }
  void operator()(const ReduceOp& op) {
    for (const TensorRef* ref : {&op.in, &op.gamma, &op.beta}) Add(*ref);
  }
  void operator()(const LookUpOp& op) {
    for (const TensorRef* ref : {&op.table, &op.index}) Add(*ref);
  }
  void operator()(const IntegerOp& op) {
    for (const IntegerInput& input : op.inputs) Add(input.tensor);
  }
  void operator()(const TakesOp& op) {
    for (const Take& take : op.takes) {
      for (const TensorRef* ref : {&take.table, &take.ids}) Add(*ref);
    }
  }
  void operator()(const BagsOp& op) {
    for (const Bag& bag : op.bags) {
      for (const TensorRef* ref :
           {&bag.table, &bag.ids, &bag.offsets, &bag.weights}) {
        Add(*ref);
      }
    }
  }
  void operator()(const ForeignOp& op) {
    for (const ForeignArgument& argument : op.arguments) Add(argument.tensor);
  }
};

}  // namespace

template <typename StridedOp>
std::vector<ValueId> InputsOfStrided(const StridedOp& op) {
  Lister lister;
  lister(op);
  return std::move(lister.ids);
}

template <typename StridedOp>
Call LowerStrided(const StridedOp& op, const LoweringContext& context,
                  const std::function<void*(ValueId)>& address) {
  return StridedLowerer{context, address}(op);
}

template std::vector<ValueId> InputsOfStrided(const ForeignOp&);
#define REFRACT_CUDA_STRIDED(Op)                                \
  template std::vector<ValueId> InputsOfStrided(const Op&);     \
  template Call LowerStrided(const Op&, const LoweringContext&, \
                             const std::function<void*(ValueId)>&)
REFRACT_CUDA_STRIDED(MapOp);
REFRACT_CUDA_STRIDED(MatMulOp);
REFRACT_CUDA_STRIDED(ReduceOp);
REFRACT_CUDA_STRIDED(LookUpOp);
REFRACT_CUDA_STRIDED(IntegerOp);
REFRACT_CUDA_STRIDED(TakesOp);
REFRACT_CUDA_STRIDED(BagsOp);
#undef REFRACT_CUDA_STRIDED

}  // namespace refract::runtime::cuda
