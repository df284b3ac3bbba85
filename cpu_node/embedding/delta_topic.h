#ifndef REFRACT_CPU_NODE_EMBEDDING_DELTA_TOPIC_H_
#define REFRACT_CPU_NODE_EMBEDDING_DELTA_TOPIC_H_

// Deltas that come as messages of a topic of Kafka are written into the folders
// of their versions, as deltas that come over gRPC are.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/catalog.h"
#include "cpu_node/embedding/kafka_reader.h"
#include "metrics/exposition.h"

namespace refract::cpu_node {

struct DeltaTopicOptions {
  std::string topic;
  std::string deltas_folder;  // as in ServedModelOptions
  base::Clock* clock = &base::Clock::Real();
};

// A thread that reads the topic: each message is an AppendDeltaRequest
// (proto/deltas.proto), which names its version. Messages for versions that the
// node does not serve are left out, and read again when it serves them. Stops
// with the object.
//
// The position in the topic is kept in the version's folder beside the deltas,
// so that a folder which is lost is filled again from the topic's beginning.
class DeltaTopic {
 public:
  // ResourceExhausted: the system has no thread left. `catalog` is called by
  // the thread, which holds the result for one message only.
  static absl::StatusOr<std::unique_ptr<DeltaTopic>> Start(
      std::unique_ptr<KafkaReader> reader,
      std::function<std::shared_ptr<const Catalog>()> catalog,
      const DeltaTopicOptions& options);
  ~DeltaTopic();

  struct Counts {
    uint64_t added = 0;    // deltas written into a folder
    uint64_t known = 0;    // deltas that the folder has had
    uint64_t refused = 0;  // messages that are no delta, or do not fit
    uint64_t other = 0;    // deltas of versions that are not served
    uint64_t errors = 0;   // of the brokers, each until it is over
    bool up = false;       // a broker has answered since the last error
    int64_t behind = 0;    // messages that are still to be read
  };
  // Any thread.
  Counts counts() const;
  void Collect(metrics::Exposition& out) const;

 private:
  struct Partition {
    int64_t next = KafkaReader::kBeginning;  // offset to read
    // All that it still has, before `next`, has been read.
    bool from_beginning = false;
    // Offset of the first delta of each version that was not served.
    std::map<std::string, int64_t> left_out;
  };
  struct Position {
    int partition = 0;
    int64_t offset = 0;
  };

  DeltaTopic(std::unique_ptr<KafkaReader> reader,
             std::function<std::shared_ptr<const Catalog>()> catalog,
             const DeltaTopicOptions& options)
      : options_(options),
        catalog_(std::move(catalog)),
        reader_(std::move(reader)) {}

  void Run();
  // Asks for the partitions and reads them from where versions need them.
  absl::Status Connect();
  absl::Status StartAt(int partition, int64_t offset);
  // Goes back for versions that the node serves since the last call.
  absl::Status LookAtCatalog();
  void Take(const KafkaReader::Message& message);
  // Writes the delta into its folder; waits while that may still succeed.
  // `version` is set to the name of its version, once known.
  absl::StatusOr<bool> Append(const KafkaReader::Message& message,
                              std::string* version);
  // Logs and counts an error of the brokers once, until Recovered().
  void Failed(const absl::Status& why);
  void Recovered();
  void Refuse(const std::string& version, const KafkaReader::Message& message,
              const absl::Status& why);

  std::string PositionPath(const ServedModel& model) const;
  void SavePosition(const ServedModel& model,
                    const KafkaReader::Message& message) const;
  // Where the version's next delta may be; partition -1: not known.
  Position ReadPosition(const ServedModel& model) const;
  bool WaitOrStop(absl::Duration time);

  const DeltaTopicOptions options_;
  const std::function<std::shared_ptr<const Catalog>()> catalog_;
  const std::unique_ptr<KafkaReader> reader_;

  // Used by the thread alone.
  std::vector<Partition> partitions_;
  std::set<std::string> followed_;  // versions, as "name/version"
  std::set<std::string> refusing_;  // versions whose refusals are logged
  absl::Time next_look_ = absl::InfinitePast();
  // Set by Take(): messages before the present one are needed.
  int go_back_ = -1;

  mutable absl::Mutex mu_;
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::string error_ ABSL_GUARDED_BY(mu_);  // that was logged
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_DELTA_TOPIC_H_
