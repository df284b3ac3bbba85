// Places of results, and the operators that every translation uses.

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda/program/merge_tables.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using cuda::Rows;

// `size` as rows of the device program: a number per item and a fixed number.
absl::StatusOr<Rows> RowsOfSize(const Size& size, const std::string& of) {
  const std::optional<Rows> rows = size.rows();
  if (!rows) {
    return absl::UnimplementedError(absl::StrCat(
        "a size of ", of, " is not a multiple of the batch plus a constant"));
  }
  return *rows;
}

// The tensor of a new value with one row per entry of `dims[batch]` (or a
// single row), and the other dimensions in the order of `order`.
Tensor Laid(cuda::ValueId value, const cuda::Value& memory, const Sizes& dims,
            int batch, const std::vector<size_t>& order) {
  Tensor tensor;
  tensor.value = value;
  tensor.dtype = memory.dtype;
  tensor.dims = dims;
  tensor.strides.assign(dims.size(), 0);
  if (batch >= 0) tensor.strides[batch] = memory.ld;
  Size stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    tensor.strides[order[i]] = stride;
    stride = stride * dims[order[i]];
  }
  return tensor;
}

// The matrix in which a tensor of some dims lies: its rows follow the one
// dimension that depends on the batch, its columns all others.
struct Layout {
  int batch = -1;
  Rows rows = cuda::kOneRow;
  int64_t cols = 1;
  std::vector<size_t> order;  // of all dims but the batch's
};

absl::StatusOr<Layout> LayoutOf(const std::string& name, const Sizes& dims,
                                int first) {
  Layout layout;
  const std::optional<int> batch = BatchDimOf(dims);
  if (!batch) {
    return absl::UnimplementedError(
        absl::StrCat("several dimensions of ", name, " depend on the batch"));
  }
  layout.batch = *batch;
  if (layout.batch >= 0) {
    REFRACT_ASSIGN_OR_RETURN(layout.rows, RowsOfSize(dims[layout.batch], name));
  }
  if (first >= 0) layout.order.push_back(static_cast<size_t>(first));
  for (size_t d = 0; d < dims.size(); ++d) {
    if (static_cast<int>(d) == layout.batch) continue;
    layout.cols *= *dims[d].constant();
    if (static_cast<int>(d) != first) layout.order.push_back(d);
  }
  if (layout.cols < 1)
    return absl::UnimplementedError(absl::StrCat(name, " has no elements"));
  return layout;
}

}  // namespace

absl::StatusOr<std::vector<Rows>> Emitter::RowsOf(const Sizes& sizes,
                                                  const std::string& of) {
  std::vector<Rows> all;
  for (const Size& size : sizes) {
    REFRACT_ASSIGN_OR_RETURN(const Rows rows, RowsOfSize(size, of));
    all.push_back(rows);
  }
  return all;
}

absl::StatusOr<Tensor> Emitter::New(const std::string& name, const Sizes& dims,
                                    DType dtype, int first) {
  REFRACT_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(name, dims, first));
  const cuda::ValueId value =
      builder_.Intermediate(name, dtype, layout.rows, layout.cols);
  return Laid(value, builder_.value(value), dims, layout.batch, layout.order);
}

std::optional<size_t> Emitter::FreeOutput(int local, const Sizes& dims,
                                          DType dtype) const {
  // A result can be computed in downloaded memory only if its layout and type
  // are the client's. Finish() copies any other result.
  if (!CheckDownloads(local, dims).ok()) return std::nullopt;
  const std::optional<DType> wanted = TypeOf(plan_.locals[local].dtype);
  if (wanted != dtype) return std::nullopt;
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    if (plan_.outputs[i].local == local && outputs_[i] < 0) return i;
  }
  return std::nullopt;
}

