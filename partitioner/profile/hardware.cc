#include "partitioner/profile/hardware.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "models/repository/files/text_proto.h"
#include "partitioner/profile/hardware_files.h"
#include "proto/hardware.pb.h"

namespace refract::partitioner {
namespace {

// Reads figures, each a value with its source, and names the figure in errors.
class Reader {
 public:
  explicit Reader(absl::string_view file) : file_(file) {}

  absl::StatusOr<double> Read(absl::string_view name, bool has,
                              const proto::Figure& figure,
                              bool may_be_zero = false) const {
    const auto wrong = [&](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_, ": ", name, ": ", what));
    };
    // The order of the checks decides the message: !isfinite comes before the
    // comparisons, which are false for NaN.
    if (!has) return wrong("missing");
    if (!std::isfinite(figure.value())) return wrong("is no finite number");
    if (figure.value() < 0) {
      return wrong(absl::StrCat(figure.value(), " is negative"));
    }
    if (figure.value() == 0 && !may_be_zero) {
      return wrong("missing or 0, and must be more");
    }
    if (figure.source().empty()) return wrong("says no source");
    return figure.value();
  }

 private:
  const absl::string_view file_;
};

}  // namespace

absl::StatusOr<Hardware> ParseHardware(absl::string_view text,
                                       absl::string_view file) {
  proto::Hardware stored;
  REFRACT_RETURN_IF_ERROR(models::ParseText(text, file, stored));
  if (stored.name().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": name: missing"));
  }
  const Reader reader(file);
  Hardware hardware;
  hardware.name = stored.name();
  hardware.description = stored.description();
  REFRACT_ASSIGN_OR_RETURN(
      hardware.units, reader.Read("units", stored.has_units(), stored.units()));
  REFRACT_ASSIGN_OR_RETURN(
      hardware.operator_s,
      reader.Read("operator_seconds", stored.has_operator_seconds(),
                  stored.operator_seconds(), /*may_be_zero=*/true));
  REFRACT_ASSIGN_OR_RETURN(
      hardware.flops_per_s,
      reader.Read("flops_per_second", stored.has_flops_per_second(),
                  stored.flops_per_second()));
  REFRACT_ASSIGN_OR_RETURN(
      hardware.bytes_per_s,
      reader.Read("bytes_per_second", stored.has_bytes_per_second(),
                  stored.bytes_per_second()));
  // Optional here; MakeConditions() wants it on nodes that may run look-ups.
  if (stored.has_row_seconds()) {
    REFRACT_ASSIGN_OR_RETURN(
        hardware.row_s, reader.Read("row_seconds", true, stored.row_seconds(),
                                    /*may_be_zero=*/true));
  }
  REFRACT_ASSIGN_OR_RETURN(
      hardware.memory_bytes,
      reader.Read("memory_bytes", stored.has_memory_bytes(),
                  stored.memory_bytes()));
  // Size and bandwidth of the cache come together or not at all.
  if (stored.has_cache_bytes() || stored.has_cache_bytes_per_second()) {
    Hardware::Cache cache;
    REFRACT_ASSIGN_OR_RETURN(
        cache.bytes, reader.Read("cache_bytes", stored.has_cache_bytes(),
                                 stored.cache_bytes()));
    REFRACT_ASSIGN_OR_RETURN(cache.bytes_per_s,
                             reader.Read("cache_bytes_per_second",
                                         stored.has_cache_bytes_per_second(),
                                         stored.cache_bytes_per_second()));
    hardware.cache = cache;
  }
  for (const proto::Hardware::WireRate& rate : stored.wire()) {
    const std::string where = absl::StrCat("wire ", rate.form(), ": ");
    WireRate read;
    REFRACT_ASSIGN_OR_RETURN(
        read.encode_bytes_per_s,
        reader.Read(absl::StrCat(where, "encode_bytes_per_second"),
                    rate.has_encode_bytes_per_second(),
                    rate.encode_bytes_per_second()));
    REFRACT_ASSIGN_OR_RETURN(
        read.decode_bytes_per_s,
        reader.Read(absl::StrCat(where, "decode_bytes_per_second"),
                    rate.has_decode_bytes_per_second(),
                    rate.decode_bytes_per_second()));
    const absl::Status added = AddWireRate(rate.form(), read, hardware.wire);
    if (!added.ok()) return base::Annotate(added, file);
  }
  return hardware;
}

absl::StatusOr<Hardware> FindHardware(absl::string_view name_or_path) {
  // Built-in names win over files of the same name in the working directory.
  for (const HardwareFile& file : HardwareFiles()) {
    if (file.name == name_or_path) return ParseHardware(file.text, file.name);
  }
  const absl::StatusOr<std::string> text = base::ReadText(name_or_path);
  if (!text.ok()) {
    return absl::NotFoundError(
        absl::StrCat("hardware ", name_or_path,
                     ": no file that can be read, and none of the built-in ",
                     BuiltInHardware()));
  }
  return ParseHardware(*text, name_or_path);
}

std::string BuiltInHardware() {
  return absl::StrJoin(HardwareFiles(), ", ",
                       [](std::string* out, const HardwareFile& file) {
                         absl::StrAppend(out, file.name);
                       });
}

}  // namespace refract::partitioner
