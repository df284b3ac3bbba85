#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_CONNECT_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_CONNECT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/session.pb.h"
#include "tools/transport_bench/subject.h"
#include "transport/loop/fd.h"
#include "transport/paths/path_resources.h"
#include "transport/loop/waker.h"

namespace refract::transport_bench {

// What paths are made over.
struct Connection {
  transport::UniqueFd socket;  // invalid where descriptors say all
  // Of this side's one thread; outlives the path.
  std::unique_ptr<transport::PathResources> resources;
  std::shared_ptr<transport::ThreadWaker> waker;  // resources->waker
};
// As in transport::MakePath. Both sides call it.
absl::StatusOr<Connection> ConnectPath(const Setup& setup,
                                       proto::TransportPath path,
                                       const std::string& rdma_device);

// One end of a fresh connection between the processes, non-blocking: a unix
// stream socket if `local`, else TCP over the loopback interface. Both sides
// call it.
absl::StatusOr<transport::UniqueFd> Connect(const Setup& setup, bool local);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_CONNECT_H_
