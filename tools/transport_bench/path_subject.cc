#include "tools/transport_bench/path_subject.h"

#include <string>
#include <utility>

#include "base/status_macros.h"
#include "tools/transport_bench/connect.h"
#include "tools/transport_bench/path_session.h"
#include "transport/paths/paths.h"

namespace refract::transport_bench {
namespace {

class PathLevel : public Subject {
 public:
  PathLevel(proto::TransportPath path, std::string rdma_device)
      : path_(path), rdma_device_(std::move(rdma_device)) {}

  bool Supports(const Point& point) const override {
    return point.mode != Mode::kAdaptive && point.op != Op::kFanIn;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    REFRACT_ASSIGN_OR_RETURN(Connection connection,
                             ConnectPath(setup, path_, rdma_device_));
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<transport::DataPath> path,
        transport::MakePath(path_, std::move(connection.socket), /*peer=*/"",
                            connection.resources.get()));
    REFRACT_ASSIGN_OR_RETURN(
        std::unique_ptr<Session> session,
        PathSession::Create(std::move(connection.resources), std::move(path),
                            setup));
    return session;
  }

 private:
  const proto::TransportPath path_;
  const std::string rdma_device_;
};

}  // namespace

std::unique_ptr<Subject> PathSubject(proto::TransportPath path,
                                     const std::string& rdma_device) {
  return std::make_unique<PathLevel>(path, rdma_device);
}

}  // namespace refract::transport_bench
