#ifndef REFRACT_RUNTIME_CUDA_PLAN_EMITTER_H_
#define REFRACT_RUNTIME_CUDA_PLAN_EMITTER_H_

// A device program under construction: the place of each local of a Plan,
// memory for results, and the operators that all translations are made of.
// Internal to cuda_plan/.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/graph/sym_expr.h"
#include "runtime/compile/plan.h"
#include "runtime/cuda_plan/bags.h"
#include "runtime/cuda_plan/constant_pool.h"
#include "runtime/cuda_plan/sizes.h"
#include "runtime/cuda_plan/translate.h"

namespace refract::runtime::cuda_plan {

class Emitter {
 public:
  // All arguments must outlive the emitter, `plan` and `pool` also the result
  // of Finish(). `sizes`: known values of symbols, the batch's among them only
  // if it is fixed. `rooms`: the bags among the inputs, whose numbers of
  // entries are not in `sizes`.
  Emitter(const models::Graph& graph, const Plan& plan,
          const TranslateOptions& options, const models::SymbolBindings& sizes,
          const std::vector<BagRoom>& rooms, ConstantPool& pool);

  const models::Graph& graph() const { return graph_; }
  const Plan& plan() const { return plan_; }
  // Type of products and of values between operators.
  cuda::DType compute_type() const { return compute_type_; }
  // Type of a floating-point local. Float32 if the part makes integers of it:
  // in 16 bits an id among floats would become another id.
  cuda::DType KeptType(int local) const {
    return counting_floats_[static_cast<size_t>(local)] ? cuda::DType::kFloat32
                                                        : compute_type_;
  }

  // --- Sizes ----------------------------------------------------------------
  // A size of the graph; Unimplemented when it depends on more than the batch
  // and the sizes that are known.
  absl::StatusOr<Size> SizeOf(const models::SymExpr& expr,
                              const std::string& of) const;
  absl::StatusOr<Sizes> DimsOf(models::ValueId id) const;
  absl::StatusOr<Sizes> DimsOfLocal(int local) const {
    return DimsOf(plan_.locals[local].id);
  }
  // The size of an argument of `step`, whose operands are `operands`.
  absl::StatusOr<Size> SizeOf(const IntSource& source,
                              const std::vector<int>& operands) const;

  // --- Locals ---------------------------------------------------------------
  // The tensor of a local that was made before: an input, a constant, a result.
  absl::StatusOr<Tensor> Get(int local);
  void Set(int local, Tensor tensor) { tensors_[local] = std::move(tensor); }
  // Adds a step of sizes and numbers, which the device does not execute.
  void AddNumber(const Step& step);
  bool IsConstant(int local) const { return plan_.locals[local].is_constant; }
  // A number or size known now; nullopt otherwise.
  std::optional<float> NumberOf(int local) const;
  std::optional<std::vector<int64_t>> IntegersOf(int local) const;

  // A constant of the compute type as the matrix that LinearOp takes: `local`
  // is [n, k], or [k, n] if `turn`.
  absl::StatusOr<cuda::ValueId> Matrix(int local, bool turn);
  absl::StatusOr<cuda::ValueId> BiasRow(int local);
  // A constant of the graph's own type: for foreign operators, and for all
  // constants that are not of floats.
  absl::StatusOr<Tensor> ExactConstant(int local);
  // [queries, keys]: 0 where a query may see a key (at its own place or
  // before), minus infinity elsewhere.
  Tensor CausalMask(int64_t queries, int64_t keys);
  // int64: start, start + step, … of `count` numbers. count, step ≥ 1, start ≥
  // 0, the last one below kMaxRange.
  Tensor Range(int64_t start, int64_t step, int64_t count);
  static constexpr int64_t kMaxRange = int64_t{1} << 24;
  // Constant indices of a look-up, as a row of int32.
  absl::StatusOr<Tensor> Indices(const std::string& name,
                                 const std::vector<int64_t>& values);

  // --- Memory ---------------------------------------------------------------
  // Memory for a new tensor. The dimension of the batch is the rows of a
  // matrix, all others its columns, `first` (if any) as the slowest of them.
  absl::StatusOr<Tensor> New(const std::string& name, const Sizes& dims,
                             cuda::DType dtype, int first = -1);
  // Memory for a result: its place in a concatenation, an output, or new
  // memory. The element type is KeptType() where `dtype` is the type of
  // computation.
  absl::StatusOr<Tensor> NewResult(int local, const Sizes& dims,
                                   cuda::DType dtype);
  // Memory as a matrix whose columns are the last dimension.
  absl::StatusOr<Tensor> NewRows(int local, const Sizes& dims,
                                 cuda::DType dtype);
  // As above under any name: a row per entry of all dimensions but the last,
  // one after the other.
  absl::StatusOr<Tensor> NewMatrix(const std::string& name, const Sizes& dims,
                                   cuda::DType dtype);
  // Part `[first, first + cols)` of a root that NewRows() may write `local` to.
  struct Place {
    int group = -1;
    int64_t first = 0;
  };
  // Requests a place for `local`, [batch, cols], beside other matrices. False
  // if it has another place already, or is no such matrix.
  bool Want(int local, int group, int64_t first, int64_t cols);
  // A group of adjacent matrices: `total` columns.
  int NewGroup(std::string name, const Size& rows, int64_t total);
  // The group's memory, made at the first call.
  absl::StatusOr<cuda::ValueId> GroupRoot(int group);
  // Whether `local` was written to that place of the group.
  bool IsInGroup(int local, int group, int64_t first) const;
  // The group of a step's operands, which Want()'s caller has made.
  void SetGroup(const Step& step, int group) { group_of_[&step] = group; }
  std::optional<int> GroupOf(const Step& step) const {
    const auto found = group_of_.find(&step);
    if (found == group_of_.end()) return std::nullopt;
    return found->second;
  }
  // Only the client reads the value, so it may have the client's type.
  bool IsOutputOnly(int local) const;

