#ifndef REFRACT_CPU_NODE_HTTP_SERVICE_H_
#define REFRACT_CPU_NODE_HTTP_SERVICE_H_

// KServe v2 over HTTP as values: requests in, answers out, without sockets.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/process/byte_budget.h"
#include "cpu_node/control/model_control.h"
#include "cpu_node/engine.h"
#include "cpu_node/http/body.h"
#include "cpu_node/http/compression.h"
#include "cpu_node/http/route.h"
#include "cpu_node/security/access.h"

namespace refract::cpu_node {

struct HttpRequest {
  std::string method;  // "GET"
  std::string target;  // path and query as received
  std::string content_encoding;
  std::string accept_encoding;
  std::string authorization;
  std::string traceparent;  // W3C's header, if the service traces()
  // Value of Inference-Header-Content-Length as received.
  std::optional<std::string> json_bytes;
  std::optional<HttpBody> body;  // none: empty
};

struct HttpAnswer {
  int status = 200;
  std::string content_type;  // empty: no body
  std::string body;
  // Inference-Header-Content-Length, where bytes follow the JSON.
  std::optional<size_t> json_bytes;
  ContentCoding coding = ContentCoding::kIdentity;  // of `body`
  std::string allow;                                // for 405
  // Memory of the body; held until the client has it or is gone.
  base::ByteBudget::Hold memory;
};

// {"error": …} with the HTTP status of `status`:
//   InvalidArgument, FailedPrecondition   400
//   Unauthenticated                       401
//   PermissionDenied                      403
//   NotFound                              404
//   OutOfRange (a body over the limit)    413
//   ResourceExhausted                     429
//   Cancelled                             499
//   Unimplemented                         501
//   Unavailable                           503
//   DeadlineExceeded                      504
//   others                                500
HttpAnswer ErrorAnswer(const absl::Status& status);
// An error with the given HTTP status.
HttpAnswer ErrorAnswer(int http_status, absl::string_view text);

// Thread-safe.
class HttpService {
 public:
  // `engine` and `memory` must outlive every request. Bodies may
  // have `max_body_bytes` after decompression. `memory` holds
  // decoded requests and answers. Null `control`: clients may
  // not change models. Null `access`: every client may do
  // everything.
  HttpService(Engine* engine, ModelControl* control,
              const AccessControl* access, base::ByteBudget* memory,
              size_t max_body_bytes)
      : engine_(*engine),
        control_(control),
        access_(access),
        memory_(*memory),
        max_body_bytes_(max_body_bytes) {}

  // Whether a request with this head may be handled: AccessControl::Check().
  // Passes requests that Handle() will refuse by their target.
  absl::Status CheckAccess(bool get, absl::string_view target,
                           absl::string_view authorization) const;

  // Calls `done` exactly once, on this thread or on a thread of the engine's or
  // the control's, where it must not block. `cancel`: the client has given up
  // the request.
  using Done = std::function<void(HttpAnswer answer)>;
  void Handle(HttpRequest request, std::stop_token cancel, const Done& done);

  // Whether Handle() may compute for milliseconds before it calls the engine:
  // much JSON, or bytes to decompress.
  static bool IsLong(const HttpRequest& request);

  // Compresses the answer's body if `accept_encoding` asks for it and the body
  // is long enough to gain. IsLong() tells whether that takes milliseconds.
  static void CompressFor(absl::string_view accept_encoding,
                          HttpAnswer& answer);
  static bool IsLong(absl::string_view accept_encoding,
                     const HttpAnswer& answer);

  // Whether connections must look for a traceparent.
  bool traces() const { return engine_.traces(); }

  // Inference requests that have arrived so far.
  uint64_t infer_calls() const {
    return infer_calls_.load(std::memory_order_relaxed);
  }

 private:
  void Infer(HttpRequest request, const Route& route, std::stop_token cancel,
             const Done& done);
  absl::StatusOr<HttpAnswer> AnswerShort(const Route& route,
                                         const HttpRequest& request);
  // RepositoryModelLoad and RepositoryModelUnload.
  template <typename Request>
  void ChangeModel(const Route& route, const HttpRequest& request,
                   const Done& done);
  absl::StatusOr<HttpAnswer> AnswerIndex(const HttpRequest& request);
  absl::StatusOr<HttpAnswer> AnswerTraceSetting(const Route& route,
                                                const HttpRequest& request);

  Engine& engine_;
  ModelControl* const control_;
  const AccessControl* const access_;
  base::ByteBudget& memory_;
  const size_t max_body_bytes_;
  std::atomic<uint64_t> infer_calls_ = 0;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_HTTP_SERVICE_H_
