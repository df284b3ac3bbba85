#include "cpu_node/embedding/delta_topic.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/process/files.h"
#include "base/process/thread.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "cpu_node/embedding/delta_append.h"
#include "cpu_node/served_model.h"
#include "glog/logging.h"
#include "models/deltas/delta.h"
#include "proto/deltas.pb.h"

namespace refract::cpu_node {
namespace {

// Niceness of the thread that takes deltas over gRPC, too: requests go first.
constexpr int kTopicNice = 10;
// Time after which the thread sees that it must stop, or a new version.
constexpr absl::Duration kTopicLookInterval = absl::Milliseconds(100);
constexpr absl::Duration kBrokerTimeout = absl::Seconds(1);
// Between two tries to write a delta, and until the log says so.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);
constexpr absl::Duration kQuietRetries = absl::Seconds(5);

std::string KeyOf(const std::string& name, int64_t version) {
  return absl::StrCat(name, "/", version);
}

// Errors that no later try can change.
bool IsFinal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeltaTopic>> DeltaTopic::Start(
    std::unique_ptr<KafkaReader> reader,
    std::function<std::shared_ptr<const Catalog>()> catalog,
    const DeltaTopicOptions& options) {
  std::unique_ptr<DeltaTopic> topic(
      new DeltaTopic(std::move(reader), std::move(catalog), options));
  REFRACT_ASSIGN_OR_RETURN(
      topic->thread_,
      base::StartThread([topic = topic.get()] { topic->Run(); }));
  return topic;
}

DeltaTopic::~DeltaTopic() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void DeltaTopic::Run() {
  setpriority(PRIO_PROCESS, 0, kTopicNice);  // of this thread: Linux
  while (!WaitOrStop(absl::ZeroDuration())) {
    absl::Status status = Connect();
    bool down = false;
    while (status.ok() && !WaitOrStop(absl::ZeroDuration())) {
      if (down && reader_->CountPartitions(kBrokerTimeout).ok()) {
        down = false;
        Recovered();
      }
      status = LookAtCatalog();
      if (!status.ok()) break;
      const auto any = reader_->Poll(
          kTopicLookInterval,
          [this](const KafkaReader::Message& message) { Take(message); });
      if (!absl::IsUnavailable(any.status())) {
        status = any.status();
      } else if (!down && !reader_->CountPartitions(kBrokerTimeout).ok()) {
        // No broker answers. If another does, messages still come.
        down = true;
        Failed(any.status());
      }
      if (go_back_ >= 0 && status.ok()) {
        status = StartAt(go_back_, KafkaReader::kBeginning);
        go_back_ = -1;
      }
    }
    if (!status.ok()) {
      Failed(status);
      WaitOrStop(kBrokerTimeout);
    }
  }
}

absl::Status DeltaTopic::Connect() {
  REFRACT_ASSIGN_OR_RETURN(const int count,
                           reader_->CountPartitions(kBrokerTimeout));
  partitions_.resize(static_cast<size_t>(count));
  const bool first_time = followed_.empty();
  std::vector<Position> positions;
  if (first_time) {
    const std::shared_ptr<const Catalog> catalog = catalog_();
    for (const Catalog::Entry& entry : catalog->entries()) {
      if (entry.model == nullptr || entry.model->deltas() == nullptr) continue;
      followed_.insert(KeyOf(entry.name, entry.version));
      positions.push_back(ReadPosition(*entry.model));
    }
  }
  for (int i = 0; i < count; ++i) {
    int64_t start = partitions_[i].next;
    if (first_time) {
      // From the first message that a version needs. A version without a
      // position may have deltas in any partition.
      start = positions.empty() ? KafkaReader::kBeginning
                                : std::numeric_limits<int64_t>::max();
      for (const Position& position : positions) {
        start = std::min(start, position.partition == i
                                    ? position.offset
                                    : KafkaReader::kBeginning);
      }
    }
    REFRACT_RETURN_IF_ERROR(StartAt(i, start));
  }
  Recovered();
  return absl::OkStatus();
}

absl::Status DeltaTopic::StartAt(int partition, int64_t offset) {
  Partition& place = partitions_[static_cast<size_t>(partition)];
  place.next = offset;
  if (offset == KafkaReader::kBeginning) {
    place.from_beginning = true;
    place.left_out.clear();
  }
  return reader_->Start(partition, offset);
}

absl::Status DeltaTopic::LookAtCatalog() {
  const absl::Time now = options_.clock->Now();
  if (now < next_look_) return absl::OkStatus();
  next_look_ = now + kTopicLookInterval;
  const std::shared_ptr<const Catalog> catalog = catalog_();
  std::set<std::string> followed;
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (entry.model == nullptr || entry.model->deltas() == nullptr) continue;
    const std::string key = KeyOf(entry.name, entry.version);
    followed.insert(key);
    if (followed_.contains(key)) continue;
    const Position position = ReadPosition(*entry.model);
    for (int i = 0; i < static_cast<int>(partitions_.size()); ++i) {
      Partition& place = partitions_[i];
      const auto left_out = place.left_out.find(key);
      int64_t from = place.next;
      if (left_out != place.left_out.end()) from = left_out->second;
      if (position.partition == i) {
        from = std::min(from, position.offset);
      } else if (position.partition < 0 && !place.from_beginning) {
        from = KafkaReader::kBeginning;
      }
      if (left_out != place.left_out.end()) place.left_out.erase(left_out);
      if (from < place.next) REFRACT_RETURN_IF_ERROR(StartAt(i, from));
    }
  }
  followed_ = std::move(followed);
  absl::MutexLock lock(&mu_);
  counts_.behind = 0;
  for (int i = 0; i < static_cast<int>(partitions_.size()); ++i) {
    counts_.behind += reader_->Behind(i, partitions_[i].next);
  }
  return absl::OkStatus();
}

void DeltaTopic::Take(const KafkaReader::Message& message) {
  if (message.partition >= static_cast<int>(partitions_.size())) return;
  Recovered();
  Partition& place = partitions_[static_cast<size_t>(message.partition)];
  std::string version;
  const absl::StatusOr<bool> added = Append(message, &version);
  if (absl::IsCancelled(added.status())) return;  // the node stops
  if (absl::IsFailedPrecondition(added.status()) && !place.from_beginning) {
    // The deltas in between may be before the position where reading began,
    // for example in a topic that was made anew.
    go_back_ = message.partition;
    return;
  }
  place.next = message.offset + 1;
  if (added.ok()) {
    refusing_.erase(version);
    refusing_.erase("");
    absl::MutexLock lock(&mu_);
    ++(*added ? counts_.added : counts_.known);
  } else if (absl::IsAlreadyExists(added.status())) {
    absl::MutexLock lock(&mu_);
    ++counts_.known;
  } else if (absl::IsUnavailable(added.status())) {
    place.left_out.emplace(version, message.offset);
    absl::MutexLock lock(&mu_);
    ++counts_.other;
  } else {
    Refuse(version, message, added.status());
  }
}

absl::StatusOr<bool> DeltaTopic::Append(const KafkaReader::Message& message,
                                        std::string* version) {
  if (!message.value.ok()) return message.value.status();
  proto::AppendDeltaRequest delta;
  REFRACT_RETURN_IF_ERROR(base::WithinMemory([&] {
    return delta.ParseFromArray(message.value->data(),
                                static_cast<int>(message.value->size()))
               ? absl::OkStatus()
               : absl::InvalidArgumentError("no AppendDeltaRequest");
  }));
  REFRACT_ASSIGN_OR_RETURN(const models::DeltaManifest manifest,
                           models::ParseDeltaManifest(delta.manifest()));
  *version = KeyOf(base::Shorten(manifest.model), manifest.version);
  const absl::Time begin = options_.clock->Now();
  bool logged = false;
  while (true) {
    absl::Status why;
    {
      const auto model = catalog_()->Find(manifest.model,
                                          absl::StrCat(manifest.version));
      if (!model.ok() || (*model)->deltas() == nullptr) {
        return absl::UnavailableError("the version is not served");
      }
      absl::StatusOr<bool> added =
          AppendDelta(**model, DeltaFolderOf(**model, options_.deltas_folder),
                      delta.manifest(), delta.rows());
      if (added.ok() && *added) SavePosition(**model, message);
      if (added.ok() || IsFinal(added.status()) ||
          absl::IsAlreadyExists(added.status())) {
        return added;
      }
      why = added.status();
    }
    if (!logged && options_.clock->Now() - begin > kQuietRetries) {
      logged = true;
      LOG(ERROR) << "topic '" << options_.topic << "' partition "
                 << message.partition << " waits at offset " << message.offset
                 << ", delta " << manifest.state.sequence << " of " << *version
                 << ": "
                 << base::Shorten(why.message(), base::kMaxStatusTextBytes);
    }
    if (WaitOrStop(kRetryInterval)) return absl::CancelledError();
  }
}

void DeltaTopic::Failed(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  counts_.up = false;
  // Texts have times in them, so that the same error has many texts.
  const std::string error = absl::StatusCodeToString(why.code());
  if (error_ == error) return;
  error_ = error;
  ++counts_.errors;
  LOG(ERROR) << "topic '" << options_.topic
             << "': no deltas come, tables stay as they are: "
             << base::Shorten(why.message(), base::kMaxStatusTextBytes);
}

void DeltaTopic::Recovered() {
  absl::MutexLock lock(&mu_);
  if (counts_.up) return;
  counts_.up = true;
  error_.clear();
  LOG(INFO) << "topic '" << options_.topic << "': deltas are read from "
            << partitions_.size()
            << (partitions_.size() == 1 ? " partition" : " partitions");
}

void DeltaTopic::Refuse(const std::string& version,
                        const KafkaReader::Message& message,
                        const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    ++counts_.refused;
  }
  if (!refusing_.insert(version).second) return;
  LOG(ERROR) << "topic '" << options_.topic << "' partition "
             << message.partition << " offset " << message.offset << ": "
             << (version.empty() ? "message" : absl::StrCat("delta of ", version))
             << " refused (later refusals are only counted, until a delta is "
                "taken): "
             << base::Shorten(why.message(), base::kMaxStatusTextBytes);
}

