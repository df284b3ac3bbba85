#include "transport/paths/locality.h"

#include <glog/logging.h>

#include "base/process/affinity.h"

namespace refract::transport {

void BindPollingThread(const Locality& locality) {
  if (locality.cpus.empty()) return;
  const absl::Status status = base::RunOn(locality.cpus);
  LOG_IF(WARNING, !status.ok())
      << "a polling thread runs on any CPU: " << status.message();
}

}  // namespace refract::transport
