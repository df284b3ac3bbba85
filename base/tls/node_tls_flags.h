#ifndef REFRACT_BASE_TLS_NODE_TLS_FLAGS_H_
#define REFRACT_BASE_TLS_NODE_TLS_FLAGS_H_

#include <string>

#include "CLI/CLI.hpp"
#include "base/tls/tls_contexts.h"

namespace refract::base {

// Flags of both daemons for TLS between nodes (docs/how-to/security.md).
// `peers`: for the help, the nodes at the other end.
inline void AddNodeTlsFlags(CLI::App& app, TlsFiles& files,
                            const std::string& peers) {
  files.certificate_flag = "--node-tls-cert";
  files.key_flag = "--node-tls-key";
  files.roots_flag = "--node-tls-ca";
  CLI::Option* const certificate =
      app.add_option(files.certificate_flag, files.certificate,
                     "Connections with " + peers +
                         " use TLS 1.3 and nothing else; both ends show "
                         "certificates. This node's certificate, PEM, with the "
                         "chain to its root; a changed file is read again "
                         "(docs/how-to/security.md)")
          ->type_name("FILE");
  CLI::Option* const key = app.add_option(files.key_flag, files.key,
                                          "Private key of --node-tls-cert, PEM")
                               ->needs(certificate)
                               ->type_name("FILE");
  CLI::Option* const roots =
      app.add_option(files.roots_flag, files.roots,
                     "Roots of the certificates of " + peers + ", PEM")
          ->needs(certificate)
          ->type_name("FILE");
  certificate->needs(key)->needs(roots);
}

}  // namespace refract::base

#endif  // REFRACT_BASE_TLS_NODE_TLS_FLAGS_H_
