// The work of CheckedDevice: memory, streams, order of execution, checks.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/runtime/cuda/testing/checked_device.h"

namespace refract::runtime::cuda::testing {

Status CheckedDevice::Enter(const char* name, Rule rule) {
  call_ = name;
  ++calls_;
  if (calls_ == fail_at_ &&
      !(rule == kReleases && fail_code_ != Code::kUnavailable)) {
    lost_ = lost_ || fail_code_ == Code::kUnavailable;
    if (!lost_) return Status(fail_code_, std::string("planted: ") + name);
  }
  if (lost_) return Status(Code::kUnavailable, "the device is lost");
  if (rule != kAny) {
    for (const auto& [handle, stream] : streams_) {
      if (!stream->capturing) continue;
      Violation("is not allowed in a capture");
      return Status(Code::kInternal, "not allowed in a capture");
    }
  }
  return {};
}

void CheckedDevice::Violation(const std::string& what) {
  violations_.push_back(std::string(call_) + " " + what);
}

CheckedDevice::StreamState* CheckedDevice::Find(Stream stream) {
  const auto it = streams_.find(stream.handle);
  if (it != streams_.end()) return it->second.get();
  Violation("of no stream");
  return nullptr;
}

CheckedDevice::EventState* CheckedDevice::Find(Event event) {
  const auto it = events_.find(event.handle);
  if (it != events_.end()) return it->second.get();
  Violation("of no event");
  return nullptr;
}

void CheckedDevice::Merge(const Clock& from, Clock& into) {
  for (const auto& [stream, number] : from) {
    into[stream] = std::max(into[stream], number);
  }
}

bool CheckedDevice::Reached(const Clock& clock) const {
  for (const auto& [stream, number] : clock) {
    const auto it = done_.find(stream);
    if (number > (it == done_.end() ? 0 : it->second)) return false;
  }
  return true;
}

Status CheckedDevice::NewBlock(int64_t bytes, bool host, void** memory) {
  REFRACT_CUDA_RETURN_IF_ERROR(
      Enter(host ? "AllocatePinned" : "Allocate", kNotInCapture));
  if (bytes <= 0) Violation("allocates nothing");
  if (!host && used_bytes_ + bytes > memory_bytes_) {
    return Status(Code::kResourceExhausted, "out of memory");
  }
  ++allocations_;
  const auto rounded = static_cast<size_t>((bytes + 255) / 256 * 256);
  void* begin = std::aligned_alloc(256, rounded);
  std::memset(begin, 0xFF, rounded);  // NaN: nothing is zero by itself
  blocks_[static_cast<std::byte*>(begin)] = {bytes, host};
  if (!host) used_bytes_ += bytes;
  *memory = begin;
  return {};
}

Status CheckedDevice::FreeBlock(void* memory, bool host) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter(host ? "FreePinned" : "Free", kReleases));
  const auto it = blocks_.find(static_cast<std::byte*>(memory));
  if (it == blocks_.end() || it->second.host != host) {
    Violation("frees what was not allocated");
    return Bad();
  }
  CheckAccess({it->first, it->second.bytes, true, host}, host_clock_,
              "the free");
  if (!host) used_bytes_ -= it->second.bytes;
  std::free(it->first);
  blocks_.erase(it);
  return {};
}

Status CheckedDevice::Copy(const char* name, const CopyCall& copy,
                           bool to_device, Stream stream) {
  REFRACT_CUDA_RETURN_IF_ERROR(Enter(name));
  if (copy.row_bytes > copy.to_pitch || copy.row_bytes > copy.from_pitch) {
    Violation("has rows that overlap");
  }
  Task task;
  for (int64_t row = 0; row < copy.rows; ++row) {
    task.accesses.push_back(
        {static_cast<std::byte*>(copy.to) + row * copy.to_pitch, copy.row_bytes,
         true, !to_device});
    task.accesses.push_back(
        {static_cast<const std::byte*>(copy.from) + row * copy.from_pitch,
         copy.row_bytes, false, to_device});
  }
  task.run = [copy] {
    for (int64_t row = 0; row < copy.rows; ++row) {
      std::memcpy(
          static_cast<std::byte*>(copy.to) + row * copy.to_pitch,
          static_cast<const std::byte*>(copy.from) + row * copy.from_pitch,
          static_cast<size_t>(copy.row_bytes));
    }
  };
  return Give(stream, std::move(task));
}

Status CheckedDevice::Give(Stream handle, Task task) {
  StreamState* stream = Find(handle);
  if (stream == nullptr) return Bad();
  if (stream->capturing) {
    for (const Access& access : task.accesses) CheckMemory(access, "captured");
    stream->captured.push_back(std::move(task));
    return {};
  }
  Merge(host_clock_, stream->clock);
  task.after = stream->clock;
  task.stream = stream->id;
  task.number = ++stream->clock[stream->id];
  for (const Access& access : task.accesses) {
    CheckAccess(access, task.after, "work");
  }
  for (const Access& access : task.accesses) {
    history_[task.stream].push_back({access, task.number});
  }
  waiting_.push_back(std::move(task));
  return {};
}

void CheckedDevice::CheckMemory(const Access& access, const char* who) {
  if (access.bytes == 0) return;
  auto it = blocks_.upper_bound(const_cast<std::byte*>(access.begin));
  if (it == blocks_.begin()) {
    Violation(std::string(who) + " touches memory that is not allocated");
    return;
  }
  --it;
  if (access.begin + access.bytes > it->first + it->second.bytes ||
      it->second.host != access.host) {
    Violation(std::string(who) + " touches memory that is not allocated");
  }
}

void CheckedDevice::CheckAccess(const Access& access, const Clock& seen,
                                const char* who) {
  CheckMemory(access, who);
  for (const auto& [stream, pasts] : history_) {
    // All up to the number seen is over.
    const auto it = seen.find(stream);
    auto past = it == seen.end()
                    ? pasts.begin()
                    : std::upper_bound(pasts.begin(), pasts.end(), it->second,
                                       [](int number, const Past& past) {
                                         return number < past.number;
                                       });
    for (; past != pasts.end(); ++past) {
      if (!past->access.write && !access.write) continue;
      if (past->access.begin + past->access.bytes <= access.begin ||
          access.begin + access.bytes <= past->access.begin) {
        continue;
      }
      Violation(std::string(who) + " races with work of stream " +
                std::to_string(stream));
      return;
    }
  }
}

void CheckedDevice::Forget() {
  for (auto& [stream, pasts] : history_) {
    const int over = host_clock_[stream];
    std::erase_if(pasts,
                  [over](const Past& past) { return past.number <= over; });
  }
}

void CheckedDevice::RunUntil(const std::function<bool()>& stop,
                             size_t at_most) {
  while (!stop() && at_most-- > 0) {
    std::vector<size_t> legal;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      if (Reached(waiting_[i].after)) legal.push_back(i);
    }
    if (legal.empty()) return;
    const auto next = waiting_.begin() + static_cast<std::ptrdiff_t>(
                                             legal[random_() % legal.size()]);
    const Task task = std::move(*next);
    waiting_.erase(next);
    task.run();
    done_[task.stream] = task.number;
  }
}

}  // namespace refract::runtime::cuda::testing
