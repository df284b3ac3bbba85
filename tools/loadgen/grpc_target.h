#ifndef REFRACT_TOOLS_LOADGEN_GRPC_TARGET_H_
#define REFRACT_TOOLS_LOADGEN_GRPC_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/tensor.h"
#include "tools/loadgen/open_loop.h"
#include "tools/loadgen/served_model.h"

namespace refract::loadgen {

// Sums over a model's requests as the server counted them (ModelStatistics).
struct ServerTimes {
  uint64_t requests = 0;
  absl::Duration queue, before, remote, after;
};

// The answer to one query, kept because it was asked for.
struct RecordedResponse {
  std::vector<std::string> names;  // of the outputs
  std::vector<base::Tensor> outputs;
};

// A server that speaks KServe v2 over gRPC. Requests are encoded by Prepare(),
// before the run; Issue() only hands bytes to gRPC.
//
// One thread calls everything here; answers arrive on a thread of its own.
class GrpcTarget : public SystemUnderTest {
 public:
  struct Options {
    std::string address;  // HOST:PORT
    int connections = 4;  // ≥ 1; queries take them in turn
    absl::Duration connect_timeout = absl::Seconds(10);
  };

  // Unavailable when no connection is made in time.
  static absl::StatusOr<std::unique_ptr<GrpcTarget>> Connect(
      const Options& options, base::Clock& clock);

  // Every query must have been answered.
  ~GrpcTarget() override = default;

  // Waits for the model to be ready, then asks for its metadata and
  // configuration. Unavailable when it is not ready within `timeout`; else the
  // server's own error (kNotFound for an unknown model).
  virtual absl::StatusOr<ServedModel> DescribeModel(const std::string& name,
                                                    const std::string& version,
                                                    absl::Duration timeout) = 0;

  // Unimplemented when the server keeps no statistics.
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

#endif  // REFRACT_TOOLS_LOADGEN_GRPC_TARGET_H_
