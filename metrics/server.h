#ifndef REFRACT_METRICS_SERVER_H_
#define REFRACT_METRICS_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "metrics/exposition.h"
#include "metrics/flags.h"

namespace refract::metrics {

// Answers GET /metrics in Prometheus's text format, on a thread of its own:
// scrapes come one after another. Thread-safe.
class Server {
 public:
  // Adds all metrics of the process. Called on the server's thread.
  using Collect = std::function<void(Exposition&)>;

  // Listens before it returns. Unavailable names host:port if the port is taken
  // or the address is not of this machine, InvalidArgument a host that is no IP
  // address. `port` 0: any free one.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const std::string& host,
                                                        int port,
                                                        Collect collect);
  // Waits for a scrape under way; nothing is collected afterwards.
  ~Server();

  int port() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The server that the flags of a daemon ask for; null if they ask for none. A
// taken port is an error if it was asked for, and a warning in the log, without
// a server, if it is the default: several nodes of one machine then serve all
// the same.
absl::StatusOr<std::unique_ptr<Server>> Serve(const Flags& flags,
                                              Server::Collect collect);

// A line on stdout with the address of `server`, which may be null. After the
// line with the address for requests: programs read that from the first line.
void PrintAddress(absl::string_view program, const Flags& flags,
                  const Server* server);

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_SERVER_H_