std::string DeltaTopic::PositionPath(const ServedModel& model) const {
  return absl::StrCat(DeltaFolderOf(model, options_.deltas_folder),
                      "/.kafka-position");
}

void DeltaTopic::SavePosition(const ServedModel& model,
                              const KafkaReader::Message& message) const {
  // Lost or too old, it costs time at the next start: so it is not flushed.
  const absl::Status saved = base::ReplaceText(
      PositionPath(model),
      absl::StrCat(options_.topic, " ", message.partition, " ",
                   message.offset + 1, "\n"));
  if (!saved.ok()) {
    LOG_FIRST_N(WARNING, 1) << saved.message()
                            << "; the next start reads older messages again";
  }
}

DeltaTopic::Position DeltaTopic::ReadPosition(const ServedModel& model) const {
  const Position unknown{.partition = -1};
  const auto text = base::ReadText(PositionPath(model));
  if (!text.ok()) return unknown;
  const std::vector<absl::string_view> parts =
      absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  Position found;
  if (parts.size() != 3 || parts[0] != options_.topic ||
      !absl::SimpleAtoi(parts[1], &found.partition) || found.partition < 0 ||
      !absl::SimpleAtoi(parts[2], &found.offset) || found.offset < 0) {
    return unknown;
  }
  return found;
}

