#include "cpu_node/readiness.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace refract::cpu_node {

absl::Status CheckReadinessRule(const ReadinessRule& rule,
                                const Catalog& catalog) {
  if (rule.when != ReadinessRule::When::kListed) return absl::OkStatus();
  if (rule.models.empty()) {
    return absl::InvalidArgumentError(
        "--ready-when listed: --ready-models lists no model");
  }
  for (const std::string& name : rule.models) {
    // A listed model may have failed to load: the node is then not
    // ready.
    if (absl::IsNotFound(catalog.Find(name, "").status())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--ready-models: model '", name, "' is not in the repository"));
    }
  }
  return absl::OkStatus();
}

bool NodeReady(const ReadinessRule& rule, const Catalog& catalog,
               absl::FunctionRef<bool(const ServedModel&)> ready) {
  const auto model_ready = [&](const std::string& name) {
    const auto model = catalog.Find(name, "");
    return model.ok() && ready(**model);
  };
  const auto broken = [](const Catalog::Entry& entry) {
    return entry.wanted && entry.model == nullptr;
  };
  if (rule.strict &&
      std::any_of(catalog.entries().begin(), catalog.entries().end(), broken)) {
    return false;
  }
  switch (rule.when) {
    case ReadinessRule::When::kListed:
      return std::all_of(rule.models.begin(), rule.models.end(), model_ready);
    case ReadinessRule::When::kAny: {
      const std::vector<std::string> names = catalog.LoadedModels();
      return std::any_of(names.begin(), names.end(), model_ready);
    }
    case ReadinessRule::When::kAll: {
      const std::vector<std::string> names = catalog.LoadedModels();
      return std::all_of(names.begin(), names.end(), model_ready);
    }
  }
  return false;
}

}  // namespace refract::cpu_node
