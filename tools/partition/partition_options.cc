#include "tools/partition/partition_options.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/repository/wire_form.h"
#include "partitioner/profile/hardware.h"
#include "tools/common_options.h"

namespace refract::tools {

void AddConditionOptions(CLI::App& command,
                         partitioner::ConditionOptions& options) {
  command
      .add_option("--objective", options.objective,
                  "what optimal minimises: the latency of one request, the "
                  "time of the slowest of CN, link and HN, or the money that "
                  "a request costs")
      ->type_name("latency|throughput|cost");
  command.add_option("--batch", options.batch, "items of a request")
      ->type_name("N");
  const std::string hardware = absl::StrCat(
      "; ", partitioner::BuiltInHardware(), ", or a .textproto file");
  command.add_option("--cn", options.cn, "hardware of the CN" + hardware)
      ->type_name("HARDWARE")
      ->each([&options](const std::string&) { options.cn_given = true; });
  command.add_option("--hn", options.hn, "hardware of the HN" + hardware)
      ->type_name("HARDWARE")
      ->each([&options](const std::string&) { options.hn_given = true; });
  command
      .add_option(
          "--cn-profile", options.cn_profile,
          "measured costs of the CN: a file of refract profile, model "
          "(the file beside the version) or none; default: model, where "
          "there is one and no --cn")
      ->type_name("FILE|model|none");
  command
      .add_option("--hn-profile", options.hn_profile,
                  "measured costs of the HN, for an HN without a GPU; default: "
                  "none, with --verify the CN's unless --hn is given")
      ->type_name("FILE|model|none");
  CLI::Option* calibration =
      command
          .add_option("--calibration", options.calibration,
                      "file of refract calibrate: the link between a CN and an "
                      "HN, and the front end")
          ->type_name("FILE");
  command
      .add_option("--link-gbps", options.link_gbps,
                  "Gbit/s between a CN and an HN, each way")
      ->type_name("G")
      ->excludes(calibration);
  command
      .add_option("--link-latency-us", options.link_latency_us,
                  "latency of the link one way, microseconds")
      ->type_name("L")
      ->excludes(calibration);
  command
      .add_option("--cn-cores", options.cn_cores,
                  "CN cores per GPU, for throughput; default: those of one CN "
                  "shared by the GPUs of one HN")
      ->type_name("N");
  command
      .add_option("--cn-memory-gib", options.cn_memory_gib,
                  "limit on the weights that the CN reads, GiB; default: the "
                  "hardware's memory")
      ->type_name("GIB");
  command
      .add_option("--hn-memory-gib", options.hn_memory_gib,
                  "limit on the weights that the HN reads, GiB; default: the "
                  "hardware's memory")
      ->type_name("GIB");
  command
      .add_option("--request-kib", options.request_kib,
                  "limit on the bytes of one request in both directions, KiB; "
                  "default: none")
      ->type_name("KIB");
  command
      .add_option("--hn-table-mib", options.hn_table_mib,
                  "largest table, MiB, that may be placed on the HN where that "
                  "is cheaper: ids cross instead of rows; 0: none")
      ->type_name("MIB");
  command
      .add_option("--cn-price", options.cn_price,
                  "price of a CN core for one hour, for cost")
      ->type_name("MONEY");
  command
      .add_option("--hn-price", options.hn_price,
                  "price of an HN's GPU for one hour, for cost")
      ->type_name("MONEY");
  command
      .add_option("--gb-price", options.gb_price,
                  "price of 10^9 bytes between CN and HN, for cost; default: 0")
      ->type_name("MONEY");
  command
      .add_option("--max-cuts", options.max_cuts,
                  "minimum cuts after which optimal stops and reports the "
                  "remaining gap; default: 160,000 divided by the number of "
                  "operators, from 80 to 1,000")
      ->type_name("N");
}

void AddWireOptions(CLI::App& command, partitioner::WireOptions& options) {
  command
      .add_option("--wire-dtype", options.dtype,
                  "wire form of float tensors. fp32: as they are; another "
                  "form: wherever it saves bytes; auto: per tensor the "
                  "smallest form that keeps --wire-error-bound")
      ->type_name(absl::StrCat(
          "fp32|", absl::StrJoin(models::LossyWireNames(), "|"), "|auto"));
  command
      .add_option("--wire-error-bound", options.error_bound,
                  "largest absolute difference that an output may have from "
                  "the unsplit model in fp32, measured on --sample or drawn "
                  "requests; default: none, 0.001 for auto")
      ->type_name("E");
  command
      .add_option("--sample", options.samples,
                  "requests to measure wire forms on, one per file; may be "
                  "repeated. Ids that fit travel as int32, and rows that "
                  "repeat within the requests are sent once. With --verify the "
                  "requests are sent to the nodes, and must have equal sizes")
      ->type_name("FILE.safetensors")
      ->default_str("")
      ->allow_extra_args(false);
  command
      .add_option("--wire-seed", options.seed,
                  "seed of the requests that are drawn without --sample")
      ->type_name("N");
}

void AddVerifyOptions(CLI::App& command,
                      partitioner::VerifySplitOptions& options) {
  command.add_flag("--verify", options.verify,
                   "run the plan, its alternatives and forced cuts with a CN "
                   "and an HN on this machine, and compare with the "
                   "prediction; the HN's hardware is then --cn's unless --hn "
                   "says otherwise");
  command
      .add_option("--verify-cuts", options.forced_cuts,
                  "for --verify: forced cuts beside the alternatives")
      ->type_name("N");
  command
      .add_option("--verify-rounds", options.run.rounds,
                  "for --verify: number of rounds; in each, every cut serves "
                  "one untimed and four timed requests")
      ->type_name("N");
  AddNodeOptions(command, options.run.nodes);
}

absl::Status RefuseIgnored(const CLI::App& command, const PartitionUses& uses) {
  struct Group {
    bool used;
    std::string why;
    std::vector<const char*> options;
  };
  const std::vector<Group> groups = {
      {uses.costs,
       absl::StrCat("--method ", uses.method,
                    " compares no costs; --method optimal, --report and "
                    "--verify do"),
       {"--objective", "--cn", "--hn", "--cn-profile", "--hn-profile",
        "--calibration", "--link-gbps", "--link-latency-us", "--cn-cores",
        "--hn-table-mib", "--cn-price", "--hn-price", "--gb-price",
        "--max-cuts"}},
      {uses.cuts,
       "forced cuts are made for --report, --verify, and --json with --method "
       "optimal",
       {"--forced-cuts"}},
      {uses.verify,
       "only --verify starts nodes",
       {"--verify-cuts", "--verify-rounds", "--transport", "--node-programs"}},
      {uses.draws,
       "no request is drawn: --wire-dtype, --wire-error-bound and --verify "
       "draw "
       "requests where --sample gives none",
       {"--wire-seed"}}};
  for (const Group& group : groups) {
    if (group.used) continue;
    for (const char* option : group.options) {
      if (command.count(option) == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": has no effect here: ", group.why));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::tools
