#ifndef REFRACT_CPU_NODE_CATALOG_H_
#define REFRACT_CPU_NODE_CATALOG_H_

// Which models this node serves, by name and version.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cpu_node/served_model.h"
#include "models/repository/repository.h"

namespace refract::cpu_node {

// Loads one version, with log lines about what was read. Errors as
// Repository::Load() and ServedModel::Create().
absl::StatusOr<std::shared_ptr<ServedModel>> LoadServed(
    const models::Repository& repository, const std::string& name,
    int64_t version, const ServedModelOptions& options);

// Thread-safe. Only the choice of default versions changes; other changes make
// a new catalog (Engine::Publish).
class Catalog {
 public:
  struct Entry {
    std::string name;
    int64_t version = 0;  // version = 0: the versions could not even be listed
    // Null when it cannot be served. Shared by catalogs, by requests under way
    // and by whoever loaded it.
    std::shared_ptr<ServedModel> model;
    absl::Status status;  // why `model` is null
    // Share of the requests without a version, relative to the other versions.
    // 0 for all versions of a model: the default version gets these requests.
    double share = 0;
    // False: the version is in memory or only known, and must not be served.
    bool wanted = true;
  };

  // Loads the versions of all models that version_policy allows. A version that
  // fails to load is logged and becomes an entry with its status; the other
  // versions serve. An error only when `repository` itself cannot be read.
  // `wanted`: the models to load; null: all. Other models become entries that
  // are not wanted.
  static absl::StatusOr<Catalog> Load(
      const models::Repository& repository, const ServedModelOptions& options,
      const std::function<bool(absl::string_view name)>& wanted = nullptr);

  // Ordered by name, then version, whatever the order given. Split versions
  // beyond the number that can be offered to GPU nodes
  // (transport::kMaxModelOffers) are logged and left out, the oldest of the
  // models with the most versions first.
  explicit Catalog(std::vector<Entry> entries);
  Catalog(Catalog&&) = default;

  // `version` is decimal; empty means the default version. NotFound names the
  // unknown model or version; Unavailable says why a known version cannot be
  // served. Where versions have shares, an empty `version` means a ready
  // version, drawn in turns: of N requests in a row each version gets its share
  // of N, plus or minus two. `newest`, if not null, is set when `version` is
  // empty and an older version answers in place of a newer version that is not
  // ready: to the newer version.
  absl::StatusOr<std::shared_ptr<const ServedModel>> Find(
      absl::string_view name, absl::string_view version,
      int64_t* newest = nullptr) const;

  // Makes the newest usable version of each model its default: a version that
  // was loaded, has a split plan (unless no version of the model has a plan)
  // and is `ready`. If none is ready, the newest loaded version becomes the
  // default: its status tells why. Before the first call no version is ready.
  void ChooseDefaults(absl::FunctionRef<bool(const ServedModel&)> ready) const;
  // Keeps the choices of `before` for models whose chosen version is still
  // here, so that only ChooseDefaults() changes defaults.
  void KeepDefaults(const Catalog& before) const;

  const std::vector<Entry>& entries() const { return entries_; }
  // Names of models with at least one loaded version, sorted.
  std::vector<std::string> LoadedModels() const;

 private:
  // The versions of one model: entries [begin, end).
  struct Versions {
    size_t begin = 0;
    size_t end = 0;
    // Null when no version could be loaded. Read by requests without a lock.
    std::atomic<const Entry*> chosen = nullptr;
    // Versions with a share, and whether they are ready.
    struct Share {
      const Entry* entry = nullptr;
      std::atomic<bool> ready = false;
    };
    std::unique_ptr<Share[]> shares;
    size_t num_shares = 0;
    // Multiples of the golden ratio: their fractions fill [0, 1) evenly.
    std::atomic<uint64_t> turn = 0;
    // The newest wanted version among the candidates for the default.
    int64_t newest = 0;
  };
  // Null: no version with a share is ready.
  static const Entry* Draw(Versions& versions);

  void LimitOffers();
  // Fills `shares` and `newest` from the entries.
  void ReadWishes(Versions& versions) const;

  std::vector<Entry> entries_;
  // Held while defaults are chosen, so that an older choice never overwrites a
  // newer one.
  std::unique_ptr<absl::Mutex> choice_mu_ = std::make_unique<absl::Mutex>();
  absl::flat_hash_map<std::string, std::unique_ptr<Versions>> models_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_CATALOG_H_