absl::StatusOr<Tensor> Emitter::NewResult(int local, const Sizes& dims,
                                          DType dtype) {
  // The cheapest place is where the reader wants the result anyway: a copy of
  // every operand of `cat` costs as much as the product that makes it.
  const std::string& name = plan_.locals[local].name;
  if (dtype == compute_type_ && cuda::IsFloating(dtype)) {
    dtype = KeptType(local);
  }
  // First choice: the columns where a concatenation or interaction reads it.
  const auto place = places_.find(local);
  if (place != places_.end() && dtype == compute_type_ && dims.size() == 2) {
    REFRACT_ASSIGN_OR_RETURN(const cuda::ValueId root,
                             GroupRoot(place->second.group));
    const cuda::ValueId value =
        builder_.View(root, name, place->second.first, *dims[1].constant());
    placed_[local] = true;
    return Laid(value, builder_.value(value), dims, 0, {1});
  }
  // Second choice: the memory that is downloaded.
  if (const auto output = FreeOutput(local, dims, dtype)) {
    REFRACT_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(name, dims, -1));
    const cuda::ValueId value =
        builder_.Output(name, dtype, layout.rows, layout.cols);
    outputs_[*output] = num_outputs_++;
    return Laid(value, builder_.value(value), dims, layout.batch, layout.order);
  }
  return New(name, dims, dtype);
}

absl::StatusOr<Tensor> Emitter::NewRows(int local, const Sizes& dims,
                                        DType dtype) {
  // A matrix with the batch as rows, or with a single row, has the layout of
  // New(). Other tensors need a row per entry of all leading dimensions,
  // because New() lays a tensor of fixed sizes into one row.
  const bool one_row = dims.size() == 2 && dims[0].constant() == 1;
  if (dims.size() == 2 && (one_row || !dims[0].constant())) {
    return NewResult(local, dims, dtype);
  }
  const std::string& name = plan_.locals[local].name;
  if (!BatchDimOf(dims)) {
    return absl::UnimplementedError(
        absl::StrCat("several dimensions of ", name, " depend on the batch"));
  }
  return NewMatrix(name, dims, dtype);
}

absl::StatusOr<Tensor> Emitter::NewMatrix(const std::string& name,
                                          const Sizes& dims, DType dtype) {
  if (dims.empty()) return New(name, dims, dtype);
  const size_t last = dims.size() - 1;
  if (!dims[last].constant()) {
    return absl::UnimplementedError(absl::StrCat("the last dimension of ", name,
                                                 " is the batch dimension"));
  }
  REFRACT_ASSIGN_OR_RETURN(const Rows rows,
                           RowsOfSize(Product(dims, 0, last), name));
  return Stacked(
      builder_.Intermediate(name, dtype, rows, *dims[last].constant()), dims);
}

// Rows lie `ld` elements apart, with padding behind the columns: the second
// last dimension has the stride `ld`, and each dimension before it the stride
// of the next one times its size.
Tensor Emitter::Stacked(cuda::ValueId value, const Sizes& dims) const {
  Tensor tensor;
  tensor.value = value;
  tensor.dtype = builder_.value(value).dtype;
  tensor.dims = dims;
  tensor.strides.assign(dims.size(), 1);
  Size stride = builder_.value(value).ld;
  for (size_t d = dims.size(); d-- > 1;) {
    tensor.strides[d - 1] = stride;
    stride = stride * dims[d - 1];
  }
  return tensor;
}

int Emitter::NewGroup(std::string name, const Size& rows, int64_t total) {
  groups_.push_back({std::move(name), rows, total});
  return static_cast<int>(groups_.size()) - 1;
}

bool Emitter::Want(int local, int group, int64_t first, int64_t cols) {
  // A result has one place. Constants, views and outputs of the program lie
  // elsewhere already, and the reader copies them.
  if (IsConstant(local) || places_.contains(local) ||
      plan_.locals[local].root != local) {
    return false;
  }
  for (const PlanOutput& output : plan_.outputs) {
    if (output.local == local) return false;
  }
  const absl::StatusOr<Sizes> dims = DimsOfLocal(local);
  if (!dims.ok() || dims->size() != 2 || (*dims)[0].constant() ||
      !((*dims)[0] == groups_[group].rows) || (*dims)[1].constant() != cols) {
    return false;
  }
  places_[local] = {group, first};
  return true;
}

