#ifndef REFRACT_TRANSPORT_PATHS_PATH_RESOURCES_H_
#define REFRACT_TRANSPORT_PATHS_PATH_RESOURCES_H_

#include <memory>

#include "transport/loop/waker.h"
#include "transport/pulls/pull_scheduler.h"
#include "transport/verbs/factory.h"

namespace refract::transport {

// State that the links of a polling thread share: made with its PollLoop,
// passed to every path that is set up for that thread, and destroyed after the
// paths. A path is set up on another thread (the handshake's) while the polling
// thread runs other paths, so what paths use here must be safe for that.
struct PathResources {
  // Wakes the polling thread.
  std::shared_ptr<Waker> waker;
  // For the polling thread only. Null: every link has its own scheduler.
  std::unique_ptr<PullScheduler> pulls;
  // Completion queues of RDMA devices. Null: no verbs paths.
  std::shared_ptr<verbs::PollGroup> verbs;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_PATH_RESOURCES_H_
