#ifndef REFRACT_TRANSPORT_VERBS_MARK_READER_H_
#define REFRACT_TRANSPORT_VERBS_MARK_READER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/loop/waker.h"
#include "transport/pulls/mark_source.h"
#include "transport/verbs/device/device_context.h"

namespace refract::transport::verbs {

// Reads the counters of congestion notifications that the devices of a polling
// thread sent, on a thread of its own: a read may ask the firmware. It reads
// only when Take asks for it, so it sleeps while no pull is under way. A
// counter belongs to the port: polling threads or processes that share a port
// each see its full count.
class MarkReader final : public MarkSource {
 public:
  MarkReader() = default;
  ~MarkReader() override;
  MarkReader(const MarkReader&) = delete;
  MarkReader& operator=(const MarkReader&) = delete;

  // Counts the notifications that `device` sends from now on, if it has such a
  // counter; no effect for a device that is counted already. Does not keep it
  // open. Thread-safe; may take some 100 µs.
  void Add(const std::shared_ptr<DeviceContext>& device);

  // The marks up to the read that the last call requested; requests another
  // read. Its only system call is the wake-up of the reader.
  std::optional<uint64_t> Take() override;

 private:
  struct Counter {
    std::weak_ptr<DeviceContext> device;
    uint8_t port = 0;
    std::string name;
    uint64_t last = 0;
  };

  void Run();
  void Read();

  absl::Mutex mu_;
  std::vector<Counter> counters_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> marks_ = 0;  // not taken yet
  std::atomic<bool> read_ = false;   // since the last Take
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> running_ = false;  // waker_ and thread_ exist
  std::shared_ptr<ThreadWaker> waker_;
  std::thread thread_;
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_MARK_READER_H_
