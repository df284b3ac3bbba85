#ifndef REFRACT_TRANSPORT_PULLS_MARK_SOURCE_H_
#define REFRACT_TRANSPORT_PULLS_MARK_SOURCE_H_

#include <cstdint>
#include <optional>

namespace refract::transport {

// Who counts the congestion notifications (CNPs) that this machine's devices
// sent because packets came with ECN set. Belongs to one polling thread.
class MarkSource {
 public:
  virtual ~MarkSource() = default;
  // New ones since the last call that gave a number. Nullopt: not known,
  // because no device counts them or no count has come yet. Does not block.
  virtual std::optional<uint64_t> Take() = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PULLS_MARK_SOURCE_H_
