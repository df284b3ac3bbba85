#include "transport/verbs/inbox.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>

namespace refract::transport::verbs {

absl::StatusOr<std::unique_ptr<Inbox>> Inbox::Create(uint32_t window,
                                                     int channel_fd,
                                                     int timer_fd) {
  auto inbox = std::make_unique<Inbox>();
  inbox->notes.resize(window);
  inbox->own_event.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!inbox->own_event.valid()) return ErrnoStatus(errno, "eventfd");
  inbox->epoll.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!inbox->epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  // Channel and timer wake every path of the hub that sleeps; own_event wakes
  // this path after another thread has taken its completions.
  for (const int fd : {channel_fd, timer_fd, inbox->own_event.get()}) {
    if (fd < 0) continue;
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.fd = fd;
    if (epoll_ctl(inbox->epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoStatus(errno, "epoll_ctl of RDMA events");
    }
  }
  return inbox;
}

}  // namespace refract::transport::verbs
