// Instance lists.

#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "placement/cluster/lists.h"
#include "placement/cluster/usage.h"

namespace refract::placement {
namespace {

constexpr double kMostSeconds = 1e12;

// Reads fields of a row by the names of their columns, for all formats.
class RowReader {
 public:
  RowReader(const CsvTable& table, Cluster& cluster)
      : table_(table), cluster_(cluster) {}

  // The number in column `name`; `otherwise` if the column or the field is
  // missing, an error where `otherwise` is absent.
  absl::StatusOr<double> Number(int row, absl::string_view name, double least,
                                double most,
                                std::optional<double> otherwise) const {
    const std::optional<int> column = table_.Column(name);
    if (otherwise && (!column || table_.Text(row, *column).empty())) {
      return *otherwise;
    }
    return table_.Number(row, *column, least, most);
  }
  absl::StatusOr<int64_t> Int(int row, absl::string_view name, double least,
                              double most,
                              std::optional<int64_t> otherwise) const {
    const std::optional<int> column = table_.Column(name);
    if (otherwise && (!column || table_.Text(row, *column).empty())) {
      return *otherwise;
    }
    return table_.Int(row, *column, static_cast<int64_t>(least),
                      static_cast<int64_t>(most));
  }
  absl::string_view Text(int row, absl::string_view name) const {
    const std::optional<int> column = table_.Column(name);
    return column ? table_.Text(row, *column) : absl::string_view();
  }

  // "V100M16|V100M32" → bits.
  absl::StatusOr<uint64_t> GpuModels(int row, absl::string_view name) {
    uint64_t models = 0;
    for (const absl::string_view model :
         absl::StrSplit(Text(row, name), '|', absl::SkipEmpty())) {
      const int index = GpuModelIndex(cluster_, model);
      if (index < 0) {
        return table_.Wrong(
            row, *table_.Column(name),
            absl::StrCat("more than ", kMaxGpuModels, " GPU models"));
      }
      models |= uint64_t{1} << index;
    }
    return models;
  }

  int App(absl::string_view name, InstanceList& list) {
    if (name.empty()) return -1;
    const auto [at, is_new] =
        apps_.try_emplace(name, static_cast<int>(list.apps.size()));
    if (is_new) list.apps.emplace_back(name);
    return at->second;
  }

  absl::StatusOr<Role> RoleOf(int row, absl::string_view name) const {
    const absl::string_view text = Text(row, name);
    if (text.empty()) return Role::kWhole;
    for (const Role role : {Role::kWhole, Role::kCn, Role::kHn}) {
      if (absl::AsciiStrToLower(text) ==
          absl::AsciiStrToLower(placement::Name(role))) {
        return role;
      }
    }
    return table_.Wrong(row, *table_.Column(name),
                        absl::StrCat(text, " is none of CN, HN, whole"));
  }

