// Reductions, scans, orders and normalisations along dimensions.

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

using NameSet = absl::flat_hash_set<absl::string_view>;

// Along dimensions, which then are gone (or 1).
Flow Reduce(const NodeView& view, const Flow& flow, int rank, ValueId output) {
  const bool integers = output != kNoValue &&
                        view.graph.value(output).dtype == base::DType::kInt64 &&
                        view.IsInteger(view.Ref("self"));
  if (flow.kind == Kind::kBags) return integers ? flow : Flow::Mixed();
  if (flow.kind == Kind::kRagged) {
    // Over what each entry has, not over the entries.
    const auto dims = view.Dims("dim", rank);
    const bool inside =
        dims && !dims->empty() && !std::count(dims->begin(), dims->end(), 0);
    if (inside) return flow;
    return integers ? Flow::Bags() : Flow::Mixed();
  }
  std::optional<std::vector<int>> dims = view.Dims("dim", rank);
  if (!dims && (view.name == "cosine_similarity")) dims = std::vector<int>{1};
  const bool none = !dims || dims->empty();
  if (none || std::count(dims->begin(), dims->end(), flow.axis) > 0) {
    // Counts: how many ids there are in all.
    return integers ? Flow::Bags() : Flow::Mixed();
  }
  Flow result = flow;
  if (!view.Bool("keepdim", false)) result.axis = AxisWithout(flow.axis, *dims);
  return result;
}

// Along one dimension that stays; `last`: it is the last where none is named.
Flow Scan(const NodeView& view, const Flow& flow, int rank, bool last) {
  auto dims = view.Dims("dim", rank);
  if (!dims && last) dims = std::vector<int>{std::max(rank - 1, 0)};
  if (flow.kind == Kind::kRagged) {
    if (dims && dims->front() != 0) return flow;
    return view.IsInteger(view.first_output()) ? Flow::Bags() : Flow::Mixed();
  }
  if (flow.kind == Kind::kBags) return flow;
  if (!dims) return Flow::Unproven();
  if (dims->front() != flow.axis) return flow;
  return view.name == "cumsum" && view.IsInteger(view.Ref("self"))
             ? Flow::Bags()
             : Flow::Mixed();
}

// Over the last dimensions, as many as "normalized_shape" has.
Flow NormalizeLast(const NodeView& view, const Flow& flow, int rank) {
  const Argument* arg = view.node.FindArg("normalized_shape");
  const auto* shape = arg ? std::get_if<IntList>(arg) : nullptr;
  if (shape == nullptr) return Flow::Unproven();
  if (!view.FlowOf("weight").shared() || !view.FlowOf("bias").shared()) {
    return Flow::Unproven();
  }
  if (flow.kind == Kind::kRagged) {
    return static_cast<int>(shape->size()) < rank ? flow : Flow::Mixed();
  }
  return flow.axis < rank - static_cast<int>(shape->size()) ? flow
                                                            : Flow::Mixed();
}

}  // namespace

