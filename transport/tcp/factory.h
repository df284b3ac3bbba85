#ifndef REFRACT_TRANSPORT_TCP_FACTORY_H_
#define REFRACT_TRANSPORT_TCP_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "transport/datapath.h"
#include "transport/loop/stream.h"

namespace refract::transport::tcp {

// A DataPath over a connected stream, used only by this path. The peer
// does the same with the other end.
absl::StatusOr<std::unique_ptr<DataPath>> CreateTcpPath(Stream socket);

}  // namespace refract::transport::tcp

#endif  // REFRACT_TRANSPORT_TCP_FACTORY_H_