 private:
  const CsvTable& table_;
  Cluster& cluster_;
  absl::flat_hash_map<std::string, int> apps_;
};

// A reader per format. Columns without a default are those by which
// InstanceFormatOf() recognises the format, so they exist.
absl::StatusOr<Instance> ReadRefract(const CsvTable& table, RowReader& reader,
                                     int row, InstanceList& list) {
  Instance instance;
  Demand& demand = instance.demand;
  instance.name = std::string(reader.Text(row, "name"));
  REFRACT_ASSIGN_OR_RETURN(
      demand.cpu_milli,
      reader.Int(row, "cpu_milli", 0, kMostCpuMilli, std::nullopt));
  REFRACT_ASSIGN_OR_RETURN(
      demand.memory_mib,
      reader.Int(row, "memory_mib", 0, kMostMib, std::nullopt));
  REFRACT_ASSIGN_OR_RETURN(const int64_t gpus,
                           reader.Int(row, "gpus", 0, kMaxGpus, std::nullopt));
  demand.gpus = static_cast<int32_t>(gpus);
  REFRACT_ASSIGN_OR_RETURN(demand.disk_mib,
                           reader.Int(row, "disk_mib", 0, kMostMib, 0));
  // GPU shares follow from the profile, or are whole, where the list has none;
  // Check() refuses figures that contradict the profile.
  const absl::string_view mig = reader.Text(row, "mig");
  if (!mig.empty()) {
    const std::optional<MigProfile> profile = MigProfileFromName(mig);
    if (!profile) {
      return table.Wrong(row, *table.Column("mig"),
                         absl::StrCat(mig, " is none of 1g, 2g, 3g, 4g, 7g"));
    }
    demand.mig = *profile;
  }
  REFRACT_ASSIGN_OR_RETURN(
      const int64_t gpu_milli,
      reader.Int(row, "gpu_milli", 0, kWholeGpu,
                 demand.mig != MigProfile::kNone ? MigGpuMilli(demand.mig)
                 : gpus > 0                      ? kWholeGpu
                                                 : 0));
  demand.gpu_milli = static_cast<int32_t>(gpu_milli);
  REFRACT_ASSIGN_OR_RETURN(const int64_t nic,
                           reader.Int(row, "nic_percent", 0, kWholeNic, 0));
  demand.nic_percent = static_cast<int32_t>(nic);
  REFRACT_ASSIGN_OR_RETURN(demand.gpu_models,
                           reader.GpuModels(row, "gpu_models"));
  REFRACT_ASSIGN_OR_RETURN(const int64_t most,
                           reader.Int(row, "max_per_node", -1, 1e6, -1));
  instance.max_per_node = static_cast<int>(most);
  REFRACT_ASSIGN_OR_RETURN(instance.role, reader.RoleOf(row, "role"));
  instance.app = reader.App(reader.Text(row, "app"), list);
  REFRACT_ASSIGN_OR_RETURN(
      instance.created,
      reader.Number(row, "created", 0, kMostSeconds, kBeforeStart));
  REFRACT_ASSIGN_OR_RETURN(
      instance.deleted,
      reader.Number(row, "deleted", 0, kMostSeconds, kNeverDeleted));
  return instance;
}

// This trace has no apps, roles or NICs.
absl::StatusOr<Instance> ReadV2023(const CsvTable& table, RowReader& reader,
                                   int row, InstanceList& list) {
  Instance instance;
  Demand& demand = instance.demand;
  instance.name = std::string(reader.Text(row, "name"));
  REFRACT_ASSIGN_OR_RETURN(
      demand.cpu_milli,
      reader.Int(row, "cpu_milli", 0, kMostCpuMilli, std::nullopt));
  REFRACT_ASSIGN_OR_RETURN(
      demand.memory_mib,
      reader.Int(row, "memory_mib", 0, kMostMib, std::nullopt));
  REFRACT_ASSIGN_OR_RETURN(
      const int64_t gpus,
      reader.Int(row, "num_gpu", 0, kMaxGpus, std::nullopt));
  REFRACT_ASSIGN_OR_RETURN(
      const int64_t gpu_milli,
      reader.Int(row, "gpu_milli", 0, kWholeGpu, std::nullopt));
  demand.gpus = static_cast<int32_t>(gpus);
  demand.gpu_milli = static_cast<int32_t>(gpu_milli);
  REFRACT_ASSIGN_OR_RETURN(demand.gpu_models,
                           reader.GpuModels(row, "gpu_spec"));
  REFRACT_ASSIGN_OR_RETURN(
      instance.created,
      reader.Number(row, "creation_time", 0, kMostSeconds, kBeforeStart));
  REFRACT_ASSIGN_OR_RETURN(
      instance.deleted,
      reader.Number(row, "deletion_time", 0, kMostSeconds, kNeverDeleted));
  return instance;
}

// This trace counts cores and GiB, whole GPUs, and percent of a NIC.
absl::StatusOr<Instance> ReadV2025(const CsvTable& table, RowReader& reader,
                                   int row, InstanceList& list) {
  Instance instance;
  Demand& demand = instance.demand;
  instance.name = std::string(reader.Text(row, "instance_sn"));
  REFRACT_ASSIGN_OR_RETURN(instance.role, reader.RoleOf(row, "role"));
  instance.app = reader.App(reader.Text(row, "app_name"), list);
  REFRACT_ASSIGN_OR_RETURN(const double cores,
                           reader.Number(row, "cpu_request", 0,
                                         kMostCpuMilli / 1000.0, std::nullopt));
  demand.cpu_milli = std::llround(cores * 1000);
  REFRACT_ASSIGN_OR_RETURN(
      const double memory_gib,
      reader.Number(row, "memory_request", 0, kMostMib / 1024.0, std::nullopt));
  demand.memory_mib = std::llround(memory_gib * 1024);
  REFRACT_ASSIGN_OR_RETURN(
      const double disk_gib,
      reader.Number(row, "disk_request", 0, kMostMib / 1024.0, std::nullopt));
  demand.disk_mib = std::llround(disk_gib * 1024);
  REFRACT_ASSIGN_OR_RETURN(
      const int64_t gpus,
      reader.Int(row, "gpu_request", 0, kMaxGpus, std::nullopt));
  demand.gpus = static_cast<int32_t>(gpus);
  demand.gpu_milli = gpus > 0 ? kWholeGpu : 0;
  REFRACT_ASSIGN_OR_RETURN(
      const int64_t nic,
      reader.Int(row, "rdma_request", 0, kWholeNic, std::nullopt));
  demand.nic_percent = static_cast<int32_t>(nic);
  REFRACT_ASSIGN_OR_RETURN(
      const int64_t most,
      reader.Int(row, "max_instance_per_node", -1, 1e6, std::nullopt));
  instance.max_per_node = static_cast<int>(most);
  REFRACT_ASSIGN_OR_RETURN(
      instance.created,
      reader.Number(row, "creation_time", 0, kMostSeconds, kBeforeStart));
  REFRACT_ASSIGN_OR_RETURN(
      instance.deleted,
      reader.Number(row, "deletion_time", 0, kMostSeconds, kNeverDeleted));
  return instance;
}

using ReadRow = absl::StatusOr<Instance> (*)(const CsvTable&, RowReader&, int,
                                             InstanceList&);

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
  RowReader reader(table, cluster);
  // Names identify instances in lists of placements, so they must be unique.
  absl::flat_hash_map<std::string, int> rows;  // of names
  for (int row = 0; row < table.rows(); ++row) {
    REFRACT_ASSIGN_OR_RETURN(Instance instance, read(table, reader, row, list));
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
