// Instance lists.

#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "placement/cluster/lists.h"
#include "placement/cluster/usage.h"

namespace refract::placement {
namespace {

constexpr double kMostSeconds = 1e12;
constexpr int32_t kMostPerNode = 1'000'000;

// Reads fields of a row by the names of their columns, for all formats. After a
// wrong field the others mean nothing: status() has the first error.
class RowReader {
 public:
  RowReader(const CsvTable& table, Cluster& cluster, InstanceList& list)
      : table_(table), cluster_(cluster), list_(list) {}

  void Begin(int row) { row_ = row; }
  const absl::Status& status() const { return status_; }

  // The number in column `name`; `otherwise` if the column or the field is
  // missing, an error where `otherwise` is absent.
  double Number(absl::string_view name, double least, double most,
                std::optional<double> otherwise = std::nullopt) {
    if (otherwise && Text(name).empty()) return *otherwise;
    return Take(table_.Number(row_, *table_.Column(name), least, most));
  }
  int64_t Int(absl::string_view name, int64_t least, int64_t most,
              std::optional<int64_t> otherwise = std::nullopt) {
    if (otherwise && Text(name).empty()) return *otherwise;
    return Take(table_.Int(row_, *table_.Column(name), least, most));
  }
  int32_t Int32(absl::string_view name, int32_t least, int32_t most,
                std::optional<int32_t> otherwise = std::nullopt) {
    return static_cast<int32_t>(Int(name, least, most, otherwise));
  }
  absl::string_view Text(absl::string_view name) const {
    const std::optional<int> column = table_.Column(name);
    return column ? table_.Text(row_, *column) : absl::string_view();
  }

  // "V100M16|V100M32" → bits.
  uint64_t GpuModels(absl::string_view name) {
    uint64_t models = 0;
    for (const absl::string_view model :
         absl::StrSplit(Text(name), '|', absl::SkipEmpty())) {
      const int index = GpuModelIndex(cluster_, model);
      if (index < 0) {
        Wrong(name, absl::StrCat("more than ", kMaxGpuModels, " GPU models"));
        return 0;
      }
      models |= uint64_t{1} << index;
    }
    return models;
  }

  MigProfile Mig(absl::string_view name) {
    const absl::string_view text = Text(name);
    if (text.empty()) return MigProfile::kNone;
    const std::optional<MigProfile> profile = MigProfileFromName(text);
    if (!profile) {
      Wrong(name, absl::StrCat(text, " is none of 1g, 2g, 3g, 4g, 7g"));
    }
    return profile.value_or(MigProfile::kNone);
  }

  int App(absl::string_view name) {
    const absl::string_view text = Text(name);
    if (text.empty()) return -1;
    const auto [at, is_new] =
        apps_.try_emplace(text, static_cast<int>(list_.apps.size()));
    if (is_new) list_.apps.emplace_back(text);
    return at->second;
  }

  Role RoleOf(absl::string_view name) {
    const absl::string_view text = Text(name);
    if (text.empty()) return Role::kWhole;
    for (const Role role : {Role::kWhole, Role::kCn, Role::kHn}) {
      if (absl::EqualsIgnoreCase(text, placement::Name(role))) return role;
    }
    Wrong(name, absl::StrCat(text, " is none of CN, HN, whole"));
    return Role::kWhole;
  }

 private:
  template <typename T>
  T Take(const absl::StatusOr<T>& field) {
    status_.Update(field.status());
    return field.value_or(0);
  }
  void Wrong(absl::string_view name, const std::string& why) {
    status_.Update(table_.Wrong(row_, *table_.Column(name), why));
  }