MaybeFlows ApplyReduceRules(const NodeView& view) {
  static const auto& reductions = *new NameSet{
      "sum",       "nansum",      "mean",      "nanmean",
      "prod",      "amax",        "amin",      "aminmax",
      "max",       "min",         "argmax",    "argmin",
      "all",       "any",         "norm",      "linalg_vector_norm",
      "logsumexp", "var",         "std",       "var_mean",
      "std_mean",  "median",      "nanmedian", "count_nonzero",
      "quantile",  "nanquantile", "mode"};
  static const auto& scans = *new NameSet{
      "cumsum",  "cumprod",  "logcumsumexp", "cummax",       "cummin",
      "softmax", "_softmax", "log_softmax",  "_log_softmax", "_safe_softmax"};
  static const auto& orders = *new NameSet{"sort", "argsort", "glu"};
  const absl::string_view name = view.name;
  const ValueId self = view.Ref("self");
  const Flow flow = view.FlowOf(self);
  const int rank = view.Rank(self);

  if (name == "layer_norm" || name == "native_layer_norm" ||
      name == "rms_norm" || name == "_fused_rms_norm") {
    const ValueId input = view.Ref("input");
    return ForAll(view,
                  NormalizeLast(view, view.FlowOf(input), view.Rank(input)));
  }
  if (name == "group_norm" || name == "native_group_norm" ||
      name == "instance_norm") {
    const Flow input = view.FlowOf("input");
    return ForAll(view,
                  input.rows() && input.axis == 0 ? input : Flow::Mixed());
  }
  static const auto& batch_norms =
      *new NameSet{"batch_norm",
                   "native_batch_norm",
                   "_native_batch_norm_legit",
                   "_native_batch_norm_legit_no_training",
                   "_batch_norm_no_update",
                   "_batch_norm_impl_index"};
  if (batch_norms.contains(name)) {  // by stored statistics
    const Flow input = view.FlowOf("input");
    return ForAll(view, input.rows() ? input : Flow::Unproven());
  }
  if (name == "cosine_similarity" || name == "pairwise_distance") {
    const ValueId a = view.Ref("x1");
    const ValueId b = view.Ref("x2");
    const int joint = std::max(view.Rank(a), view.Rank(b));
    if (view.Rank(a) < 0 || view.Rank(b) < 0) {
      return ForAll(view, Flow::Unproven());
    }
    const Flow both =
        Broadcast({{view.FlowOf(a), view.Rank(a), view.ShapeOf(a)},
                   {view.FlowOf(b), view.Rank(b), view.ShapeOf(b)}},
                  joint);
    if (!both.rows()) return ForAll(view, Flow::Mixed());
    const int dim =
        name == "pairwise_distance"
            ? joint - 1
            : view.Dims("dim", joint).value_or(std::vector<int>{1}).front();
    if (dim == both.axis) return ForAll(view, Flow::Mixed());
    const bool keep = view.Bool("keepdim", false);
    return ForAll(view, keep ? both : both.At(AxisWithout(both.axis, {dim})));
  }
  // The last one or two dimensions are pooled; rows are in front of them.
  static const auto& pools = *new absl::flat_hash_map<absl::string_view, int>{
      {"avg_pool1d", 1},
      {"max_pool1d", 1},
      {"max_pool1d_with_indices", 1},
      {"adaptive_avg_pool1d", 1},
      {"adaptive_max_pool1d", 1},
      {"avg_pool2d", 2},
      {"max_pool2d", 2},
      {"max_pool2d_with_indices", 2},
      {"adaptive_avg_pool2d", 2},
      {"_adaptive_avg_pool2d", 2},
      {"upsample_nearest1d", 1},
      {"upsample_linear1d", 1}};
  if (const auto it = pools.find(name); it != pools.end()) {
    const bool fine = flow.rows() && flow.axis < rank - it->second;
    return ForAll(view, fine ? flow : Flow::Mixed());
  }

  const bool known = reductions.contains(name) || scans.contains(name) ||
                     orders.contains(name) || name == "topk" ||
                     name == "kthvalue" || name == "msort";
  if (!known) return std::nullopt;
  if (rank < 0 || flow.kind == Kind::kRowIndex) {
    return ForAll(view, Flow::Unproven());
  }
  if (scans.contains(name)) return ForAll(view, Scan(view, flow, rank, false));
  if (orders.contains(name) || name == "topk") {
    return ForAll(view, Scan(view, flow, rank, true));
  }
  if (name == "msort") {
    return ForAll(view, flow.rows() && flow.axis != 0 ? flow : Flow::Mixed());
  }
  if (name == "kthvalue" && view.node.FindArg("dim") == nullptr) {
    if (!flow.rows() || flow.axis == rank - 1) {
      return ForAll(view, Flow::Mixed());
    }
    return ForAll(view, flow);
  }
  std::vector<Flow> flows;
  for (const ValueId id : view.node.outputs) {
    flows.push_back(Reduce(view, flow, rank, id));
  }
  return flows;
}

}  // namespace refract::models::rows
