#include "cpu_node/embedding/kafka_reader.h"

namespace refract::cpu_node {

absl::StatusOr<std::unique_ptr<KafkaReader>> MakeKafkaReader(
    const KafkaOptions&) {
  return absl::UnimplementedError(
      "this build has no Kafka: CMake found no librdkafka (Debian: "
      "librdkafka-dev), or was given -DREFRACT_WITH_KAFKA=OFF");
}

}  // namespace refract::cpu_node
