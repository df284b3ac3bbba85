#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"
#include "tools/doctor/cuda_driver.h"
#include "tools/doctor/machine.h"
#include "tools/json_output.h"

namespace refract::tools {
namespace {

struct DoctorOptions {
  JsonOutput json;
};

std::optional<uint64_t> MemlockBytes() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

uint64_t ShmBytes() {
  struct statvfs info = {};
  if (statvfs("/dev/shm", &info) != 0) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

absl::Status Doctor(const DoctorOptions& options, std::ostream& out) {
  const Machine machine = ReadMachine("/");
  const Build build{.verbs = REFRACT_HAVE_VERBS != 0,
                    .cuda = REFRACT_CUDA_VERSION != 0};
  std::vector<Finding> findings =
      Judge(machine, build, MemlockBytes(), ShmBytes());
  if (auto cuda = JudgeCuda(machine, AskCudaDriver(), REFRACT_CUDA_VERSION);
      cuda.has_value()) {
    findings.push_back(*std::move(cuda));
  }
  findings.insert(
      findings.begin(),
      {.topic = "Refract",
       .fact = absl::StrCat(
           REFRACT_VERSION ", LibTorch " REFRACT_TORCH_VERSION ", transports ",
           build.verbs ? "verbs, " : "", "shm and tcp, devices cpu",
           build.cuda ? " and cuda" : "")});
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    out << absl::StreamFormat("%-4s %-10s %s\n", finding.ok ? "ok" : "lack",
                              finding.topic, finding.fact);
    if (!finding.cost.empty()) {
      out << absl::StreamFormat("%16s%s\n", "", finding.cost);
    }
    json.push_back({{"topic", finding.topic},
                    {"fact", finding.fact},
                    {"ok", finding.ok},
                    {"cost", finding.cost}});
  }
  if (options.json.empty()) return absl::OkStatus();
  return options.json.Write(json);
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Shows what this machine has and what each missing piece costs");
  options->json.AddTo(*command, context, "the findings");
  SetAction(*command, context,
            [&context, options] { return Doctor(*options, context.out); });
}

}  // namespace refract::tools
