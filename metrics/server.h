#ifndef REFRACT_METRICS_SERVER_H_
#define REFRACT_METRICS_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "metrics/exposition.h"
#include "metrics/flags.h"

namespace refract::metrics {

// A target besides /metrics, for probes and operators.
struct Route {
  struct Answer {
    int status = 200;  // of HTTP
    std::string type = "application/json";
    std::string body;
  };
  std::string target;  // "/status"
  // True: the route changes something, by POST; else it answers GET.
  bool changes = false;
  // Called on the server's thread, must be quick.
  std::function<Answer()> answer;
  // Instead of `answer`, for a route that takes a body of at most
  // `most_body_bytes`. Other routes refuse bodies.
  std::function<Answer(const std::string& body)> answer_body = nullptr;
  uint64_t most_body_bytes = 0;
};

struct Routes {
  std::vector<Route> routes;
  // Routes that change something answer clients on other machines, too, but
  // never pages in a browser: requests with an Origin are refused.
  bool remote_changes = false;
  std::string remote_flag;  // the flag that allows it, for the refusal
};

// Answers GET /metrics in Prometheus's text format, and other routes, on its
// own thread: requests come one after another. Thread-safe.
class Server {
 public:
  // Adds all metrics of the process. Called on the server's thread.
  using Collect = std::function<void(Exposition&)>;

  // Listens before it returns. Unavailable names host:port if the port is taken
  // or the address is not of this machine; InvalidArgument: the host is no IP
  // address. `port` 0: any free port.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const std::string& host,
                                                        int port,
                                                        Collect collect,
                                                        Routes routes = {});
  // Waits for a scrape under way; nothing is collected afterwards.
  ~Server();

  int port() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The server that a daemon's flags ask for; null if they ask for none. A port
// that is taken is an error if the user named the port. For the default port it
// is a warning in the log, and there is no server, so that several nodes can run
// on a machine without flags.
absl::StatusOr<std::unique_ptr<Server>> Serve(const Flags& flags,
                                              Server::Collect collect,
                                              Routes routes = {});

// Prints the address of `server`, which may be null, on stdout; after the line
// with the address for requests, which programs read from the first line.
void PrintAddress(absl::string_view program, const Flags& flags,
                  const Server* server);

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_SERVER_H_
