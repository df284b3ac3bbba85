#include "placement/planner/spec.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "placement/cluster/cluster.h"

namespace refract::placement {
namespace {

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::StatusOr<const NodeType*> NodeOf(const PlanSpec& spec,
                                       const std::string& field,
                                       const std::string& name) {
  const NodeType* const node = spec.FindNode(name);
  if (node == nullptr) {
    return Wrong(absl::StrCat(field, ".node"),
                 absl::StrCat("'", name, "' is none of nodes[].name"));
  }
  return node;
}

absl::Status Fits(const std::string& field, double asked, double has,
                  absl::string_view unit, const NodeType& node) {
  if (asked <= has) return absl::OkStatus();
  return Wrong(field, absl::StrCat(asked, unit, " is more than a node '",
                                   node.name, "' has, ", has));
}

absl::Status HoldsModel(const std::string& field, double memory_gib,
                        double model_bytes) {
  if (memory_gib * 0x1p30 >= model_bytes) return absl::OkStatus();
  return Wrong(field, absl::StrCat(memory_gib, " GiB is less than the model's ",
                                   model_bytes / 0x1p30, " GiB there"));
}

absl::Status CheckHn(const std::string& field, const ServiceSpec& service,
                     const NodeType& node) {
  const HnOptions& hn = service.hn;
  if (node.gpus == 0) {
    return Wrong(absl::StrCat(field, ".node"),
                 absl::StrCat("a node '", node.name, "' has no GPUs"));
  }
  REFRACT_RETURN_IF_ERROR(Fits(absl::StrCat(field, ".cores"), hn.cores,
                               node.cores, " cores", node));
  REFRACT_RETURN_IF_ERROR(Fits(absl::StrCat(field, ".memory_gib"),
                               hn.memory_gib, node.memory_gib, " GiB", node));
  // Refused, not ignored: the plan would count on batches that never form.
  for (const double window : hn.batching_window_us) {
    if (window >= 0 && !service.costs.never_merged.empty()) {
      return Wrong(absl::StrCat(field, ".batching_window_us"),
                   absl::StrCat(window,
                                ": requests of this model do not share an "
                                "execution: ",
                                service.costs.never_merged, "; say \"off\""));
    }
  }
  std::set<MigProfile> parts;
  for (size_t i = 0; i < hn.parts.size(); ++i) {
    const std::string entry = absl::StrCat(field, ".gpu_parts[", i, "]");
    const GpuPart& part = hn.parts[i];
    if (!parts.insert(part.mig).second) {
      return Wrong(absl::StrCat(entry, ".part"), "is there twice");
    }
    if (part.mig != MigProfile::kNone && !IsMigCapable(node.gpu_model)) {
      return Wrong(
          absl::StrCat(entry, ".part"),
          absl::StrCat("GPUs of a node '", node.name, "' ('", node.gpu_model,
                       "') cannot be divided into MIG slices"));
    }
    if (part.mig != MigProfile::kNone && part.slowdown < 1) {
      return Wrong(absl::StrCat(entry, ".slowdown"),
                   absl::StrCat(part.slowdown,
                                ": a slice is not faster than the whole GPU"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckService(const PlanSpec& spec, const std::string& field,
                          const ServiceSpec& service) {
  if (const absl::Status costs = Check(service.costs); !costs.ok()) {
    return Wrong(absl::StrCat(field, ".model"), costs.message());
  }
  if (!service.traffic.curve.empty() &&
      *std::max_element(service.traffic.curve.begin(),
                        service.traffic.curve.end()) != 1) {
    return Wrong(absl::StrCat(field, ".traffic.curve"),
                 "its largest entry is not 1: entries are parts of "
                 "queries_per_s, the rate at the peak");
  }
  const std::string cn_field = absl::StrCat(field, ".cn");
  REFRACT_ASSIGN_OR_RETURN(const NodeType* const cn_node,
                           NodeOf(spec, cn_field, service.cn.node));
  for (const double cores : service.cn.cores) {
    REFRACT_RETURN_IF_ERROR(Fits(absl::StrCat(cn_field, ".cores"), cores,
                                 cn_node->cores, " cores", *cn_node));
  }
  REFRACT_RETURN_IF_ERROR(Fits(absl::StrCat(cn_field, ".memory_gib"),
                               service.cn.memory_gib, cn_node->memory_gib,
                               " GiB", *cn_node));
  REFRACT_RETURN_IF_ERROR(HoldsModel(absl::StrCat(cn_field, ".memory_gib"),
                                     service.cn.memory_gib,
                                     service.costs.cn_memory_bytes));
  const std::string hn_field = absl::StrCat(field, ".hn");
  REFRACT_ASSIGN_OR_RETURN(const NodeType* const hn_node,
                           NodeOf(spec, hn_field, service.hn.node));
  REFRACT_RETURN_IF_ERROR(CheckHn(hn_field, service, *hn_node));
  REFRACT_RETURN_IF_ERROR(HoldsModel(absl::StrCat(hn_field, ".memory_gib"),
                                     service.hn.memory_gib,
                                     service.costs.hn_memory_bytes));
  if (!service.monolith.has_value()) return absl::OkStatus();
  const std::string whole_field = absl::StrCat(field, ".monolith");
  REFRACT_ASSIGN_OR_RETURN(const NodeType* const whole_node,
                           NodeOf(spec, whole_field, service.monolith->node));
  if (whole_node->gpus == 0) {
    return Wrong(absl::StrCat(whole_field, ".node"),
                 absl::StrCat("a node '", whole_node->name, "' has no GPUs"));
  }
  REFRACT_RETURN_IF_ERROR(Fits(absl::StrCat(whole_field, ".cores"),
                               service.monolith->cores, whole_node->cores,
                               " cores", *whole_node));
  const std::string memory_field = absl::StrCat(whole_field, ".memory_gib");
  REFRACT_RETURN_IF_ERROR(Fits(memory_field, service.monolith->memory_gib,
                               whole_node->memory_gib, " GiB", *whole_node));
  // Not given: memory is no limit.
  if (service.monolith->memory_gib == 0) return absl::OkStatus();
  return HoldsModel(memory_field, service.monolith->memory_gib,
                    service.costs.cn_memory_bytes);
}

}  // namespace

const NodeType* PlanSpec::FindNode(absl::string_view name) const {
  for (const NodeType& node : nodes) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

double AssumedSlowdown(MigProfile profile) {
  switch (profile) {
    // A GPU has 7 compute slices (the header says why time is inverse to them).
    case MigProfile::kNone:
    case MigProfile::k7g:
      return 1;
    case MigProfile::k1g:
      return 7;
    case MigProfile::k2g:
      return 7.0 / 2;
    case MigProfile::k3g:
      return 7.0 / 3;
    case MigProfile::k4g:
      return 7.0 / 4;
  }
  return 1;
}

absl::Status Check(const PlanSpec& spec) {
  if (spec.nodes.empty()) return Wrong("nodes", "is missing or empty");
  if (spec.services.empty()) return Wrong("services", "is missing or empty");
  std::set<std::string> names;
  for (size_t i = 0; i < spec.nodes.size(); ++i) {
    const NodeType& node = spec.nodes[i];
    const std::string field = absl::StrCat("nodes[", i, "]");
    if (!names.insert(node.name).second) {
      return Wrong(absl::StrCat(field, ".name"),
                   absl::StrCat("'", node.name, "' is there twice"));
    }
    if (node.gpus == 0 && !node.gpu_model.empty()) {
      return Wrong(absl::StrCat(field, ".gpu_model"),
                   absl::StrCat("'", node.gpu_model, "', but gpus is 0"));
    }
  }
  names.clear();
  for (size_t i = 0; i < spec.services.size(); ++i) {
    const std::string field = absl::StrCat("services[", i, "]");
    const ServiceSpec& service = spec.services[i];
    if (!names.insert(service.name).second) {
      return Wrong(absl::StrCat(field, ".name"),
                   absl::StrCat("'", service.name, "' is there twice"));
    }
    REFRACT_RETURN_IF_ERROR(CheckService(spec, field, service));
  }
  return absl::OkStatus();
}

}  // namespace refract::placement
