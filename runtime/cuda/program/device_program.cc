#include "runtime/cuda/program/device_program.h"

#include <algorithm>
#include <utility>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/program/strided_ops.h"

namespace refract::runtime::cuda {

namespace {

// Outputs with shorter rows are dense.
constexpr int64_t kNarrowOutputBytes = 128;

}  // namespace

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

const char* Name(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "none";
    case Epilogue::kBias:
      return "bias";
    case Epilogue::kRelu:
      return "relu";
    case Epilogue::kReluBias:
      return "relu_bias";
  }
  return "unknown";
}

namespace {

void AddIf(ValueId id, std::vector<ValueId>& ids) {
  if (id != kNone) ids.push_back(id);
}

struct InputLister {
  std::vector<ValueId> ids;
  void operator()(const LinearOp& op) {
    ids = {op.in, op.weight};
    AddIf(op.bias, ids);
  }
  void operator()(const InteractionOp& op) { ids = {op.dense, op.embeddings}; }
  template <typename StridedOp>
  void operator()(const StridedOp& op) {
    ids = InputsOfStrided(op);
  }
};

ValueId IdOf(ValueId out) { return out; }
ValueId IdOf(const TensorRef& out) { return out.value; }

struct OutputLister {
  std::vector<ValueId> ids;
  void operator()(const TakesOp& op) {
    for (const Take& take : op.takes) AddIf(take.out.value, ids);
  }
  void operator()(const BagsOp& op) {
    for (const Bag& bag : op.bags) AddIf(bag.out.value, ids);
  }
  void operator()(const ForeignOp& op) {
    for (const ForeignResult& result : op.results) {
      AddIf(result.tensor.value, ids);
    }
  }
  template <typename OneResult>
  void operator()(const OneResult& op) {
    ids = {IdOf(op.out)};
  }
};

}  // namespace

std::vector<ValueId> InputsOf(const Op& op) {
  InputLister lister;
  std::visit(lister, op.kind);
  return std::move(lister.ids);
}

std::vector<ValueId> OutputsOf(const Op& op) {
  OutputLister lister;
  std::visit(lister, op.kind);
  return std::move(lister.ids);
}

// Bags always count: their offsets are checked on the device, whatever the
// policy for ids.
bool DeviceProgram::counts_faults() const {
  const auto can_fail = [](const Take& take) {
    return take.outside == Outside::kFault;
  };
  return std::any_of(ops.begin(), ops.end(), [&](const Op& op) {
    const auto* look_up = std::get_if<LookUpOp>(&op.kind);
    const auto* takes = std::get_if<TakesOp>(&op.kind);
    const auto* foreign = std::get_if<ForeignOp>(&op.kind);
    return (foreign != nullptr && foreign->counts_faults) ||
           std::holds_alternative<BagsOp>(op.kind) ||
           (takes != nullptr &&
            std::any_of(takes->takes.begin(), takes->takes.end(), can_fail)) ||
           (look_up != nullptr && look_up->outside == Outside::kFault);
  });
}

// Look-ups skip unused rows of the bucket, whose ids may be wrong.
bool DeviceProgram::reads_batch() const {
  return std::any_of(ops.begin(), ops.end(), [](const Op& op) {
    return std::holds_alternative<LookUpOp>(op.kind) ||
           std::holds_alternative<TakesOp>(op.kind) ||
           std::holds_alternative<BagsOp>(op.kind);
  });
}

std::vector<size_t> StagedInputs(const DeviceProgram& program) {
  std::vector<size_t> staged;
  bool any_converted = false;
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const Value& value = program.value(program.inputs[i]);
    // The kernel that lays staged inputs out moves elements of two bytes or
    // more. It takes a row per item.
    if (value.rows != Rows{1, 0} || value.host_dtype == DType::kBool) continue;
    staged.push_back(i);
    any_converted |= value.host_dtype != value.dtype;
  }
  if (staged.size() <= 2 && !any_converted) staged.clear();
  return staged;
}

std::vector<bool> InSlot(const DeviceProgram& program) {
  std::vector<bool> in_slot(program.values.size(), false);
  for (const Value& value : program.values) {
    if (value.kind == ValueKind::kInput || value.kind == ValueKind::kOutput) {
      in_slot[static_cast<size_t>(value.root)] = true;
    }
  }
  return in_slot;
}

bool HasZeroPadding(const DeviceProgram& program, ValueId root) {
  if (program.value(root).kind == ValueKind::kWeight) return true;
  if (InSlot(program)[static_cast<size_t>(root)]) return true;
  // The interaction kernel clears the padding of its result.
  return std::any_of(
      program.ops.begin(), program.ops.end(), [root](const Op& op) {
        const auto* interaction = std::get_if<InteractionOp>(&op.kind);
        return interaction != nullptr && interaction->out == root;
      });
}

DeviceProgramBuilder::DeviceProgramBuilder(std::string name, bool tf32) {
  program_.name = std::move(name);
  program_.tf32 = tf32;
}

