#include "cpu_node/discovery/node_source.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/shorten.h"

namespace refract::cpu_node {
namespace {

// RFC 1035: 253 characters of text.
constexpr size_t kMaxNameLength = 253;

// Splits "NAME:PORT" into its parts.
bool Split(absl::string_view text, std::string* name, int* port) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  *name = std::string(text.substr(0, colon));
  return absl::SimpleAtoi(text.substr(colon + 1), port) && *port >= 1 &&
         *port <= 65535;
}

bool IsAddress(absl::string_view text) {
  std::string host;
  int port = 0;
  if (!Split(text, &host, &port)) return false;
  return std::none_of(text.begin(), text.end(), absl::ascii_isspace);
}

absl::Status CheckName(absl::string_view entry, absl::string_view name) {
  const bool plain = std::none_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isspace(c) || c == ':' || c == '/';
  });
  if (!name.empty() && name.size() <= kMaxNameLength && plain) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", base::Shorten(name, 128), "' in '",
                   base::Shorten(entry, 128), "' is no DNS name"));
}

}  // namespace

absl::StatusOr<NodeSource> ParseNodeSource(absl::string_view text) {
  NodeSource source;
  source.text = std::string(text);
  source.name = source.text;
  const size_t colon = text.find(':');
  const absl::string_view prefix = text.substr(0, colon);
  const absl::string_view rest =
      colon == absl::string_view::npos ? "" : text.substr(colon + 1);
  int port = 0;
  // "dns:8102" is a host named dns: a number after the prefix is a port.
  const bool other = (prefix == "dns" || prefix == "srv" || prefix == "file") &&
                     !absl::SimpleAtoi(rest, &port);
  absl::Status status;
  if (!other) {
    if (!IsAddress(text)) {
      status = absl::InvalidArgumentError(
          absl::StrCat("'", base::Shorten(text, 128),
                       "' is not HOST:PORT, dns:NAME:PORT, srv:NAME or "
                       "file:PATH"));
    }
  } else if (prefix == "dns") {
    source.kind = NodeSource::Kind::kAddresses;
    status =
        Split(rest, &source.name, &source.port)
            ? CheckName(text, source.name)
            : absl::InvalidArgumentError(absl::StrCat(
                  "'", base::Shorten(text, 128), "' is not dns:NAME:PORT"));
  } else if (prefix == "srv") {
    source.kind = NodeSource::Kind::kServices;
    source.name = std::string(rest);
    status = CheckName(text, source.name);
  } else {
    source.kind = NodeSource::Kind::kFile;
    source.name = std::string(rest);
    if (rest.empty()) {
      status = absl::InvalidArgumentError("'file:' names no file");
    }
  }
  if (!status.ok()) return status;
  return source;
}

absl::StatusOr<std::vector<std::string>> ParseNodeFile(absl::string_view text) {
  std::vector<std::string> addresses;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (!IsAddress(line)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": '",
                                                     base::Shorten(line, 128),
                                                     "' is not HOST:PORT"));
    }
    std::string address(line);
    if (std::find(addresses.begin(), addresses.end(), address) ==
        addresses.end()) {
      addresses.push_back(std::move(address));
    }
  }
  if (addresses.empty())
    return absl::NotFoundError("the file lists no GPU node");
  return addresses;
}

}  // namespace refract::cpu_node
