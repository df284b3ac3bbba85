#include "cpu_node/catalog.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"

namespace refract::cpu_node {

Catalog::Catalog(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) {
              return std::tie(a.name, a.version) < std::tie(b.name, b.version);
            });
}

absl::StatusOr<Catalog> Catalog::Load(const models::Repository& repository,
                                      const ServedModelOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           repository.ListModels());
  std::vector<Entry> entries;
  for (const std::string& name : names) {
    const absl::StatusOr<std::vector<int64_t>> versions =
        repository.ListVersions(name);
    if (!versions.ok()) {
      LOG(ERROR) << "model '" << name << "' is left out: " << versions.status();
      entries.push_back({name, 0, nullptr, versions.status()});
      continue;
    }
    for (const int64_t version : *versions) {
      Entry entry{name, version, nullptr, absl::OkStatus()};
      absl::StatusOr<std::shared_ptr<const models::LoadedModel>> loaded =
          repository.Load(name, version);
      entry.status = loaded.status();
      if (loaded.ok()) {
        for (const std::string& warning : (*loaded)->warnings) {
          LOG(WARNING) << warning;
        }
        absl::StatusOr<std::unique_ptr<ServedModel>> model =
            ServedModel::Create(*std::move(loaded), options);
        entry.status = model.status();
        if (model.ok()) entry.model = *std::move(model);
      }
      if (!entry.status.ok()) {
        LOG(ERROR) << "model '" << name << "' version " << version
                   << " is left out: " << entry.status;
      }
      entries.push_back(std::move(entry));
    }
  }
  return Catalog(std::move(entries));
}

absl::StatusOr<const ServedModel*> Catalog::Find(
    absl::string_view name, absl::string_view version) const {
  int64_t number = 0;
  const bool any = version.empty();
  const bool is_number = absl::SimpleAtoi(version, &number) && number > 0;
  const Entry* found = nullptr;
  bool known = false;
  for (const Entry& entry : entries_) {
    if (entry.name != name) continue;
    known = true;
    // Ascending versions: the last match is the newest.
    if (any && (found == nullptr || entry.model != nullptr)) found = &entry;
    if (!any && is_number && entry.version == number) found = &entry;
  }
  if (!known) {
    return absl::NotFoundError(absl::StrCat("unknown model '", name, "'"));
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("model '", name, "' has no version '", version, "'"));
  }
  if (found->model == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("model '", name, "' version ", found->version,
                     " could not be loaded: ", found->status.message()));
  }
  return found->model.get();
}

}  // namespace refract::cpu_node
