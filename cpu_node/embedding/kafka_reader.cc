#include "cpu_node/embedding/kafka_reader.h"

#include <librdkafka/rdkafka.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/shorten.h"
#include "base/status_macros.h"

namespace refract::cpu_node {
namespace {

constexpr size_t kTextBytes = 512;
// The library's own limit of its messages, which no fetch may be below.
constexpr size_t kLeastFetch = 1000000;

struct Destroy {
  void operator()(rd_kafka_t* handle) const { rd_kafka_destroy(handle); }
  void operator()(rd_kafka_topic_t* topic) const {
    rd_kafka_topic_destroy(topic);
  }
  void operator()(rd_kafka_queue_t* queue) const {
    rd_kafka_queue_destroy(queue);
  }
  void operator()(rd_kafka_conf_t* conf) const { rd_kafka_conf_destroy(conf); }
  void operator()(const rd_kafka_metadata_t* metadata) const {
    rd_kafka_metadata_destroy(metadata);
  }
  void operator()(rd_kafka_message_t* message) const {
    rd_kafka_message_destroy(message);
  }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy>;

absl::Status ErrorOf(rd_kafka_resp_err_t error, absl::string_view reason = "") {
  const std::string text = absl::StrCat(
      rd_kafka_err2name(error), ": ",
      base::Shorten(reason.empty() ? rd_kafka_err2str(error) : reason,
                    base::kMaxStatusTextBytes));
  switch (error) {
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
      return absl::NotFoundError(text);
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
      return absl::OutOfRangeError(text);
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::Status Set(rd_kafka_conf_t* conf, const std::string& name,
                 const std::string& value) {
  std::array<char, kTextBytes> text = {};
  if (rd_kafka_conf_set(conf, name.c_str(), value.c_str(), text.data(),
                        text.size()) != RD_KAFKA_CONF_OK) {
    return absl::InvalidArgumentError(
        absl::StrCat("property '", base::Shorten(name), "': ", text.data()));
  }
  return absl::OkStatus();
}

absl::Status SetAll(rd_kafka_conf_t* conf, absl::string_view lines) {
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const std::string name(absl::StripAsciiWhitespace(parts.first));
    if (name.size() == line.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", base::Shorten(line), "' is no line PROPERTY=VALUE"));
    }
    REFRACT_RETURN_IF_ERROR(Set(
        conf, name, std::string(absl::StripAsciiWhitespace(parts.second))));
  }
  return absl::OkStatus();
}

int Milliseconds(absl::Duration time) {
  return static_cast<int>(absl::ToInt64Milliseconds(time));
}

// With librdkafka's consumer of partitions: it belongs to no consumer group, so
// that every node reads all messages, and the node's folder alone says which it
// has.
class LibrdkafkaReader final : public KafkaReader {
 public:
  explicit LibrdkafkaReader(const KafkaOptions& options)
      : topic_name_(options.topic), max_message_(options.max_message_bytes) {}
  ~LibrdkafkaReader() override {
    for (int i = 0; i < started_; ++i) rd_kafka_consume_stop(topic_.get(), i);
  }

  absl::Status Open(const KafkaOptions& options) {
    Owned<rd_kafka_conf_t> conf(rd_kafka_conf_new());
    // Brokers send a batch that is longer than the limits of a fetch when it is
    // the first: the node then names the message instead of waiting at it.
    const size_t longest = std::max(options.max_message_bytes, kLeastFetch);
    const std::string most = absl::StrCat(longest);
    for (const auto& [name, value] :
         std::initializer_list<std::pair<std::string, std::string>>{
             {"bootstrap.servers", options.brokers},
             {"client.id", "refract-cpu-node"},
             {"enable.auto.commit", "false"},
             {"enable.auto.offset.store", "false"},
             {"auto.offset.reset", "earliest"},
             {"allow.auto.create.topics", "false"},
             {"reconnect.backoff.max.ms", "2000"},
             {"log.connection.close", "false"},
             // Deltas are long: no use in more than a few in memory.
             {"queued.min.messages", "16"},
             {"queued.max.messages.kbytes", "65536"},
             {"fetch.message.max.bytes", most},
             {"fetch.max.bytes", most},
             {"receive.message.max.bytes",
              absl::StrCat(4 * longest)}}) {
      REFRACT_RETURN_IF_ERROR(Set(conf.get(), name, value));
    }
    REFRACT_RETURN_IF_ERROR(SetAll(conf.get(), options.properties));
    rd_kafka_conf_set_opaque(conf.get(), this);
    rd_kafka_conf_set_error_cb(
        conf.get(), [](rd_kafka_t*, int error, const char* reason, void* self) {
          absl::Status& last = static_cast<LibrdkafkaReader*>(self)->error_;
          // This error follows the errors of single brokers, which say more.
          if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && !last.ok()) return;
          last = ErrorOf(static_cast<rd_kafka_resp_err_t>(error), reason);
        });
    // The library repeats its lines while a broker is away; error_ has them.
    rd_kafka_conf_set_log_cb(
        conf.get(), [](const rd_kafka_t*, int, const char*, const char*) {});
    std::array<char, kTextBytes> text = {};
    handle_.reset(rd_kafka_new(RD_KAFKA_CONSUMER, conf.get(), text.data(),
                               text.size()));
    if (handle_ == nullptr) return absl::InvalidArgumentError(text.data());
    (void)conf.release();  // the handle's
    topic_.reset(
        rd_kafka_topic_new(handle_.get(), topic_name_.c_str(), nullptr));
    if (topic_ == nullptr) return ErrorOf(rd_kafka_last_error());
    queue_.reset(rd_kafka_queue_new(handle_.get()));
    return absl::OkStatus();
  }

  absl::StatusOr<int> CountPartitions(absl::Duration timeout) override {
    rd_kafka_poll(handle_.get(), 0);
    const rd_kafka_metadata_t* found = nullptr;
    const rd_kafka_resp_err_t error =
        rd_kafka_metadata(handle_.get(), /*all_topics=*/0, topic_.get(), &found,
                          Milliseconds(timeout));
    if (error != RD_KAFKA_RESP_ERR_NO_ERROR) {
      rd_kafka_poll(handle_.get(), 0);
      // The reason, such as a refused connection, rather than a time-out.
      const absl::Status why = std::exchange(error_, absl::OkStatus());
      return why.ok() ? ErrorOf(error) : why;
    }
    error_ = absl::OkStatus();
    const Owned<const rd_kafka_metadata_t> metadata(found);
    if (metadata->topic_cnt != 1) {
      return absl::UnavailableError("the broker did not name the topic");
    }
    const rd_kafka_metadata_topic_t& topic = metadata->topics[0];
    if (topic.err != RD_KAFKA_RESP_ERR_NO_ERROR) return ErrorOf(topic.err);
    if (topic.partition_cnt == 0) {
      return absl::NotFoundError("the topic has no partition");
    }
    for (int i = 0; i < topic.partition_cnt; ++i) {
      if (topic.partitions[i].err != RD_KAFKA_RESP_ERR_NO_ERROR) {
        return base::Annotate(ErrorOf(topic.partitions[i].err),
                              absl::StrCat("partition ", i));
      }
    }
    return topic.partition_cnt;
  }

  absl::Status Start(int partition, int64_t offset) override {
    static_assert(kBeginning == RD_KAFKA_OFFSET_BEGINNING);
    if (partition < started_) rd_kafka_consume_stop(topic_.get(), partition);
    if (rd_kafka_consume_start_queue(topic_.get(), partition, offset,
                                     queue_.get()) != 0) {
      return ErrorOf(rd_kafka_last_error());
    }
    started_ = std::max(started_, partition + 1);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Poll(
      absl::Duration timeout,
      const std::function<void(const Message&)>& take) override {
    rd_kafka_poll(handle_.get(), 0);
    const Owned<rd_kafka_message_t> message(
        rd_kafka_consume_queue(queue_.get(), Milliseconds(timeout)));
    if (message == nullptr) {
      if (absl::Status why = std::exchange(error_, absl::OkStatus()); !why.ok())
        return why;
      return false;
    }
    const absl::string_view bytes(static_cast<const char*>(message->payload),
                                  message->payload == nullptr ? 0 : message->len);
    Message taken{.partition = message->partition,
                  .offset = message->offset,
                  .value = bytes};
    if (message->err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE) {
      taken.value = ErrorOf(message->err, bytes);
    } else if (message->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
      return ErrorOf(message->err, bytes);
    } else if (bytes.size() > max_message_) {
      taken.value = absl::OutOfRangeError(
          absl::StrCat("the message has ", bytes.size(),
                       " bytes; a delta has at most ", max_message_));
    }
    take(taken);
    return true;
  }

  int64_t Behind(int partition, int64_t offset) const override {
    int64_t low = 0;
    int64_t high = 0;
    const auto error = rd_kafka_get_watermark_offsets(
        handle_.get(), topic_name_.c_str(), partition, &low, &high);
    // The library answers with its negative marks before the first fetch.
    if (error != RD_KAFKA_RESP_ERR_NO_ERROR || high < 0) return 0;
    return std::max<int64_t>(high - std::max(offset, std::max<int64_t>(low, 0)),
                             0);
  }

 private:
  const std::string topic_name_;
  const size_t max_message_;
  // Partitions that are being read: 0 to started_ - 1.
  int started_ = 0;
  absl::Status error_;  // from the library's call-back, in Poll()
  Owned<rd_kafka_t> handle_;
  Owned<rd_kafka_topic_t> topic_;
  Owned<rd_kafka_queue_t> queue_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<KafkaReader>> MakeKafkaReader(
    const KafkaOptions& options) {
  auto reader = std::make_unique<LibrdkafkaReader>(options);
  REFRACT_RETURN_IF_ERROR(reader->Open(options));
  return reader;
}

}  // namespace refract::cpu_node
