#ifndef REFRACT_CPU_NODE_EMBEDDING_KAFKA_READER_H_
#define REFRACT_CPU_NODE_EMBEDDING_KAFKA_READER_H_

// The messages of a topic of Kafka, in the order of each partition. librdkafka
// stops at kafka_reader.cc; a build without it has kafka_absent.cc.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::cpu_node {

// Used by one thread at a time, and destroyed by any.
class KafkaReader {
 public:
  // Offset of the oldest message that a partition still has.
  static constexpr int64_t kBeginning = -2;

  struct Message {
    int partition = 0;
    int64_t offset = 0;
    // Valid during the call. Without a value: why the broker or the library
    // does not deliver the message.
    absl::StatusOr<absl::string_view> value;
  };

  virtual ~KafkaReader() = default;

  // Number of the topic's partitions, asked of a broker: they are 0 to N - 1.
  // NotFound: the brokers do not have the topic; Unavailable: no broker
  // answers; others as the brokers say.
  virtual absl::StatusOr<int> CountPartitions(absl::Duration timeout) = 0;
  // Reads a partition from `offset` on, also where it was being read; from the
  // beginning if the partition no longer has the offset. Messages come by
  // Poll().
  virtual absl::Status Start(int partition, int64_t offset) = 0;
  // Calls `take` with the next message of any partition; false: none came
  // within `timeout`. Errors: as with CountPartitions(); the library goes on
  // trying after Unavailable, other errors need Start() of all partitions.
  virtual absl::StatusOr<bool> Poll(
      absl::Duration timeout,
      const std::function<void(const Message&)>& take) = 0;
  // Number of messages at or after `offset` in the partition, as far as this
  // host knows; 0 before it knows.
  virtual int64_t Behind(int partition, int64_t offset) const = 0;
};

struct KafkaOptions {
  std::string brokers;  // HOST:PORT, separated by commas
  std::string topic;
  // Lines PROPERTY=VALUE of librdkafka's configuration; # begins a comment.
  std::string properties;
  // A longer message is not delivered.
  size_t max_message_bytes = size_t{64} << 20;
};

// Connects in the background. InvalidArgument names the property that is wrong;
// Unimplemented: the build has no librdkafka.
absl::StatusOr<std::unique_ptr<KafkaReader>> MakeKafkaReader(
    const KafkaOptions& options);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_KAFKA_READER_H_
