#include "models/torch_export/autocast.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "models/torch_export/nodes.h"

namespace refract::models::torch_export {
namespace {

constexpr absl::string_view kLowerOps[] = {"_addmm_activation",
                                           "_convolution",
                                           "_native_multi_head_attention",
                                           "addbmm",
                                           "addmm",
                                           "baddbmm",
                                           "bmm",
                                           "conv1d",
                                           "conv2d",
                                           "conv3d",
                                           "conv_tbc",
                                           "conv_transpose1d",
                                           "conv_transpose2d",
                                           "conv_transpose3d",
                                           "linalg_vecdot",
                                           "linear",
                                           "matmul",
                                           "mm",
                                           "prelu",
                                           "scaled_dot_product_attention"};

constexpr absl::string_view kFloat32Ops[] = {"adaptive_avg_pool3d",
                                             "adaptive_max_pool3d",
                                             "avg_pool3d",
                                             "binary_cross_entropy",
                                             "binary_cross_entropy_with_logits",
                                             "cdist",
                                             "cholesky",
                                             "cholesky_inverse",
                                             "cholesky_solve",
                                             "cosine_embedding_loss",
                                             "cross_entropy_loss",
                                             "fake_quantize_per_tensor_affine",
                                             "fft_fft",
                                             "fft_fft2",
                                             "fft_fftn",
                                             "fft_hfft",
                                             "fft_ifft",
                                             "fft_ifft2",
                                             "fft_ifftn",
                                             "fft_ihfft",
                                             "fft_irfft",
                                             "fft_irfft2",
                                             "fft_irfftn",
                                             "fft_rfft",
                                             "fft_rfft2",
                                             "fft_rfftn",
                                             "geqrf",
                                             "grid_sampler",
                                             "grid_sampler_2d",
                                             "grid_sampler_3d",
                                             "hinge_embedding_loss",
                                             "huber_loss",
                                             "inverse",
                                             "kl_div",
                                             "l1_loss",
                                             "linalg_cholesky",
                                             "linalg_cond",
                                             "linalg_eig",
                                             "linalg_eigh",
                                             "linalg_eigvals",
                                             "linalg_eigvalsh",
                                             "linalg_householder_product",
                                             "linalg_inv",
                                             "linalg_inv_ex",
                                             "linalg_lstsq",
                                             "linalg_matrix_rank",
                                             "linalg_qr",
                                             "linalg_solve",
                                             "linalg_svd",
                                             "linalg_svdvals",
                                             "linalg_tensorinv",
                                             "linalg_tensorsolve",
                                             "lu_solve",
                                             "margin_ranking_loss",
                                             "max_pool3d",
                                             "mse_loss",
                                             "multi_margin_loss",
                                             "multilabel_margin_loss",
                                             "nanquantile",
                                             "nll_loss",
                                             "nll_loss2d",
                                             "orgqr",
                                             "ormqr",
                                             "pinverse",
                                             "poisson_nll_loss",
                                             "polar",
                                             "prod",
                                             "qr",
                                             "quantile",
                                             "reflection_pad1d",
                                             "reflection_pad2d",
                                             "replication_pad1d",
                                             "replication_pad2d",
                                             "replication_pad3d",
                                             "smooth_l1_loss",
                                             "soft_margin_loss",
                                             "stft",
                                             "svd",
                                             "trace",
                                             "triangular_solve",
                                             "triplet_margin_loss",
                                             "view_as_complex"};

constexpr absl::string_view kWidestOps[] = {"cat", "index_copy", "stack"};

// Products, or sums of products; padding of several modes.
constexpr absl::string_view kAsRecordedOps[] = {
    "chain_matmul", "einsum", "inner", "linalg_multi_dot", "pad", "tensordot"};

constexpr absl::string_view kUnknownOps[] = {"_transformer_encoder_layer_fwd",
                                             "corrcoef",
                                             "cov",
                                             "gru",
                                             "gru_cell",
                                             "linalg_matrix_power",
                                             "lstm",
                                             "lstm_cell",
                                             "matrix_exp",
                                             "matrix_power",
                                             "nuclear_norm",
                                             "rnn_relu",
                                             "rnn_relu_cell",
                                             "rnn_tanh",
                                             "rnn_tanh_cell"};

using Rules = absl::flat_hash_map<absl::string_view, AutocastRule>;

const Rules& AllRules() {
  static const auto& rules = *[] {
    auto* made = new Rules();
    for (auto op : kLowerOps) made->emplace(op, AutocastRule::kLower);
    for (auto op : kFloat32Ops) made->emplace(op, AutocastRule::kFloat32);
    for (auto op : kWidestOps) made->emplace(op, AutocastRule::kWidest);
    for (auto op : kAsRecordedOps) made->emplace(op, AutocastRule::kAsRecorded);
    for (auto op : kUnknownOps) made->emplace(op, AutocastRule::kUnknown);
    return made;
  }();
  return rules;
}

}  // namespace

AutocastRule AutocastRuleOf(absl::string_view op) {
  constexpr absl::string_view kAten = "aten.";
  if (op.substr(0, kAten.size()) != kAten) return AutocastRule::kAsIs;
  op.remove_prefix(kAten.size());
  const auto rule = AllRules().find(op.substr(0, op.find('.')));
  return rule == AllRules().end() ? AutocastRule::kAsIs : rule->second;
}

namespace {

using base::DType;

// float64 is not cast.
bool MayCast(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
         dtype == DType::kBFloat16;
}

template <typename Visit>
void ForEachTensor(Node& node, Visit visit) {
  for (NamedArgument& arg : node.args) {
    if (auto* ref = std::get_if<ValueRef>(&arg.value)) {
      visit(ref->id);
    } else if (auto* list = std::get_if<ValueList>(&arg.value)) {
      for (ValueId& id : *list) {
        if (id != kNoValue) visit(id);
      }
    }
  }
}

bool ChoosesDType(const Node& node) {
  // A cast that the program itself asks for.
  for (const NamedArgument& arg : node.args) {
    if (std::holds_alternative<DType>(arg.value)) return true;
  }
  return node.op == "aten.type_as.default" || node.op == "aten.to.other";
}

absl::Status NotWrittenDown(const Autocast& autocast) {
  return absl::UnimplementedError(absl::StrCat(
      "torch.autocast runs parts of it in ", base::Name(autocast.dtype),
      ", and the export does not say which; call run_decompositions() before "
      "torch.export.save(), which writes the casts down"));
}

}  // namespace

absl::Status NodeReader::ApplyAutocast(const Json& section, const Json& outputs,
                                       Node& node) {
  if (!autocast_.enabled) return absl::OkStatus();
  // `lower`: an operand has the region's type already; `single`: an operand is
  // float32; `lowers`: the recorded result has the region's type although no
  // operand has it, so that a cast took place.
  bool lower = false;
  bool single = false;
  size_t tensors = 0;
  ForEachTensor(node, [&](ValueId id) {
    const DType dtype = graph_.value(id).dtype;
    lower |= dtype == autocast_.dtype;
    single |= dtype == DType::kFloat32;
    tensors += MayCast(dtype) ? 1 : 0;
  });
  const DType recorded = RecordedDType(section, outputs);
  const bool lowers = recorded == autocast_.dtype && !lower;
  // The type that the operator's rule wants for its floating operands.
  DType wanted = DType::kUnknown;
  switch (AutocastRuleOf(node.op)) {
    case AutocastRule::kAsIs:
      if (lowers && single && !ChoosesDType(node)) {
        return NotWrittenDown(autocast_);
      }
      return absl::OkStatus();
    case AutocastRule::kUnknown:
      if (!single) return absl::OkStatus();
      return NotWrittenDown(autocast_);
    case AutocastRule::kLower:
      wanted = autocast_.dtype;
      break;
    case AutocastRule::kFloat32:
      wanted = DType::kFloat32;
      break;
    case AutocastRule::kWidest:
      if (!single || !lower) return absl::OkStatus();
      wanted = DType::kFloat32;
      break;
    case AutocastRule::kAsRecorded:
      // With three tensors, the recorded dtype may be that of some products
      // only.
      if (tensors > 2 && recorded != autocast_.dtype) {
        return NotWrittenDown(autocast_);
      }
      if (!MayCast(recorded)) return absl::OkStatus();
      wanted = recorded;
      break;
  }
  ForEachTensor(node, [&](ValueId& id) { id = Cast(node.name, id, wanted); });
  return absl::OkStatus();
}

DType NodeReader::RecordedDType(const Json& section,
                                const Json& outputs) const {
  if (outputs.empty()) return DType::kUnknown;
  const Json* tensor = Member(outputs[0], "as_tensor");
  const std::string* name =
      tensor == nullptr ? nullptr : String(Member(*tensor, "name"));
  const Json* all = Member(section, "tensor_values");
  const Json* meta =
      all == nullptr || name == nullptr ? nullptr : Member(*all, *name);
  const Json* code = meta == nullptr ? nullptr : Member(*meta, "dtype");
  if (code == nullptr) return DType::kUnknown;
  const auto dtype = ParseDType(*code);
  return dtype.ok() ? *dtype : DType::kUnknown;
}

ValueId NodeReader::Cast(absl::string_view user, ValueId id, DType dtype) {
  const Value from = graph_.value(id);
  if (!MayCast(from.dtype) || from.dtype == dtype) return id;
  // A cast is reused, because no node writes to a weight in between.
  const auto known = casts_.find({id, dtype});
  if (known != casts_.end()) return known->second;
  Node node;
  node.op = "aten._to_copy.default";
  node.name = UniqueNodeName(absl::StrCat(user, "_autocast"));
  node.args = {{"self", ValueRef{id}}, {"dtype", dtype}};
  Value value;
  value.dtype = dtype;
  value.has_shape = from.has_shape;
  value.shape = from.shape;
  value.producer = static_cast<NodeId>(graph_.nodes.size());
  Scope nowhere;
  const ValueId cast = AddValue(std::move(value), node.name, nowhere);
  node.outputs = {cast};
  graph_.nodes.push_back(std::move(node));
  // Only casts of weights are kept for further readers.
  if (from.is_weight()) casts_[{id, dtype}] = cast;
  return cast;
}

}  // namespace refract::models::torch_export
