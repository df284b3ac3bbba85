#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "metrics/client.h"
#include "nlohmann/json.hpp"
#include "tools/command.h"
#include "tools/status/fleet.h"

namespace refract::tools {
namespace {

constexpr absl::Duration kNodeTimeout = absl::Seconds(3);
// Time over which a single report measures rates.
constexpr absl::Duration kFirstInterval = absl::Milliseconds(500);

struct StatusOptions {
  std::vector<std::string> addresses;
  std::string json;
  bool watch = false;
  double interval_s = 2;
};

// Asks nodes again and again.
class Fleet {
 public:
  explicit Fleet(const std::vector<std::string>& addresses)
      : addresses_(addresses), seen_(addresses.size()) {}

  // Asks all nodes at once: a node that does not answer delays no other node.
  std::vector<NodeReport> Look() {
    std::vector<NodeReport> reports(addresses_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < addresses_.size(); ++i) {
      threads.emplace_back([this, i, &reports] { LookAt(i, reports[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    return reports;
  }

 private:
  struct Seen {
    absl::Time at = absl::InfinitePast();
    NodeCounts counts;
  };

  void LookAt(size_t i, NodeReport& report) {
    report.address = addresses_[i];
    const absl::StatusOr<metrics::Reply> reply = metrics::Request(
        report.address, /*changes=*/false, "/status", kNodeTimeout);
    const absl::Time now = base::Clock::Real().Now();
    if (!reply.ok()) {
      report.error = reply.status();
      if (absl::IsFailedPrecondition(report.error)) {
        report.error = absl::FailedPreconditionError(absl::StrCat(
            report.error.message(),
            "; HOST:PORT is where the node serves its metrics, "
            "--metrics-port"));
      }
    } else if (reply->status != 200) {
      report.error = absl::FailedPreconditionError(
          absl::StrCat("/status: HTTP status ", reply->status));
    } else {
      report.error = CheckNodeStatus(reply->body);
    }
    Seen& seen = seen_[i];
    if (!report.error.ok()) {
      seen.at = absl::InfinitePast();
      return;
    }
    report.status = reply->body;
    const NodeCounts counts = CountsOf(report.status);
    // Counts that went back: the process restarted, and the difference means
    // nothing.
    if (seen.at != absl::InfinitePast() &&
        counts.succeeded >= seen.counts.succeeded &&
        counts.failed >= seen.counts.failed) {
      report.since = now - seen.at;
      report.before = seen.counts;
    }
    seen = {now, counts};
  }

  const std::vector<std::string>& addresses_;
  std::vector<Seen> seen_;
};

absl::Status Show(const StatusOptions& options, std::ostream& out) {
  Fleet fleet(options.addresses);
  // The first look starts the counts that rates need, and finds addresses that
  // are no HOST:PORT; other errors may be gone at the second look.
  for (const NodeReport& report : fleet.Look()) {
    if (absl::IsInvalidArgument(report.error)) return report.error;
  }
  absl::SleepFor(kFirstInterval);
  const bool terminal = &out == &std::cout && isatty(STDOUT_FILENO) == 1;
  while (true) {
    const nlohmann::ordered_json json = FleetJson(fleet.Look());
    const std::string text = base::FormatJson(json, 2) + "\n";
    if (!options.json.empty() && options.json != "-") {
      const absl::Status written = base::ReplaceText(options.json, text);
      if (!written.ok()) return written;
    }
    if (options.json == "-") {
      out << text;
    } else {
      // Cursor to the top left, then clear the screen.
      if (options.watch && terminal) out << "\x1b[H\x1b[2J";
      PrintFleet(json, out);
    }
    out.flush();
    if (!options.watch) {
      const size_t problems = json["problems"].size();
      return problems == 0 ? absl::OkStatus()
                           : absl::AbortedError(absl::StrCat(
                                 problems, " problem(s), see above"));
    }
    absl::SleepFor(absl::Seconds(options.interval_s));
  }
}

}  // namespace

void AddStatusCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* const command = app.add_subcommand(
      "status",
      "Shows CPU nodes and GPU nodes, their models, versions, connections and "
      "load, and what is wrong; exit status 1 when something is");
  command
      ->add_option("addresses", options->addresses,
                   "metrics ports (--metrics-port) of CPU nodes and GPU nodes")
      ->type_name("HOST:PORT")
      ->required();
  command
      ->add_option("--json", options->json,
                   "also write the report as JSON to this file; -: JSON on "
                   "stdout in place of the tables")
      ->type_name("FILE")
      ->check([](const std::string& path) {
        return path == "-" ? "" : base::CheckOutputFile(path);
      });
  command->add_flag("--watch", options->watch, "repeat the report until ^C");
  command
      ->add_option("--interval", options->interval_s,
                   "time between two reports of --watch")
      ->type_name("SECONDS")
      ->check(base::NumberIn(0.1, 3600));
  SetAction(*command, context,
            [&context, options] { return Show(*options, context.out); });
}

}  // namespace refract::tools