ValueId DeviceProgramBuilder::Add(Value value) {
  const auto id = static_cast<ValueId>(program_.values.size());
  value.host_dtype = value.dtype;
  // Without a root given the value is a root; View() and Reshape() give theirs.
  if (value.root == kNone) {
    value.root = id;
    // Indices and masks are read as dense arrays.
    value.ld = IsFloating(value.dtype) ? PaddedLd(value.cols, value.dtype)
                                       : value.cols;
  }
  program_.values.push_back(std::move(value));
  return id;
}

ValueId DeviceProgramBuilder::Input(std::string name, DType dtype, Rows rows,
                                    int64_t cols,
                                    std::optional<DType> host_dtype) {
  const ValueId id =
      Add({std::move(name), ValueKind::kInput, dtype, rows, cols});
  program_.values.back().host_dtype = host_dtype.value_or(dtype);
  program_.inputs.push_back(id);
  return id;
}
ValueId DeviceProgramBuilder::CountedInput(std::string name, DType dtype,
                                           int64_t capacity) {
  const ValueId id = Input(std::move(name), dtype, kOneRow, capacity);
  program_.values.back().counted = true;
  return id;
}
ValueId DeviceProgramBuilder::Weight(std::string name, DType dtype,
                                     int64_t rows, int64_t cols) {
  const ValueId id =
      Add({std::move(name), ValueKind::kWeight, dtype, Rows{0, rows}, cols});
  program_.weights.push_back(id);
  return id;
}
ValueId DeviceProgramBuilder::Intermediate(std::string name, DType dtype,
                                           Rows rows, int64_t cols) {
  return Add({std::move(name), ValueKind::kIntermediate, dtype, rows, cols});
}
ValueId DeviceProgramBuilder::Output(std::string name, DType dtype, Rows rows,
                                     int64_t cols) {
  const ValueId id =
      Add({std::move(name), ValueKind::kOutput, dtype, rows, cols});
  // Dense: one piece for the copy engine, which moves padded rows one by one.
  // Wide rows cost it little, and a product writes aligned rows faster.
  Value& value = program_.values.back();
  if (cols * SizeOf(dtype) < kNarrowOutputBytes) value.ld = cols;
  program_.outputs.push_back(id);
  return id;
}
ValueId DeviceProgramBuilder::View(ValueId of, std::string name,
                                   int64_t first_col, int64_t cols) {
  const Value& parent = program_.value(of);
  return Add({std::move(name), ValueKind::kIntermediate, parent.dtype,
              parent.rows, cols, parent.ld, parent.root,
              parent.first_col + first_col});
}
ValueId DeviceProgramBuilder::Reshape(ValueId of, std::string name, Rows rows,
                                      int64_t cols) {
  const Value& parent = program_.value(of);
  return Add({std::move(name), ValueKind::kIntermediate, parent.dtype, rows,
              cols, cols, parent.root, 0, true});
}
ValueId DeviceProgramBuilder::InputView(ValueId of, std::string name,
                                        int64_t first_col, int64_t cols,
                                        DType host_dtype) {
  const ValueId id = View(of, std::move(name), first_col, cols);
  program_.values.back().kind = ValueKind::kInput;
  program_.values.back().host_dtype = host_dtype;
  program_.inputs.push_back(id);
  return id;
}

void DeviceProgramBuilder::AddOp(Op op) {
  const std::vector<ValueId> outputs = OutputsOf(op);
  const bool named = !outputs.empty() && outputs[0] >= 0 &&
                     static_cast<size_t>(outputs[0]) < program_.values.size();
  // Operators are named after their first result, as the nodes of graphs are.
  // Validate() refuses results that do not exist.
  op.name = named ? program_.value(outputs[0]).name
                  : std::to_string(program_.ops.size());
  program_.ops.push_back(std::move(op));
}
void DeviceProgramBuilder::Linear(LinearOp op) { AddOp({"", std::move(op)}); }
void DeviceProgramBuilder::Interaction(InteractionOp op) {
  AddOp({"", std::move(op)});
}
void DeviceProgramBuilder::Map(MapOp op) { AddOp({"", std::move(op)}); }
void DeviceProgramBuilder::MatMul(MatMulOp op) { AddOp({"", std::move(op)}); }
void DeviceProgramBuilder::Reduce(ReduceOp op) { AddOp({"", std::move(op)}); }
void DeviceProgramBuilder::LookUp(LookUpOp op) { AddOp({"", std::move(op)}); }
void DeviceProgramBuilder::Integers(IntegerOp op) {
  AddOp({"", std::move(op)});
}
void DeviceProgramBuilder::Takes(TakesOp op) { AddOp({"", std::move(op)}); }
void DeviceProgramBuilder::Bags(BagsOp op) { AddOp({"", std::move(op)}); }
void DeviceProgramBuilder::Foreign(ForeignOp op) { AddOp({"", std::move(op)}); }

Result<DeviceProgram> DeviceProgramBuilder::Build(int64_t max_batch) && {
  REFRACT_CUDA_RETURN_IF_ERROR(Validate(program_, max_batch));
  return std::move(program_);
}

}  // namespace refract::runtime::cuda