absl::StatusOr<cuda::ValueId> Emitter::GroupRoot(int index) {
  Group& group = groups_[index];
  if (group.root == cuda::kNone) {
    REFRACT_ASSIGN_OR_RETURN(const Rows rows,
                             RowsOfSize(group.rows, group.name));
    group.root =
        builder_.Intermediate(group.name, compute_type_, rows, group.total);
  }
  return group.root;
}

bool Emitter::IsInGroup(int local, int group, int64_t first) const {
  const auto placed = placed_.find(local);
  const auto place = places_.find(local);
  return placed != placed_.end() && place != places_.end() &&
         place->second.group == group && place->second.first == first;
}

absl::StatusOr<cuda::TensorRef> Emitter::RefTo(const Tensor& tensor) const {
  cuda::TensorRef ref;
  ref.value = tensor.value;
  const std::string& name = builder_.value(tensor.value).name;
  REFRACT_ASSIGN_OR_RETURN(ref.offset, RowsOfSize(tensor.offset, name));
  REFRACT_ASSIGN_OR_RETURN(ref.strides, RowsOf(tensor.strides, name));
  return ref;
}

absl::Status Emitter::Map(const std::vector<Input>& inputs,
                          std::vector<cuda::MapInstruction> code,
                          const Tensor& out) {
  cuda::MapOp op;
  const std::string& name = builder_.value(out.value).name;
  REFRACT_ASSIGN_OR_RETURN(op.dims, RowsOf(out.dims, name));
  for (const Input& input : inputs) {
    cuda::MapInput operand;
    operand.number = input.number;
    if (input.tensor) {
      const std::optional<Tensor> whole = Expanded(*input.tensor, out.dims);
      if (!whole) {
        return absl::UnimplementedError(
            absl::StrCat(builder_.value(input.tensor->value).name,
                         " does not broadcast to ", name));
      }
      REFRACT_ASSIGN_OR_RETURN(operand.tensor, RefTo(*whole));
    }
    op.inputs.push_back(std::move(operand));
  }
  op.code = std::move(code);
  REFRACT_ASSIGN_OR_RETURN(op.out, RefTo(out));
  builder_.Map(std::move(op));
  return absl::OkStatus();
}

absl::Status Emitter::Copy(const Tensor& from, const Tensor& to) {
  if (to.dtype == DType::kInt32 || to.dtype == DType::kInt64) {
    return Integers(cuda::IntegerCode::kCopy, {{from}}, to);
  }
  return Map({{from}}, {{cuda::ElementCode::kCopy, 0}}, to);
}

absl::StatusOr<Tensor> Emitter::Dense(const Tensor& tensor,
                                      const std::string& name, DType dtype) {
  REFRACT_ASSIGN_OR_RETURN(Tensor dense, New(name, tensor.dims, dtype));
  REFRACT_RETURN_IF_ERROR(Copy(tensor, dense));
  return dense;
}

absl::StatusOr<cuda::ValueId> Emitter::AsMatrix(const Tensor& tensor,
                                                const std::string& name,
                                                bool* copied) {
  const size_t last = tensor.rank() - 1;
  const Size row_count = Product(tensor.dims, 0, last);
  const std::optional<int64_t> cols = tensor.dims[last].constant();
  if (!cols) {
    return absl::UnimplementedError(absl::StrCat("the last dimension of ", name,
                                                 " is the batch dimension"));
  }
  if (!BatchDimOf(tensor.dims)) {
    return absl::UnimplementedError(
        absl::StrCat("several dimensions of ", name, " depend on the batch"));
  }
  REFRACT_ASSIGN_OR_RETURN(const Rows rows, RowsOfSize(row_count, name));
  // No copy if rows are at equal distances: a view of columns of the value, or
  // the whole root with other sizes.
  const std::optional<Tensor> flat =
      Reshaped(tensor, {row_count, tensor.dims[last]});
  const std::optional<int64_t> offset = tensor.offset.constant();
  if (flat && offset && tensor.dtype == compute_type_ &&
      (*cols == 1 || flat->strides[1].constant() == 1)) {
    const cuda::Value memory = builder_.value(tensor.value);
    const Size& ld = flat->strides[0];
    // The distance of a single row from the next one does not matter.
    const bool one_row = rows == cuda::kOneRow;
    if ((one_row || ld.constant() == memory.ld) && memory.rows == rows &&
        *offset + *cols <= memory.cols) {
      if (*offset == 0 && *cols == memory.cols) return tensor.value;
      if (!memory.reshaped) {
        return builder_.View(tensor.value, name, *offset, *cols);
      }
    }
    // Other numbers of rows and columns over all elements of the root, if its
    // rows have no padding between them.
    const cuda::Value root = builder_.value(memory.root);
    const bool whole =
        root.rows.per_item * root.cols == rows.per_item * *cols &&
        root.rows.fixed * root.cols == rows.fixed * *cols;
    if (whole && *offset == 0 && memory.first_col == 0 &&
        root.ld == root.cols && (one_row || ld.constant() == *cols)) {
      return builder_.Reshape(memory.root, name, rows, *cols);
    }
  }
  if (copied != nullptr) *copied = true;
  const cuda::ValueId value =
      builder_.Intermediate(name, compute_type_, rows, *cols);
  const Tensor out = Stacked(value, tensor.dims);
  REFRACT_RETURN_IF_ERROR(Copy(tensor, out));
  return value;
}

