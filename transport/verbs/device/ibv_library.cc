#include "transport/verbs/device/ibv_library.h"

#include <glog/logging.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/loop/fd.h"
#include "transport/verbs/device/ibv_device.h"

namespace refract::transport::verbs {
namespace {

// The system's devices; freed with the list, so names are copied.
class DeviceList {
 public:
  DeviceList() : list_(ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (list_ != nullptr) ibv_free_device_list(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  bool valid() const { return list_ != nullptr; }
  int size() const { return count_; }
  ibv_device* operator[](int i) const { return list_[i]; }

 private:
  int count_ = 0;
  ibv_device** const list_;
};

class IbvLibrary final : public Library {
 public:
  IbvLibrary() {
    // A no-op on kernels that copy pinned pages at fork (5.12 and later).
    if (const int error = ibv_fork_init(); error != 0) {
      LOG(WARNING) << "ibv_fork_init: " << std::strerror(error)
                   << "; a fork of this process may damage transfers";
    }
  }

  absl::StatusOr<std::vector<std::string>> DeviceNames() const override {
    const DeviceList list;
    if (!list.valid()) {
      return absl::UnavailableError(absl::StrCat(
          "no RDMA devices can be listed: ", std::strerror(errno)));
    }
    std::vector<std::string> names;
    for (int i = 0; i < list.size(); ++i) {
      names.emplace_back(ibv_get_device_name(list[i]));
    }
    return names;
  }

  absl::StatusOr<std::unique_ptr<Device>> Open(
      absl::string_view name) const override {
    const DeviceList list;
    for (int i = 0; i < list.size(); ++i) {
      if (name != ibv_get_device_name(list[i])) continue;
      ibv_context* context = ibv_open_device(list[i]);
      if (context == nullptr) {
        return ErrnoStatus(errno, absl::StrCat("opening RDMA device ", name));
      }
      return IbvDevice::Create(context);
    }
    return absl::NotFoundError(absl::StrCat("no RDMA device ", name));
  }
};

}  // namespace

Library& SystemLibrary() {
  static IbvLibrary* const library = new IbvLibrary();
  return *library;
}

std::string MemlockAdvice(size_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return absl::StrCat(
      " (", bytes >> 10, " KiB more; RLIMIT_MEMLOCK is ", limit.rlim_cur >> 10,
      " KiB: raise it by `ulimit -l unlimited`, LimitMEMLOCK=infinity in a "
      "systemd unit, or --ulimit memlock=-1 for a container)");
}

}  // namespace refract::transport::verbs