  // --- Operators ------------------------------------------------------------
  // Unimplemented, which names `of`, where one does not grow evenly with the
  // batch.
  static absl::StatusOr<std::vector<cuda::Rows>> RowsOf(const Sizes& sizes,
                                                        const std::string& of);
  absl::StatusOr<cuda::TensorRef> RefTo(const Tensor& tensor) const;
  // out[i] = code(inputs…), inputs broadcast to out's dims.
  struct Input {
    std::optional<Tensor> tensor;
    float number = 0;
  };
  absl::Status Map(const std::vector<Input>& inputs,
                   std::vector<cuda::MapInstruction> code, const Tensor& out);
  // Exact to integers; floating-point numbers lose their fraction.
  absl::Status Copy(const Tensor& from, const Tensor& to);
  // As Input, for integers and truth values; all operands are broadcast to
  // out's dims.
  struct Integer {
    std::optional<Tensor> tensor;
    int64_t number = 0;
  };
  absl::Status Integers(cuda::IntegerCode code,
                        const std::vector<Integer>& operands,
                        const Tensor& out);
  // out = fold of code(in) over `dims`, which do not include the batch's and
  // which out lacks.
  absl::Status FoldIntegers(cuda::IntegerFold fold, cuda::IntegerCode code,
                            const Tensor& in, const std::vector<size_t>& dims,
                            const Tensor& out);
  absl::StatusOr<Tensor> Dense(const Tensor& tensor, const std::string& name,
                               cuda::DType dtype);
  // `tensor` as a value whose columns are its last dimension; copied if its
  // layout differs.
  absl::StatusOr<cuda::ValueId> AsMatrix(const Tensor& tensor,
                                         const std::string& name,
                                         bool* copied = nullptr);
  absl::Status MatMul(const Tensor& a, const Tensor& b,
                      const std::optional<Tensor>& bias, bool relu,
                      const Tensor& out);
  absl::Status Reduce(cuda::ReduceKind kind, const Tensor& in,
                      const std::vector<size_t>& dims, const Tensor& out,
                      const std::optional<Tensor>& gamma = std::nullopt,
                      const std::optional<Tensor>& beta = std::nullopt,
                      float epsilon = 0);

  // out[…, i, …] = table[…, index[…], …] along dimension `dim` of `table`,
  // which has `rows` entries there. In `out` that dimension is replaced by the
  // `index_rank` dimensions of `index`, which is given broadcast to all before.
  absl::Status LookUp(const Tensor& table, size_t dim, int64_t rows,
                      const Tensor& index, size_t index_rank,
                      cuda::Outside outside, const Tensor& out);

  // out[i…, j, k…] = table[i…, index[i…, j, k…], k…] along dimension `dim`,
  // which has `rows` entries in `table`; `index` has out's dims.
  absl::Status Gather(const Tensor& table, size_t dim, int64_t rows,
                      const Tensor& index, cuda::Outside outside,
                      const Tensor& out);

  // --- Bags -----------------------------------------------------------------
  // The group of bags whose offsets are `offsets_local`; null: none.
  const BagRoom* RoomOf(int offsets_local) const;
  // Marks offsets 0, `step`, 2 · `step`, … that only bags read.
  void SetEvenSteps(int local, int64_t step) { even_steps_[local] = step; }
  std::optional<int64_t> EvenSteps(int local) const {
    const auto found = even_steps_.find(local);
    if (found == even_steps_.end()) return std::nullopt;
    return found->second;
  }
  void AddBagCheck(BagCheck check) { bag_checks_.push_back(std::move(check)); }

  // Maker of operators without a kernel of ours; null: there is none.
  ForeignOperators* foreign() const { return options_.foreign; }
  // Changes with everything that is emitted, except constants.
  size_t progress() const {
    return builder_.num_ops() + builder_.num_values_but_weights();
  }

  cuda::DeviceProgramBuilder& builder() { return builder_; }
  size_t num_ops() const { return builder_.num_ops(); }
  // The operators from `first` on, for logs: "linear, map".
  std::string Describe(size_t first) const;
  // The device type of `dtype`; nullopt: the device does not compute with it.
  static std::optional<cuda::DType> TypeOf(base::DType dtype);

  // Adds the inputs of the part; first call.
  absl::Status AddInputs();
  // Adds the outputs; last call.
  absl::StatusOr<Translation> Finish();