absl::Status Emitter::MatMul(const Tensor& a, const Tensor& b,
                             const std::optional<Tensor>& bias, bool relu,
                             const Tensor& out) {
  cuda::MatMulOp op;
  const std::string& name = builder_.value(out.value).name;
  const size_t rank = out.rank();
  if (!a.dims[a.rank() - 1].constant()) {
    return absl::UnimplementedError("it sums over the batch dimension");
  }
  REFRACT_ASSIGN_OR_RETURN(std::vector<Rows> dims, RowsOf(out.dims, name));
  op.m = dims[rank - 2];
  op.n = dims[rank - 1];
  REFRACT_ASSIGN_OR_RETURN(op.k, RowsOfSize(a.dims[a.rank() - 1], name));
  // The innermost two dimensions of `out` are the product's rows and columns;
  // those before are batched.
  op.dims.assign(dims.begin(), dims.end() - 2);
  // Leading dimensions are broadcast; those of the matrix are not.
  const auto whole = [&](const Tensor& factor) {
    Sizes wanted(out.dims.begin(), out.dims.end() - 2);
    wanted.insert(wanted.end(), factor.dims.end() - 2, factor.dims.end());
    return Expanded(factor, wanted);
  };
  const std::optional<Tensor> left = whole(a);
  const std::optional<Tensor> right = whole(b);
  if (!left || !right || !(left->dims.back() == right->dims[rank - 2])) {
    return absl::UnimplementedError("the shapes of its factors do not match");
  }
  REFRACT_ASSIGN_OR_RETURN(op.a, RefTo(*left));
  REFRACT_ASSIGN_OR_RETURN(op.b, RefTo(*right));
  REFRACT_ASSIGN_OR_RETURN(op.out, RefTo(out));
  if (bias) {
    REFRACT_ASSIGN_OR_RETURN(op.bias, RefTo(*bias));
  }
  op.relu = relu;
  builder_.MatMul(std::move(op));
  return absl::OkStatus();
}

absl::Status Emitter::Reduce(cuda::ReduceKind kind, const Tensor& in,
                             const std::vector<size_t>& dims, const Tensor& out,
                             const std::optional<Tensor>& gamma,
                             const std::optional<Tensor>& beta, float epsilon) {
  // The kernel reduces the innermost dimensions: the reduced dimensions go
  // last.
  cuda::ReduceOp op;
  op.kind = kind;
  op.epsilon = epsilon;
  op.inner = static_cast<int>(dims.size());
  std::vector<size_t> order;
  for (size_t d = 0; d < in.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      order.push_back(d);
    } else if (!in.dims[d].constant()) {
      return absl::UnimplementedError("it computes along the batch dimension");
    }
  }
  order.insert(order.end(), dims.begin(), dims.end());
  const std::string& name = builder_.value(out.value).name;
  const Tensor turned = Permuted(in, order);
  REFRACT_ASSIGN_OR_RETURN(op.dims, RowsOf(turned.dims, name));
  REFRACT_ASSIGN_OR_RETURN(op.in, RefTo(turned));
  // A reduced result lacks its reduced dimensions.
  REFRACT_ASSIGN_OR_RETURN(
      op.out, RefTo(cuda::KeepsElements(kind) ? Permuted(out, order) : out));
  if (gamma) {
    REFRACT_ASSIGN_OR_RETURN(op.gamma, RefTo(*gamma));
  }
  if (beta) {
    REFRACT_ASSIGN_OR_RETURN(op.beta, RefTo(*beta));
  }
  builder_.Reduce(std::move(op));
  return absl::OkStatus();
}

