#include "runtime/stable_inputs.h"

#include <bit>
#include <cstring>
#include <set>
#include <string>

#include "runtime/wire/elements.h"

namespace refract::runtime {

using wire::RoundUp;

bool SizesDependOnData(const models::Graph& graph, const Part& part) {
  // A size is determined by the inputs if it is an expression of symbols that
  // occur in their shapes or values.
  std::set<std::string> known;
  const auto learn = [&](const models::SymExpr& expr) {
    for (std::string& symbol : expr.Symbols()) known.insert(std::move(symbol));
  };
  for (const models::ValueId input : part.inputs) {
    const models::Value& value = graph.value(input);
    for (const models::SymExpr& size : value.shape) learn(size);
    learn(value.sym_value);
  }
  const auto told = [&](const models::SymExpr& expr) {
    if (expr.is_unknown()) return false;
    for (const std::string& symbol : expr.Symbols()) {
      if (!known.contains(symbol)) return false;
    }
    return true;
  };
  for (const models::NodeId node : part.nodes) {
    for (const models::ValueId output : graph.nodes[node].outputs) {
      if (output == models::kNoValue) continue;
      const models::Value& value = graph.value(output);
      if (value.kind != models::ValueKind::kTensor) continue;
      if (!value.has_shape) return true;
      for (const models::SymExpr& size : value.shape) {
        if (!told(size)) return true;
      }
    }
  }
  return false;
}

absl::Span<const base::TensorView> StableInputs::Hold(
    absl::Span<const base::TensorView> inputs, bool everything) {
  views_.assign(inputs.begin(), inputs.end());
  const auto copied = [everything](const base::TensorView& view) {
    return view.bytes > 0 && (everything || !base::IsFloatingPoint(view.dtype));
  };
  // One buffer holds all copies, each at a multiple of kTensorAlignBytes. Its
  // memory grows to powers of two, so that it is allocated again only for
  // longer requests.
  size_t bytes = 0;
  for (const base::TensorView& view : views_) {
    if (copied(view)) bytes += RoundUp(view.bytes);
  }
  if (bytes > copies_.size()) {
    copies_ = base::AlignedBuffer(std::bit_ceil(bytes));
  }
  std::byte* place = copies_.data();
  for (base::TensorView& view : views_) {
    if (!copied(view)) continue;
    std::memcpy(place, view.data, view.bytes);
    view.data = place;
    place += RoundUp(view.bytes);
  }
  return views_;
}

}  // namespace refract::runtime