  const CsvTable& table_;
  Cluster& cluster_;
  InstanceList& list_;
  absl::flat_hash_map<std::string, int> apps_;
  int row_ = 0;
  absl::Status status_;
};

// A reader per format. Columns without a default are those by which
// InstanceFormatOf() recognises the format, so they exist.
Instance ReadRefract(RowReader& reader) {
  Instance instance;
  Demand& demand = instance.demand;
  instance.name = std::string(reader.Text("name"));
  demand.cpu_milli = reader.Int("cpu_milli", 0, kMostCpuMilli);
  demand.memory_mib = reader.Int("memory_mib", 0, kMostMib);
  demand.gpus = reader.Int32("gpus", 0, kMaxGpus);
  demand.disk_mib = reader.Int("disk_mib", 0, kMostMib, 0);
  // GPU shares follow from the profile, or are whole, where the list has none;
  // Check() refuses figures that contradict the profile.
  demand.mig = reader.Mig("mig");
  demand.gpu_milli =
      reader.Int32("gpu_milli", 0, kWholeGpu,
                   demand.mig != MigProfile::kNone ? MigGpuMilli(demand.mig)
                   : demand.gpus > 0               ? kWholeGpu
                                                   : 0);
  demand.nic_percent = reader.Int32("nic_percent", 0, kWholeNic, 0);
  demand.gpu_models = reader.GpuModels("gpu_models");
  instance.max_per_node = reader.Int32("max_per_node", -1, kMostPerNode, -1);
  instance.role = reader.RoleOf("role");
  instance.app = reader.App("app");
  instance.created = reader.Number("created", 0, kMostSeconds, kBeforeStart);
  instance.deleted = reader.Number("deleted", 0, kMostSeconds, kNeverDeleted);
  return instance;
}

// This trace has no apps, roles or NICs.
Instance ReadV2023(RowReader& reader) {
  Instance instance;
  Demand& demand = instance.demand;
  instance.name = std::string(reader.Text("name"));
  demand.cpu_milli = reader.Int("cpu_milli", 0, kMostCpuMilli);
  demand.memory_mib = reader.Int("memory_mib", 0, kMostMib);
  demand.gpus = reader.Int32("num_gpu", 0, kMaxGpus);
  demand.gpu_milli = reader.Int32("gpu_milli", 0, kWholeGpu);
  demand.gpu_models = reader.GpuModels("gpu_spec");
  instance.created =
      reader.Number("creation_time", 0, kMostSeconds, kBeforeStart);
  instance.deleted =
      reader.Number("deletion_time", 0, kMostSeconds, kNeverDeleted);
  return instance;
}

// This trace counts cores and GiB, whole GPUs, and percent of a NIC.
Instance ReadV2025(RowReader& reader) {
  Instance instance;
  Demand& demand = instance.demand;
  instance.name = std::string(reader.Text("instance_sn"));
  instance.role = reader.RoleOf("role");
  instance.app = reader.App("app_name");
  demand.cpu_milli =
      std::llround(1000 * reader.Number("cpu_request", 0, kMostCpuMilli / 1e3));
  demand.memory_mib = std::llround(
      1024 * reader.Number("memory_request", 0, kMostMib / 1024.0));
  demand.disk_mib =
      std::llround(1024 * reader.Number("disk_request", 0, kMostMib / 1024.0));
  demand.gpus = reader.Int32("gpu_request", 0, kMaxGpus);
  demand.gpu_milli = demand.gpus > 0 ? kWholeGpu : 0;
  demand.nic_percent = reader.Int32("rdma_request", 0, kWholeNic);
  instance.max_per_node =
      reader.Int32("max_instance_per_node", -1, kMostPerNode);
  instance.created =
      reader.Number("creation_time", 0, kMostSeconds, kBeforeStart);
  instance.deleted =
      reader.Number("deletion_time", 0, kMostSeconds, kNeverDeleted);
  return instance;
}

using ReadRow = Instance (*)(RowReader& reader);

ReadRow InstanceFormatOf(const CsvTable& table) {
  if (table.HasColumns({"name", "cpu_milli", "memory_mib", "gpus"})) {
    return ReadRefract;
  }
  if (table.HasColumns(
          {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"})) {
    return ReadV2023;
  }
  if (table.HasColumns({"instance_sn", "role", "app_name", "cpu_request",
                        "gpu_request", "rdma_request", "memory_request",
                        "disk_request", "max_instance_per_node"})) {
    return ReadV2025;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<InstanceList> ReadInstances(const std::string& path,
                                           Cluster& cluster) {
  REFRACT_ASSIGN_OR_RETURN(const CsvTable table, CsvTable::Read(path));
  if (table.rows() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has a header and no instances"));
  }
  return InstancesFromTable(table, cluster);
}

absl::StatusOr<InstanceList> InstancesFromTable(const CsvTable& table,
                                                Cluster& cluster) {
  const ReadRow read = InstanceFormatOf(table);
  if (read == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        table.path(),
        ":1: no instance list: the header needs the columns name, cpu_milli, "
        "memory_mib, gpus, or those of an Alibaba trace"));
  }
  InstanceList list;
  RowReader reader(table, cluster, list);
  // Names identify instances in lists of placements, so they must be unique.
  absl::flat_hash_map<std::string, int> rows;  // of names
  for (int row = 0; row < table.rows(); ++row) {
    reader.Begin(row);
    Instance instance = read(reader);
    if (!reader.status().ok()) return reader.status();
    if (instance.name.empty()) return table.Wrong(row, 0, "is empty");
    if (!rows.try_emplace(instance.name, row).second) {
      return table.Wrong(
          row, 0, absl::StrCat("instance ", instance.name, " is listed twice"));
    }
    if (const absl::Status status = Check(instance.demand); !status.ok()) {
      return table.Wrong(row, std::string(status.message()));
    }
    if (instance.role == Role::kCn && instance.demand.gpus > 0) {
      return table.Wrong(
          row, absl::StrCat("instance ", instance.name, " has role CN and ",
                            instance.demand.gpus,
                            " GPUs, but a CN has none: its role is HN or "
                            "whole"));
    }
    if (instance.deleted < instance.created) {
      return table.Wrong(row,
                         absl::StrCat("deleted at ", instance.deleted,
                                      " before created at ", instance.created));
    }
    list.instances.push_back(std::move(instance));
  }
  return list;
}

}  // namespace refract::placement
