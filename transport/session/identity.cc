#include "transport/session/identity.h"

#include <glog/logging.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

namespace refract::transport {

std::string RandomToken(size_t bytes) {
  std::string token(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = getrandom(token.data() + done, bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    PCHECK(n > 0) << "getrandom";
    done += static_cast<size_t>(n);
  }
  return token;
}

const proto::PeerIdentity& LocalIdentity() {
  static const auto* identity = [] {
    auto* self = new proto::PeerIdentity;
    std::array<char, 256> host = {};
    if (gethostname(host.data(), host.size() - 1) == 0) {
      self->set_node(host.data());
    }
    self->set_process(RandomToken(16));
    std::ifstream boot("/proc/sys/kernel/random/boot_id");
    std::string boot_id;
    if (std::getline(boot, boot_id)) self->set_boot_id(boot_id);
    self->set_uid(geteuid());
    struct stat info;
    if (stat("/proc/self/ns/net", &info) == 0) {
      self->set_net_namespace(info.st_ino);
    }
    return self;
  }();
  return *identity;
}

bool CanShareMemory(const proto::PeerIdentity& a,
                    const proto::PeerIdentity& b) {
  return !a.boot_id().empty() && a.boot_id() == b.boot_id() &&
         a.uid() == b.uid() && a.net_namespace() != 0 &&
         a.net_namespace() == b.net_namespace();
}

}  // namespace refract::transport