bool DeltaTopic::WaitOrStop(absl::Duration time) {
  absl::MutexLock lock(&mu_);
  options_.clock->AwaitWithDeadline(mu_, absl::Condition(&stop_),
                                    options_.clock->Now() + time);
  return stop_;
}

DeltaTopic::Counts DeltaTopic::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

void DeltaTopic::Collect(metrics::Exposition& out) const {
  const Counts counts = this->counts();
  const metrics::Labels topic = {{"topic", options_.topic}};
  for (const auto& [outcome, count] :
       std::initializer_list<std::pair<const char*, uint64_t>>{
           {"added", counts.added},
           {"known", counts.known},
           {"refused", counts.refused},
           {"other", counts.other}}) {
    out.AddCounter("refract_delta_messages_total",
                   "Messages of the topic of --deltas-kafka, by what became of "
                   "the delta; other: its version is not served",
                   {{"topic", options_.topic}, {"outcome", outcome}},
                   static_cast<double>(count));
  }
  out.AddCounter("refract_delta_topic_errors_total",
                 "Errors of the topic's brokers, each counted until it is over",
                 topic, static_cast<double>(counts.errors));
  out.AddGauge("refract_delta_topic_up",
               "1 if a broker has answered since the last error", topic,
               counts.up ? 1 : 0);
  out.AddGauge("refract_delta_topic_behind",
               "Messages of the topic that are still to be read", topic,
               static_cast<double>(counts.behind));
}

}  // namespace refract::cpu_node
