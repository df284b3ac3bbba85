#include "cpu_node/frontend/delta_service.h"

#include <sys/resource.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/thread.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/catalog.h"
#include "cpu_node/embedding/delta_append.h"
#include "cpu_node/frontend/call.h"
#include "cpu_node/frontend/message.h"
#include "cpu_node/served_model.h"
#include "google/protobuf/io/coded_stream.h"
#include "models/deltas/delta.h"

namespace refract::cpu_node {
namespace {

// Niceness of the thread that applies deltas, too: requests go first.
constexpr int kDeltaNice = 10;

}  // namespace

DeltaService::~DeltaService() {
  std::thread last;
  {
    absl::MutexLock lock(&mu_);
    last = std::move(thread_);
  }
  if (last.joinable()) last.join();
}

grpc::ServerUnaryReactor* DeltaService::Append(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* answer) {
  const absl::Status access = CheckAccess(access_, Access::kControl, *context);
  if (!access.ok()) return FinishCall(context, access);
  if (!options_.allowed) {
    return FinishCall(context,
                      absl::PermissionDeniedError(
                          "the node takes no deltas over gRPC: it was started "
                          "without --deltas-by-request"));
  }
  absl::MutexLock lock(&mu_);
  if (busy_) {
    return FinishCall(context, absl::UnavailableError(
                                   "another delta is being written; try again"));
  }
  if (thread_.joinable()) thread_.join();  // has answered
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::StatusOr<std::thread> thread =
      base::StartThread([this, reactor, request, answer] {
        setpriority(PRIO_PROCESS, 0, kDeltaNice);  // of this thread: Linux
        const absl::Status status = Answer(*request, *answer);
        {
          absl::MutexLock done(&mu_);
          busy_ = false;
        }
        // The last step: the call's buffers end with it.
        reactor->Finish(ToGrpcStatus(status));
      });
  if (!thread.ok()) return FinishCall(context, thread.status());
  busy_ = true;
  thread_ = *std::move(thread);
  return reactor;
}

absl::Status DeltaService::Answer(const grpc::ByteBuffer& request,
                                  grpc::ByteBuffer& answer) const {
  proto::AppendDeltaRequest delta;
  REFRACT_RETURN_IF_ERROR(base::WithinMemory([&] {
    return ReadMessage(
        request,
        [&](google::protobuf::io::ZeroCopyInputStream& message) -> absl::Status {
          google::protobuf::io::CodedInputStream limited(&message);
          limited.SetTotalBytesLimit(static_cast<int>(options_.max_request_bytes));
          if (!delta.ParseFromCodedStream(&limited) ||
              !limited.ConsumedEntireMessage()) {
            return absl::InvalidArgumentError(
                absl::StrCat("no AppendDeltaRequest, or longer than ",
                             options_.max_request_bytes, " bytes"));
          }
          return absl::OkStatus();
        });
  }));
  REFRACT_ASSIGN_OR_RETURN(const models::DeltaManifest manifest,
                           models::ParseDeltaManifest(delta.manifest()));
  REFRACT_ASSIGN_OR_RETURN(
      const std::shared_ptr<const ServedModel> model,
      engine_.catalog()->Find(manifest.model, absl::StrCat(manifest.version)));
  if (model->deltas() == nullptr) {
    return absl::FailedPreconditionError(
        "the node was started with --no-deltas");
  }
  REFRACT_ASSIGN_OR_RETURN(
      const bool added,
      AppendDelta(*model, DeltaFolderOf(*model, options_.folder),
                  delta.manifest(), delta.rows()));
  proto::AppendDeltaResponse response;
  response.set_added(added);
  WriteMessage(response, answer);
  return absl::OkStatus();
}

}  // namespace refract::cpu_node
