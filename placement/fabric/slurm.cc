#include "placement/fabric/slurm.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "placement/fabric/fabric_file.h"

namespace refract::placement {
namespace {

// A line of topology.conf: a switch with hosts below it, or with switches.
struct Switch {
  int line = 0;
  std::vector<std::string> nodes;
  std::vector<std::string> switches;
  std::string above;  // empty: the top
};

absl::Status BadLine(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::Status ParseLine(absl::string_view text, int line,
                       std::map<std::string, Switch>* switches) {
  std::string name;
  Switch parsed;
  parsed.line = line;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const std::string key = absl::AsciiStrToLower(field.first);
    if (key == "switchname" || key == "blockname") {
      name = std::string(field.second);
    } else if (key == "nodes" || key == "switches") {
      absl::StatusOr<std::vector<std::string>> names =
          ExpandHostList(field.second);
      if (!names.ok()) return BadLine(line, names.status().message());
      (key == "nodes" ? parsed.nodes : parsed.switches) = *std::move(names);
    } else if (key == "blocksizes") {
      return absl::OkStatus();
    } else if (key != "linkspeed") {
      return BadLine(line,
                     absl::StrCat(field.first, " is no key of topology.conf"));
    }
  }
  if (name.empty()) return BadLine(line, "SwitchName or BlockName is missing");
  const auto [at, is_new] = switches->try_emplace(name, std::move(parsed));
  if (!is_new) {
    return BadLine(line, absl::StrCat("switch ", name, " is there twice (line ",
                                      at->second.line, ")"));
  }
  return absl::OkStatus();
}

// Sets the switch above of each switch.
absl::Status Connect(std::map<std::string, Switch>* switches) {
  for (const auto& [name, entry] : *switches) {
    for (const std::string& below : entry.switches) {
      const auto found = switches->find(below);
      if (found == switches->end()) {
        return BadLine(entry.line, absl::StrCat("there is no switch ", below));
      }
      if (!found->second.above.empty()) {
        return BadLine(entry.line,
                       absl::StrCat("switch ", below, " is already below ",
                                    found->second.above));
      }
      found->second.above = name;
    }
  }
  for (const auto& [name, entry] : *switches) {
    // A walk with more steps than switches has met one switch twice.
    size_t steps = 0;
    for (std::string at = name; !at.empty(); at = switches->at(at).above) {
      if (++steps > switches->size()) {
        return BadLine(entry.line, absl::StrCat("the switches above ", name,
                                                " form a cycle"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Fabric> ParseSlurmTopology(absl::string_view text) {
  std::map<std::string, Switch> switches;
  int line = 0;
  int first_line = 0;
  std::string joined;
  // The line end that is added ends a last line that a backslash continues.
  const std::string lines = absl::StrCat(text, "\n");
  for (absl::string_view part : absl::StrSplit(lines, '\n')) {
    ++line;
    part = part.substr(0, part.find('#'));
    part = absl::StripTrailingAsciiWhitespace(part);
    if (joined.empty()) first_line = line;
    // A backslash at its end joins a line with the next; errors name the first
    // line.
    const bool goes_on = absl::ConsumeSuffix(&part, "\\");
    absl::StrAppend(&joined, part, " ");
    if (goes_on) continue;
    const std::string whole(absl::StripAsciiWhitespace(joined));
    joined.clear();
    if (whole.empty()) continue;
    REFRACT_RETURN_IF_ERROR(ParseLine(whole, first_line, &switches));
  }
  REFRACT_RETURN_IF_ERROR(Connect(&switches));
  Fabric fabric;
  std::map<std::string, const std::string*> switch_of;  // by node
  for (const auto& [name, leaf] : switches) {
    const auto above = [&](const std::string& below) {
      return below.empty() ? std::string() : switches.at(below).above;
    };
    for (const std::string& node : leaf.nodes) {
      const auto [other, is_new] = switch_of.try_emplace(node, &name);
      if (!is_new && *other->second != name) {
        const Switch& first = switches.at(*other->second);
        return BadLine(
            std::max(leaf.line, first.line),
            absl::StrCat("node ", node, " is under two switches: ",
                         *other->second, " (line ", first.line, ") and ", name,
                         " (line ", leaf.line, ")"));
      }
      FabricHost host;
      host.name = node;
      // The switch of a host is its leaf, the switches above are pod, zone and
      // region.
      host.leaf = name;
      host.pod = above(host.leaf);
      host.zone = above(host.pod);
      host.region = above(host.zone);
      const absl::Status status = fabric.Add(std::move(host));
      if (!status.ok()) return BadLine(leaf.line, status.message());
    }
  }
  return fabric;
}

}  // namespace refract::placement