 private:
  struct Group {
    std::string name;
    Size rows;
    int64_t total = 0;
    cuda::ValueId root = cuda::kNone;
  };

  absl::StatusOr<Tensor> AddConstant(int local);
  // Input `i` of the part as a vector of bags' offsets or entries; nullopt: it
  // is neither.
  std::optional<Tensor> AddBagInput(size_t i, const models::Value& value,
                                    cuda::DType dtype);
  // Whether all readers of the matrix `local` are products with weights and
  // steps with a group (SetGroup()), which read it in the compute type, and it
  // is no output of the program.
  bool ReadInComputeType(int local) const;
  // `value`, whose columns are the last of `dims` and whose rows are the
  // others, one behind the other.
  Tensor Stacked(cuda::ValueId value, const Sizes& dims) const;
  cuda::ValueId AddWeight(const std::string& name, cuda::DType dtype,
                          int64_t rows, int64_t cols, const float* data);
  absl::StatusOr<std::vector<float>> FloatsOf(int local) const;
  // An output of the local that is not yet written, of a type and layout that
  // downloads take: its index among the outputs.
  std::optional<size_t> FreeOutput(int local, const Sizes& dims,
                                   cuda::DType dtype) const;
  absl::Status CheckDownloads(int local, const Sizes& dims) const;

  const models::Graph& graph_;
  const Plan& plan_;
  const TranslateOptions& options_;
  const models::SymbolBindings& sizes_;
  ConstantPool& pool_;
  const cuda::DType compute_type_;
  const std::vector<bool> counting_floats_;  // of each local: see KeptType()
  cuda::DeviceProgramBuilder builder_;
  std::map<int, Tensor> tensors_;
  std::map<int, Tensor> exact_;  // constants, by ExactConstant()
  // Results of AddNumber(), at each of kProbes.
  absl::flat_hash_map<int, std::array<Operand, 3>> numbers_;
  absl::flat_hash_map<int, Place> places_;
  absl::flat_hash_map<int, bool> placed_;
  std::vector<Group> groups_;
  std::map<std::pair<int, bool>, cuda::ValueId> matrices_;
  cuda::ValueId causal_mask_ = cuda::kNone;
  cuda::ValueId counting_ = cuda::kNone;
  std::vector<cuda::WeightData> weights_;
  std::vector<int> inputs_;
  std::vector<int> outputs_;
  int num_outputs_ = 0;
  std::map<const Step*, int> group_of_;
  std::vector<BagRoom> rooms_;
  std::vector<BagCheck> bag_checks_;
  std::map<int, int64_t> even_steps_;
};

// Emits a step that has a fused form.
absl::Status EmitFused(const Step& step, Emitter& emitter);
// A graph node of a step without fused form: its operands and results as
// locals. Unimplemented if the device has no form for it: the message is only
// the reason.
struct NodeStep {
  const models::Node& node;
  std::vector<int> operands;
  std::vector<int> outputs;
  const Step& step;
};
absl::Status EmitNode(const NodeStep& node, const CompileOptions& options,
                      Emitter& emitter);
// Emits a foreign operator.
absl::Status EmitForeign(const NodeStep& node, ForeignOperators& operators,
                         Emitter& emitter);
// `own`, or, if that is Unimplemented and nothing was emitted since `progress`,
// the result of EmitForeign().
absl::Status OrForeign(absl::Status own, size_t progress, const NodeStep& node,
                       Emitter& emitter);
// A literal, `missing` if it is left out; nullopt for any other argument.
std::optional<double> NumberArgument(const models::Node& node,
                                     absl::string_view name, double missing);
// Whether the first result is read and has integers or truth values.
bool GivesIntegers(const NodeStep& node, const Emitter& emitter);
// Unimplemented for other types.
absl::Status FloatingOnly(const Tensor& tensor);
// Families of operators, tried in turn; nullopt: of another family.
std::optional<absl::Status> EmitView(const NodeStep& node, Emitter& emitter);
std::optional<absl::Status> EmitCopy(const NodeStep& node, Emitter& emitter);
std::optional<absl::Status> EmitReduction(const NodeStep& node,
                                          Emitter& emitter);
std::optional<absl::Status> EmitLookUp(const NodeStep& node,
                                       const CompileOptions& options,
                                       Emitter& emitter);
// The id policy of a table.
models::IdPolicy PolicyOf(const Emitter& emitter, int table_local,
                          const CompileOptions& options);
cuda::Outside OutsideOf(const Emitter& emitter, int table_local,
                        const CompileOptions& options);
// Emits a look-up of bags (IsBag()).
absl::Status EmitBag(const NodeStep& node, const CompileOptions& options,
                     Emitter& emitter);
// The step of an arange from 0 on that only bags of equal sizes read.
std::optional<int64_t> EvenOffsets(const NodeStep& node, Emitter& emitter);
std::optional<absl::Status> EmitElements(const NodeStep& node,
                                         Emitter& emitter);
std::optional<absl::Status> EmitIntegers(const NodeStep& node,
                                         Emitter& emitter);

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_EMITTER_H_
