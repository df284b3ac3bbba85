#ifndef REFRACT_TRANSPORT_VERBS_DEVICE_WC_STATUS_H_
#define REFRACT_TRANSPORT_VERBS_DEVICE_WC_STATUS_H_

#include <infiniband/verbs.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refract::transport::verbs {

// Error of a path from the completion status of a request. `where` names the
// queue pair. Codes:
//   Unavailable      the peer or the route to it is gone: time-outs, no receive
//                    request at the peer, and flushes, which follow from
//                    either;
//   InvalidArgument  the peer refused the access or answered nonsense: its
//                    descriptor was wrong, and trying again will not help;
//   Internal         a mistake on this side.
// Soft-RoCE reports IBV_WC_LOC_QP_OP_ERR when its own link is down, so with
// `port_active` false that status is Unavailable too.
absl::Status StatusOfCompletion(ibv_wc_status status, absl::string_view where,
                                bool port_active);

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_DEVICE_WC_STATUS_H_
