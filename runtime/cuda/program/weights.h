#ifndef REFRACT_RUNTIME_CUDA_PROGRAM_WEIGHTS_H_
#define REFRACT_RUNTIME_CUDA_PROGRAM_WEIGHTS_H_

// The weights of a program in the memory of a device, once for any number of
// instances loaded there.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/cuda/instance/device_api.h"
#include "runtime/cuda/program/device_program.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// Dense row-major values of one weight, converted at load to the type that the
// program declares.
struct WeightData {
  const float* data = nullptr;
  int64_t count = 0;
  const int32_t* indices = nullptr;  // instead of `data`, for int32 weights
  const void* bytes = nullptr;       // for int64 and bool weights
};

struct WeightOptions {
  // Keeps the converted weights in pinned memory from the first upload on, so
  // that the next upload only copies. Takes as many bytes of pinned memory as
  // the weights take on the device.
  bool keep_pinned = false;
};

// Shared by the instances of one program. Thread-safe: calls during an
// upload wait for it. The device and the memory of the values must outlive
// it.
class DeviceWeights {
 public:
  // Checks the weights; does not touch the device. `weights` in the order of
  // `program`, of which only the weights are read.
  static Result<std::shared_ptr<DeviceWeights>> Create(
      DeviceApi& device, const DeviceProgram& program,
      std::vector<WeightData> weights, const WeightOptions& options);
  // All holds must have been released.
  ~DeviceWeights();
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;

  int64_t bytes() const { return bytes_; }
  const std::vector<WeightData>& values() const { return weights_; }
  // Offset from Hold()'s address of the weight that another program reads as
  // `value` from the same `data`; -1: there is no such weight. The data must
  // not have changed.
  int64_t OffsetOf(const Value& value, const WeightData& data) const;
  // Bytes that the next Hold() allocates: 0 while another hold lasts.
  int64_t bytes_to_load() const;

  // Address of the weights, null if there are none. The first hold allocates,
  // uploads by `stream` and waits. Every successful hold needs a Drop().
  Result<std::byte*> Hold(Stream stream);
  // The last Drop() frees the device memory. It reports no errors: the memory
  // of a lost device is gone with the device.
  void Drop();
  // Frees the pinned copy; call before a Reset().
  void DropPinned();

 private:
  DeviceWeights(DeviceApi& device, const DeviceProgram& program,
                std::vector<WeightData> weights, const WeightOptions& options);
  Status Stage();                // mutex_ held
  Status Upload(Stream stream);  // mutex_ held
  void FreeStaging();            // mutex_ held

  DeviceApi& device_;
  const std::vector<WeightData> weights_;
  const WeightOptions options_;
  std::vector<Value> values_;     // per weight
  std::vector<int64_t> offsets_;  // per weight
  int64_t bytes_ = 0;

  mutable std::mutex mutex_;
  int holds_ = 0;
  std::byte* memory_ = nullptr;
  // Pinned memory of converted weights. During an upload, or permanently.
  std::byte* staging_ = nullptr;
  bool staged_ = false;  // it holds all weights
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_PROGRAM_WEIGHTS_H_
