#ifndef REFRACT_CPU_NODE_CATALOG_H_
#define REFRACT_CPU_NODE_CATALOG_H_

// Which models this node serves, by name and version.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cpu_node/served_model.h"
#include "models/repository/repository.h"

namespace refract::cpu_node {

// Immutable once loaded; thread-safe.
class Catalog {
 public:
  struct Entry {
    std::string name;
    int64_t version = 0;  // 0: not even the versions could be listed
    std::unique_ptr<ServedModel> model;  // null when it could not be loaded
    absl::Status status;                 // why
  };

  // Loads all versions of all models. A version that fails is logged and kept
  // as an entry with its status; the others serve. An error only when
  // `repository` itself cannot be read.
  static absl::StatusOr<Catalog> Load(const models::Repository& repository,
                                      const ServedModelOptions& options);

  // Ordered by name, then version, whatever the order given.
  explicit Catalog(std::vector<Entry> entries);

  // `version` is decimal; empty means the newest that could be loaded.
  // NotFound names the unknown model or version; Unavailable says why a known
  // one could not be loaded.
  absl::StatusOr<const ServedModel*> Find(absl::string_view name,
                                          absl::string_view version) const;

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_CATALOG_H_
