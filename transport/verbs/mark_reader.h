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
// only when asked to, by Take, so it sleeps while nothing is pulled. A counter
// is the port's: several polling threads, or processes, that share one each see
// all of it.
class MarkReader final : public MarkSource {
 public:
  MarkReader() = default;
  ~MarkReader() override;
  MarkReader(const MarkReader&) = delete;
  MarkReader& operator=(const MarkReader&) = delete;

  // Counts what `device` sends from now on, if it has such a counter; no effect
  // for one that is read already. Does not keep it open. Thread-safe; may take
  // some 100 µs.
  void Add(const std::shared_ptr<DeviceContext>& device);

  // The marks up to the read that the last call asked for; asks for another
  // read. Makes no system call but the wake-up of the reader.
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
  std::atomic<bool> running_ = false;  // waker_ and thread_ are there
  std::shared_ptr<ThreadWaker> waker_;
  std::thread thread_;
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_MARK_READER_H_
