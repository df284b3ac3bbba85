#ifndef REFRACT_CPU_NODE_DISCOVERY_NODE_SOURCE_H_
#define REFRACT_CPU_NODE_DISCOVERY_NODE_SOURCE_H_

// Sources of the GPU nodes' addresses: the entries of --gpu-nodes.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::cpu_node {

// One entry of --gpu-nodes.
struct NodeSource {
  enum class Kind {
    kFixed,      // HOST:PORT
    kAddresses,  // dns:NAME:PORT, the A or AAAA records of NAME
    kServices,   // srv:NAME, SRV records, which have ports
    kFile,       // file:PATH, an address per line
  };
  Kind kind = Kind::kFixed;
  std::string text;  // text of the entry as given
  std::string name;  // address, DNS name or path
  int port = 0;      // kAddresses only
};

// InvalidArgument says what is wrong. HOST:PORT wins where an entry can be read
// in two ways: "srv:8100" is port 8100 of the host "srv".
absl::StatusOr<NodeSource> ParseNodeSource(absl::string_view text);

// The addresses in the text of a file: HOST:PORT, one per line. Blank lines and
// comments after '#' are skipped, repeated addresses are merged.
// InvalidArgument names the line without a valid address. NotFound: no address.
absl::StatusOr<std::vector<std::string>> ParseNodeFile(absl::string_view text);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISCOVERY_NODE_SOURCE_H_
