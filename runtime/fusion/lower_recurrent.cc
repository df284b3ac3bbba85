// Reads recurrent layers and cells into RecurrentOp. Whatever differs from the
// plain form (packed sequences, projections, dropout) is left to LibTorch.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "models/graph/op_traits.h"
#include "runtime/fusion/lower.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::Lowering;

bool IsFloat(const KernelRequest& request, int operand, size_t rank) {
  return operand != kNoOperand && request.IsTensor(operand, DType::kFloat32) &&
         request.rank(operand) == rank;
}

// Sets the family and whether it is a single step; false for other operators.
bool ReadName(Lowering lowering, RecurrentOp& recurrent) {
  recurrent.is_step =
      lowering == Lowering::kGruCell || lowering == Lowering::kLstmCell ||
      lowering == Lowering::kRnnTanhCell || lowering == Lowering::kRnnReluCell;
  switch (lowering) {
    case Lowering::kGru:
    case Lowering::kGruCell:
      recurrent.cell = RecurrentCell::kGru;
      return true;
    case Lowering::kLstm:
    case Lowering::kLstmCell:
      recurrent.cell = RecurrentCell::kLstm;
      return true;
    case Lowering::kRnnTanh:
    case Lowering::kRnnTanhCell:
      recurrent.cell = RecurrentCell::kTanh;
      return true;
    case Lowering::kRnnRelu:
    case Lowering::kRnnReluCell:
      recurrent.cell = RecurrentCell::kRelu;
      return true;
    default:
      return false;
  }
}

bool ReadStep(const NodeArgs& args, RecurrentOp& recurrent) {
  recurrent.params = {args.OperandOf("w_ih"), args.OperandOf("w_hh")};
  recurrent.has_biases = args.Has("b_ih");
  if (args.Has("b_hh") != recurrent.has_biases) return false;
  if (recurrent.has_biases) {
    recurrent.params.push_back(args.OperandOf("b_ih"));
    recurrent.params.push_back(args.OperandOf("b_hh"));
  }
  return true;
}

bool ReadLayers(const KernelRequest& request, RecurrentOp& recurrent) {
  const NodeArgs& args = request.args;
  const auto params = args.OperandsOf("params");
  const auto has_biases = args.BoolLiteral("has_biases");
  const auto layers = args.IntLiteral("num_layers");
  const auto bidirectional = args.BoolLiteral("bidirectional");
  const auto batch_first = args.BoolLiteral("batch_first");
  if (!params || !has_biases || !layers || !bidirectional || !batch_first ||
      *layers < 1 || *layers > static_cast<int64_t>(params->size()) ||
      // Random means dropout in training.
      models::IsRandom(request.node())) {
    return false;
  }
  recurrent.params = *params;
  recurrent.has_biases = *has_biases;
  recurrent.layers = static_cast<int>(*layers);
  recurrent.bidirectional = *bidirectional;
  recurrent.batch_first = *batch_first;
  return true;
}

// The size of a weight's dimension, if the graph shows it.
std::optional<int64_t> SizeOf(const KernelRequest& request, int operand,
                              size_t dim) {
  return request.operand(operand).shape[dim].constant();
}

// Whether the weights have the shapes of the cells, in order; sets `units`.
bool ReadWeights(const KernelRequest& request, RecurrentOp& recurrent) {
  const auto each = static_cast<size_t>(recurrent.params_per_cell());
  const auto cells =
      static_cast<size_t>(recurrent.layers) * recurrent.directions();
  // A projection would add one weight per cell.
  if (recurrent.params.size() != each * cells) return false;
  for (size_t i = 0; i < recurrent.params.size(); ++i) {
    const bool is_matrix = i % each < 2;
    const int param = recurrent.params[i];
    if (!IsFloat(request, param, is_matrix ? 2 : 1) ||
        (is_matrix && !MayBePacked(request, param))) {
      return false;
    }
  }
  // w_hh is [gates × units, units].
  const auto units = SizeOf(request, recurrent.params[1], 1);
  if (!units || *units < 1) return false;
  recurrent.units = *units;
  for (size_t i = 0; i < recurrent.params.size(); ++i) {
    if (SizeOf(request, recurrent.params[i], 0) !=
        recurrent.gates() * recurrent.units) {
      return false;
    }
    if (i % each == 1 &&
        SizeOf(request, recurrent.params[i], 1) != recurrent.units) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<RecurrentOp> LowerRecurrent(const KernelRequest& request) {
  RecurrentOp recurrent;
  if (!ReadName(request.lowering(), recurrent)) return std::nullopt;
  const NodeArgs& args = request.args;
  recurrent.input = args.OperandOf("input");
  if (recurrent.cell == RecurrentCell::kLstm) {
    const auto states = args.OperandsOf("hx");
    if (!states || states->size() != 2) return std::nullopt;
    recurrent.states = *states;
  } else {
    recurrent.states = {args.OperandOf("hx")};
  }
  if (!(recurrent.is_step ? ReadStep(args, recurrent)
                          : ReadLayers(request, recurrent))) {
    return std::nullopt;
  }
  const size_t rank = recurrent.is_step ? 2 : 3;
  if (!IsFloat(request, recurrent.input, rank)) return std::nullopt;
  for (int state : recurrent.states) {
    if (!IsFloat(request, state, rank)) return std::nullopt;
  }
  if (!ReadWeights(request, recurrent)) return std::nullopt;
  return recurrent;
}

}  // namespace refract::runtime
