#ifndef REFRACT_CPU_NODE_FRONTEND_DELTA_SERVICE_H_
#define REFRACT_CPU_NODE_FRONTEND_DELTA_SERVICE_H_

#include <cstddef>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cpu_node/engine.h"
#include "cpu_node/security/access.h"
#include "proto/deltas.grpc.pb.h"

namespace refract::cpu_node {

// Serves proto/deltas.proto from an Engine. Thread-safe.
//
// A delta is checked and written on a thread of its own, one at a time: another
// call meanwhile gets UNAVAILABLE.
class DeltaService final
    : public proto::Deltas::WithRawCallbackMethod_Append<
          proto::Deltas::Service> {
 public:
  struct Options {
    bool allowed = false;  // false: all calls are refused
    std::string folder;    // ServedModelOptions::deltas_folder
    size_t max_request_bytes = 0;
  };
  // `engine` and `access`, which may be null, must outlive every call.
  DeltaService(const Engine* engine, const AccessControl* access,
               Options options)
      : engine_(*engine), access_(access), options_(std::move(options)) {}
  ~DeltaService() override;

  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* answer) override;

 private:
  absl::Status Answer(const grpc::ByteBuffer& request,
                      grpc::ByteBuffer& answer) const;

  const Engine& engine_;
  const AccessControl* const access_;
  const Options options_;
  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_DELTA_SERVICE_H_
