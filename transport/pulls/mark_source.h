#ifndef REFRACT_TRANSPORT_PULLS_MARK_SOURCE_H_
#define REFRACT_TRANSPORT_PULLS_MARK_SOURCE_H_

#include <cstdint>
#include <optional>

namespace refract::transport {

// Counts the congestion notifications (CNPs) that this machine's devices sent
// because packets came with ECN set. Belongs to one polling thread.
class MarkSource {
 public:
  virtual ~MarkSource() = default;
  // Marks since the last call that returned a number. Nullopt: unknown, because
  // no device counts them or no count has come yet. Does not block.
  virtual std::optional<uint64_t> Take() = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PULLS_MARK_SOURCE_H_
