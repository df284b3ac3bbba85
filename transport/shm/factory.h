#ifndef REFRACT_TRANSPORT_SHM_FACTORY_H_
#define REFRACT_TRANSPORT_SHM_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "transport/datapath.h"
#include "transport/loop/fd.h"

namespace refract::transport::shm {

// A DataPath between two processes of one machine. `socket`: a connected unix
// stream socket, used only by this path, which carries the descriptors of the
// shared memory and reveals the peer's death. The peer does the same with the
// other end. ResourceExhausted or Internal: no shared memory here.
absl::StatusOr<std::unique_ptr<DataPath>> CreateShmPath(UniqueFd socket);

}  // namespace refract::transport::shm

#endif  // REFRACT_TRANSPORT_SHM_FACTORY_H_
