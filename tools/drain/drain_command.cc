#include <memory>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/number_range.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "metrics/client.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"

namespace refract::tools {
namespace {

// Timeout of an HTTP request.
constexpr absl::Duration kTimeout = absl::Seconds(5);
// CPU nodes learn of the drain within milliseconds. A request that a CPU node
// had sent before may arrive after a first poll that saw no requests, hence the
// second poll.
constexpr absl::Duration kLook = absl::Milliseconds(200);

struct DrainOptions {
  std::string address;
  double timeout_s = 30;
};

// The status in the answer of a GPU node.
absl::StatusOr<nlohmann::json> Ask(const std::string& address, bool changes,
                                   absl::string_view target) {
  REFRACT_ASSIGN_OR_RETURN(
      const metrics::Reply reply,
      metrics::Request(address, changes, target, kTimeout));
  if (reply.status != 200) {
    return absl::FailedPreconditionError(
        absl::StrCat(address, target, ": ", reply.status, ", ",
                     base::Shorten(absl::StripAsciiWhitespace(reply.body))));
  }
  nlohmann::json status = base::ParseJson(reply.body);
  if (!status.is_object() || !status.contains("state") ||
      !status["state"].is_string() || !status.contains("requests_pending") ||
      !status["requests_pending"].is_number_unsigned()) {
    return absl::FailedPreconditionError(absl::StrCat(
        address, target,
        ": is no status of a GPU node; HOST:PORT is where the node serves its "
        "metrics, --metrics-port, 8102 by default"));
  }
  return status;
}

absl::Status Drain(const DrainOptions& options, std::ostream& out) {
  REFRACT_RETURN_IF_ERROR(Ask(options.address, true, "/drain").status());
  base::Clock& clock = base::Clock::Real();
  const absl::Time begin = clock.Now();
  int idle_looks = 0;
  while (true) {
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(kLook));
    REFRACT_ASSIGN_OR_RETURN(const nlohmann::json status,
                             Ask(options.address, false, "/status"));
    if (status["state"] == "serving") {
      return absl::AbortedError(
          absl::StrCat(options.address,
                       ": another command put the node into service again"));
    }
    const auto pending = status["requests_pending"].get<uint64_t>();
    idle_looks = pending == 0 ? idle_looks + 1 : 0;
    const absl::Duration taken = clock.Now() - begin;
    if (idle_looks == 2) {
      out << absl::StreamFormat("%s is drained after %.1f s\n", options.address,
                                absl::ToDoubleSeconds(taken));
      return absl::OkStatus();
    }
    if (taken >= absl::Seconds(options.timeout_s)) {
      return absl::DeadlineExceededError(absl::StrCat(
          options.address, ": ", pending,
          " request(s) are still under way; the node stays drained"));
    }
  }
}

absl::Status Undrain(const DrainOptions& options, std::ostream& out) {
  REFRACT_RETURN_IF_ERROR(Ask(options.address, true, "/undrain").status());
  out << options.address << " serves again\n";
  return absl::OkStatus();
}

CLI::App* AddCommand(CLI::App& app, const char* name, const char* what,
                     DrainOptions& options) {
  CLI::App* const command = app.add_subcommand(name, what);
  command
      ->add_option("address", options.address,
                   "metrics port of the node (--metrics-port); commands from "
                   "another machine need its --metrics-host and --remote-drain")
      ->type_name("HOST:PORT")
      ->required();
  return command;
}

}  // namespace

void AddDrainCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<DrainOptions>();
  CLI::App* const command =
      AddCommand(app, "drain",
                 "Takes a GPU node out of service: CPU nodes send it no more "
                 "requests; returns when the requests under way have ended",
                 *options);
  command
      ->add_option(
          "--timeout", options->timeout_s,
          "longest wait for requests under way; the node stays drained")
      ->type_name("SECONDS")
      ->check(base::NumberIn(0, 86400));
  SetAction(*command, context,
            [&context, options] { return Drain(*options, context.out); });
}

void AddUndrainCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<DrainOptions>();
  AddCommand(app, "undrain", "Puts a drained GPU node into service again",
             *options)
      ->callback([&context, options] {
        context.action = [&context, options] {
          return Undrain(*options, context.out);
        };
      });
}

}  // namespace refract::tools