bool Emitter::IsOutputOnly(int local) const {
  bool is_output = false;
  for (const PlanOutput& output : plan_.outputs) {
    is_output |= output.local == local;
  }
  for (const Step& step : plan_.steps) {
    is_output &= std::find(step.operands.begin(), step.operands.end(), local) ==
                 step.operands.end();
  }
  return is_output;
}

std::string Emitter::Describe(size_t first) const {
  // In the order of cuda::Op's alternatives.
  constexpr const char* kNames[] = {
      "linear",  "interaction", "map",   "matmul", "reduce",
      "look-up", "integers",    "takes", "bags",   "libtorch"};
  static_assert(std::size(kNames) ==
                std::variant_size_v<decltype(cuda::Op::kind)>);
  std::string text;
  for (size_t i = first; i < builder_.num_ops(); ++i) {
    const auto& kind = builder_.op(i).kind;
    // MergeTables() puts neighbours into one launch.
    const bool merges = std::holds_alternative<cuda::TakesOp>(kind) ||
                        std::holds_alternative<cuda::BagsOp>(kind);
    if (merges && i > first &&
        builder_.op(i - 1).kind.index() == kind.index()) {
      continue;
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", kNames[kind.index()]);
  }
  return text.empty() ? "strides" : text;
}

absl::StatusOr<Translation> Emitter::Finish() {
  // Outputs that were not computed in downloaded memory are copied there:
  // views, constants, and results that are an output twice.
  for (size_t i = 0; i < plan_.outputs.size(); ++i) {
    if (outputs_[i] >= 0) continue;
    const int local = plan_.outputs[i].local;
    const std::string& name = plan_.locals[local].name;
    const auto why = [&](const std::string& what) {
      return absl::UnimplementedError(
          absl::StrCat("output ", name, ": ", what));
    };
    const models::Value& value = graph_.value(plan_.locals[local].id);
    const std::optional<DType> dtype = TypeOf(value.dtype);
    if (value.kind != models::ValueKind::kTensor || !dtype) {
      return why(absl::StrCat("its element type is ", base::Name(value.dtype)));
    }
    REFRACT_ASSIGN_OR_RETURN(const Tensor from, Get(local));
    const absl::Status lies = CheckDownloads(local, from.dims);
    if (!lies.ok()) return why(std::string(lies.message()));
    REFRACT_ASSIGN_OR_RETURN(const Layout layout,
                             LayoutOf(name, from.dims, -1));
    const cuda::ValueId id =
        builder_.Output(name, *dtype, layout.rows, layout.cols);
    outputs_[i] = num_outputs_++;
    REFRACT_RETURN_IF_ERROR(Copy(from, Laid(id, builder_.value(id), from.dims,
                                            layout.batch, layout.order)));
  }
  cuda::Result<cuda::DeviceProgram> program =
      std::move(builder_).Build(options_.max_batch);
  if (!program.ok()) {
    return absl::UnimplementedError(program.status().message());
  }
  Translation result;
  result.program = *std::move(program);
  cuda::MergeTables(result.program, options_.max_batch);
  result.weights = std::move(weights_);
  result.inputs = std::move(inputs_);
  result.outputs = std::move(outputs_);
  result.is_of_bags.assign(result.inputs.size(), false);
  for (const BagRoom& room : rooms_) {
    result.is_of_bags[room.offsets_input] = true;
    for (const size_t i : room.entry_inputs) result.is_of_bags[i] = true;
  }
  result.bags = std::move(rooms_);
  result.bag_checks = std::move(bag_checks_);
  return result;
}

}  // namespace refract::runtime::cuda_plan
