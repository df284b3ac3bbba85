#ifndef REFRACT_TOOLS_LOADGEN_TARGETS_TARGET_H_
#define REFRACT_TOOLS_LOADGEN_TARGETS_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "tools/loadgen/open_loop.h"
#include "tools/loadgen/served_model.h"

namespace refract::loadgen {

// Sums over a model's requests as the servers counted them (ModelStatistics).
struct ServerTimes {
  uint64_t requests = 0;
  absl::Duration queue, before, remote, after;
};

// The answer to one query, kept for --record.
struct RecordedResponse {
  std::vector<std::string> names;  // of the outputs
  std::vector<base::Tensor> outputs;
};

// Where the load goes, and as whom.
struct TargetOptions {
  // HOST:PORT each, at least one. All serve the same model; queries take them
  // in turn, statistics are summed up.
  std::vector<std::string> addresses;
  int connections = 4;  // ≥ 1, to each address; queries take them in turn
  absl::Duration connect_timeout = absl::Seconds(10);
  // TLS, where `tls`. PEM texts: roots that vouch for the servers (empty: those
  // of this machine), the client's certificate and its key (empty: none).
  bool tls = false;
  std::string roots, certificate, key;
  // Sent as "authorization: Bearer TOKEN"; empty: none.
  std::string token;
};

// Servers that speak KServe v2. Requests are encoded by Prepare(), before the
// run; Issue() only hands bytes to the connection.
//
// One thread calls everything here; answers arrive on a thread of the target.
// Every query must have been answered before it is destroyed.
class Target : public SystemUnderTest {
 public:
  // Waits for the model to be ready at every address, then asks the first for
  // its metadata and configuration. Unavailable when it is not ready within
  // `timeout`; else the server's own error (kNotFound for an unknown model).
  virtual absl::StatusOr<ServedModel> DescribeModel(const std::string& name,
                                                    const std::string& version,
                                                    absl::Duration timeout) = 0;

  // Unimplemented when a server keeps no statistics.
  virtual absl::StatusOr<ServerTimes> Statistics(const ServedModel& model) = 0;

  // Encodes a request, `tensors` in the order of the model's inputs, and
  // returns its size in bytes. It gets the next index from 0.
  virtual size_t Prepare(const ServedModel& model,
                         absl::Span<const base::Tensor> tensors) = 0;

  // Responses to the requests [0, count) are kept from now on, the last of
  // each.
  virtual void Record(size_t count) = 0;
  // InvalidArgument when the response is not what KServe v2 prescribes,
  // NotFound when there was none.
  virtual absl::StatusOr<RecordedResponse> Recorded(size_t request) const = 0;

  // Between runs only: bytes of all successful responses, their number, and
  // the first message seen with each error.
  struct Answers {
    uint64_t bytes = 0;
    uint64_t count = 0;
    std::map<absl::StatusCode, std::string> first_errors;
  };
  // Returns them and begins anew.
  virtual Answers TakeAnswers() = 0;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_TARGETS_TARGET_H_
