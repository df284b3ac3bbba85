#include "tools/verify/options.h"

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace refract::tools {

void AddNodeOptions(CLI::App& command, NodeOptions& options) {
  command
      .add_option("--transport", options.transport,
                  "way between the CN and the HN that are started: auto (the "
                  "best there is), shm, tcp or verbs")
      ->type_name("auto|shm|tcp|verbs")
      ->capture_default_str();
  command
      .add_option("--node-programs", options.programs,
                  "folder of refract-cpu-node and refract-gpu-node; default: "
                  "where refract itself is")
      ->type_name("DIR");
}

absl::Status CheckTransport(absl::string_view transport) {
  if (transport == "auto" || transport == "shm" || transport == "tcp" ||
      transport == "verbs") {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--transport ", transport, ": unknown; use auto, shm, tcp or verbs"));
}

void PrintCalibration(const Calibration& calibration, std::ostream& out) {
  const partitioner::FrontEnd& front_end = calibration.front_end;
  const partitioner::Link& link = calibration.link;
  out << absl::StreamFormat(
      "front end: %.4g us + %.4g us per input and output + %.4g ns per KiB in "
      "+ %.4g ns per KiB out\n",
      front_end.request_s * 1e6, front_end.tensor_s * 1e6,
      front_end.input_byte_s * 1e9 * 1024,
      front_end.output_byte_s * 1e9 * 1024);
  out << absl::StreamFormat(
      "link (%s): %.4g us one way + %.4g us per tensor + %.4g GB/s\n",
      calibration.transport, link.latency_s * 1e6, link.tensor_s * 1e6,
      link.bytes_per_s / 1e9);
  if (calibration.samples.empty()) return;
  out << absl::StreamFormat(
      "half of the %d kinds of requests lie within %.2g %% of this\n",
      calibration.samples.size(), 100 * calibration.TypicalError());
}

}  // namespace refract::tools
