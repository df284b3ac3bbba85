#ifndef REFRACT_CPU_NODE_REQUEST_H_
#define REFRACT_CPU_NODE_REQUEST_H_

// A request and its answer in plain C++, as front ends decode and encode
// them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "base/tensor.h"
#include "cpu_node/security/client_quota.h"
#include "tracing/trace.h"

namespace refract::cpu_node {

struct InputTensor {
  std::string name;
  base::Tensor tensor;
};

struct InferRequest {
  // Longest `id`; a UUID has 36 bytes. Front ends cut longer ids.
  static constexpr size_t kMaxIdBytes = 64;

  std::string model_name;
  std::string model_version;  // decimal; empty: newest served version
  // The client's name for the request, for logs of this node and of GPU nodes.
  // Empty: none. At most kMaxIdBytes.
  std::string id;
  std::vector<InputTensor> inputs;   // in any order
  std::vector<std::string> outputs;  // wanted, in this order; empty: all
  // On the engine's clock.
  absl::Time deadline = absl::InfiniteFuture();
  // As Triton's parameter: 1 goes first; 0, or a level that the model does not
  // have: the model's default.
  uint64_t priority = 0;
  // Time at which its bytes were complete, on the engine's clock; for the time
  // of decoding. InfinitePast: it was not decoded.
  absl::Time received = absl::InfinitePast();
  // A stop is requested, from any thread and at any time, when the client gives
  // up the request. The request then soon ends with Cancelled; the GPU node is
  // told if it has the request. Empty: no stop will come.
  std::stop_token cancel;
  // Set by Tracer::Begin(), if Engine::traces().
  tracing::RequestContext trace;
  // Budget of the bytes of `inputs`, returned with them.
  base::ByteBudget::Hold memory;
  // Place in the quota of the client, given back with the request.
  ClientQuota::Hold quota;
};

// Valid during the callback that receives it.
struct InferResponse {
  struct Output {
    absl::string_view name;
    base::TensorView tensor;
  };
  absl::string_view model_name;
  int64_t model_version = 0;
  // Delta whose state of the tables the answer uses, of several shards the
  // oldest; 0: no delta.
  int64_t delta_sequence = 0;
  // Differences from the answer of a healthy node: further attempts at GPU
  // nodes after failures; an attempt at a second GPU node because the first
  // was slow; a split model that ran as a whole on this node; ids replaced by the
  // id policy; ids whose rows a lost shard has, taken as zeros; and the version that should have answered if an older version
  // did because that version is not ready (0: the right version answered).
  int retries = 0;
  bool hedged = false;
  bool ran_locally = false;
  uint64_t replaced_ids = 0;
  uint64_t lost_ids = 0;
  int64_t newest_version = 0;
  std::vector<Output> outputs;
};

// Calls `add(name, value)` for each parameter of an answer, in both front ends.
// Values of 0 and false are omitted. `value`: int64_t or bool.
template <typename Add>
void ForEachParameter(const InferResponse& response, const Add& add) {
  if (response.delta_sequence > 0) {
    add("delta_sequence", response.delta_sequence);
  }
  if (response.retries > 0) add("retries", int64_t{response.retries});
  if (response.hedged) add("hedged", true);
  if (response.ran_locally) add("ran_locally", true);
  if (response.replaced_ids > 0) {
    add("replaced_ids", static_cast<int64_t>(response.replaced_ids));
  }
  if (response.lost_ids > 0) {
    add("lost_ids", static_cast<int64_t>(response.lost_ids));
  }
  if (response.newest_version > 0) {
    add("newest_version", response.newest_version);
  }
}

// Bytes of the tensors.
inline size_t BytesOf(const InferRequest& request) {
  size_t bytes = 0;
  for (const InputTensor& input : request.inputs) {
    bytes += input.tensor.bytes();
  }
  return bytes;
}
inline size_t BytesOf(const InferResponse& response) {
  size_t bytes = 0;
  for (const InferResponse::Output& output : response.outputs) {
    bytes += output.tensor.bytes;
  }
  return bytes;
}

// Runs exactly once, on a thread of the engine, and must not block.
using InferCallback =
    std::function<void(const absl::StatusOr<InferResponse>& response)>;

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_REQUEST_H_
