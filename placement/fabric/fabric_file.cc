#include "placement/fabric/fabric_file.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/fabric/kubernetes_node.h"
#include "placement/fabric/slurm.h"
#include "placement/topology/json_text.h"

namespace refract::placement {
namespace {

using Json = nlohmann::json;

// Lines "HOST leaf=L pod=P zone=Z region=R address=A,B"; '#' begins a comment.
absl::StatusOr<Fabric> ParsePlain(absl::string_view text) {
  Fabric fabric;
  int line = 0;
  for (absl::string_view part : absl::StrSplit(text, '\n')) {
    ++line;
    const auto bad = [line](absl::string_view what) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line, ": ", what));
    };
    part = part.substr(0, part.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(part, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    FabricHost host;
    host.name = std::string(words[0]);
    if (absl::StrContains(host.name, "=")) {
      return bad(absl::StrCat("begins with ", host.name,
                              " in place of a host's name"));
    }
    for (size_t i = 1; i < words.size(); ++i) {
      const std::pair<std::string, std::string> field =
          absl::StrSplit(words[i], absl::MaxSplits('=', 1));
      if (field.second.empty()) {
        return bad(absl::StrCat(words[i], " is no KEY=VALUE"));
      }
      if (field.first == "address") {
        host.addresses = absl::StrSplit(field.second, ',', absl::SkipEmpty());
        continue;
      }
      std::string* const domain = field.first == "leaf"     ? &host.leaf
                                  : field.first == "pod"    ? &host.pod
                                  : field.first == "zone"   ? &host.zone
                                  : field.first == "region" ? &host.region
                                                            : nullptr;
      if (domain == nullptr) {
        return bad(absl::StrCat(field.first,
                                " is none of leaf, pod, zone, "
                                "region, address"));
      }
      if (!domain->empty()) {
        return bad(absl::StrCat(field.first, " is there twice"));
      }
      *domain = field.second;
    }
    const absl::Status status = fabric.Add(std::move(host));
    if (!status.ok()) return bad(status.message());
  }
  return fabric;
}

absl::StatusOr<Fabric> ParseKubernetes(absl::string_view text) {
  REFRACT_ASSIGN_OR_RETURN(const Json json, ParseJsonText(text));
  const auto items = json.find("items");
  if (items == json.end() || !items->is_array()) {
    return absl::InvalidArgumentError(
        "items: is no list; expected is the output of kubectl get nodes -o "
        "json");
  }
  Fabric fabric;
  for (size_t i = 0; i < items->size(); ++i) {
    absl::StatusOr<FabricHost> host = HostFromNode((*items)[i]);
    const absl::Status status =
        host.ok() ? fabric.Add(*std::move(host)) : host.status();
    if (!status.ok()) {
      return base::Annotate(status, absl::StrCat("items[", i, "]"));
    }
  }
  return fabric;
}

// The first line that is no comment tells the form.
absl::StatusOr<Fabric> ParseAny(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (line[0] == '{') return ParseKubernetes(text);
    if (absl::StartsWithIgnoreCase(line, "SwitchName=") ||
        absl::StartsWithIgnoreCase(line, "BlockName=") ||
        absl::StartsWithIgnoreCase(line, "BlockSizes=")) {
      return ParseSlurmTopology(text);
    }
    return ParsePlain(text);
  }
  return Fabric();
}

}  // namespace

absl::StatusOr<Fabric> ParseFabric(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xef\xbb\xbf");  // byte order mark
  REFRACT_ASSIGN_OR_RETURN(Fabric fabric, ParseAny(text));
  if (fabric.hosts().empty()) {
    return absl::InvalidArgumentError("names no host");
  }
  return fabric;
}

absl::StatusOr<Fabric> LoadFabric(absl::string_view path) {
  REFRACT_ASSIGN_OR_RETURN(const std::string text, base::ReadText(path));
  absl::StatusOr<Fabric> fabric = ParseFabric(text);
  if (!fabric.ok()) return base::Annotate(fabric.status(), path);
  return fabric;
}

}  // namespace refract::placement
