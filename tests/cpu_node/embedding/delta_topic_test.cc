// Deltas from a topic of Kafka: librdkafka's mock cluster is the broker.

#include "cpu_node/embedding/delta_topic.h"

#include <fcntl.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <sys/file.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/process/files.h"
#include "base/sha256.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/repository/files/safetensors.h"
#include "proto/deltas.pb.h"
#include "tests/cpu_node/serving_fixture.h"

namespace refract::cpu_node {
namespace {

using ::testing::HasSubstr;
using testing_models::kDim;

constexpr char kTopic[] = "deltas";

// A broker at a port of this host, and a producer.
class Broker {
 public:
  Broker() {
    char text[512];
    rd_kafka_conf_t* const conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(
        conf, [](const rd_kafka_t*, int, const char*, const char*) {});
    Set(conf, "message.max.bytes", "100000000");
    Set(conf, "linger.ms", "0");
    Set(conf, "reconnect.backoff.max.ms", "100");
    Set(conf, "test.mock.num.brokers", "1");
    handle_ = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    EXPECT_NE(handle_, nullptr) << text;
    cluster_ = rd_kafka_handle_mock_cluster(handle_);
    rd_kafka_mock_topic_create(cluster_, kTopic, 1, 1);
  }
  ~Broker() { rd_kafka_destroy(handle_); }

  std::string address() const {
    return rd_kafka_mock_cluster_bootstraps(cluster_);
  }
  rd_kafka_mock_cluster_t* cluster() const { return cluster_; }
  void Send(const std::string& value, const std::string& topic = kTopic,
            int partition = 0) const {
    const rd_kafka_resp_err_t sent = rd_kafka_producev(
        handle_, RD_KAFKA_V_TOPIC(topic.c_str()),
        RD_KAFKA_V_PARTITION(partition),
        RD_KAFKA_V_VALUE(const_cast<char*>(value.data()), value.size()),
        RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END);
    ASSERT_EQ(sent, RD_KAFKA_RESP_ERR_NO_ERROR);
    ASSERT_EQ(rd_kafka_flush(handle_, 30000), RD_KAFKA_RESP_ERR_NO_ERROR);
  }

 private:
  static void Set(rd_kafka_conf_t* conf, const char* name, const char* value) {
    char text[512];
    EXPECT_EQ(rd_kafka_conf_set(conf, name, value, text, sizeof(text)),
              RD_KAFKA_CONF_OK)
        << text;
  }
  rd_kafka_t* handle_ = nullptr;
  rd_kafka_mock_cluster_t* cluster_ = nullptr;
};

// Row 1 of the table gets the value in all columns. The delta's id is "d" and
// its sequence.
std::string DeltaMessage(int64_t sequence, float value, int64_t parent = -1,
                         int64_t version = 1) {
  if (parent < 0) parent = sequence - 1;
  const int64_t id = 1;
  const std::vector<float> row(kDim, value);
  const auto view = [](base::DType dtype, base::Dims dims, const void* data,
                       size_t bytes) {
    base::TensorView result;
    result.dtype = dtype;
    result.dims = std::move(dims);
    result.data = static_cast<const std::byte*>(data);
    result.bytes = bytes;
    return result;
  };
  const std::string path = testing::TempDir() + "/topic_rows.safetensors";
  EXPECT_TRUE(models::WriteSafetensors(
                  path, {{"table/ids", view(base::DType::kInt64, {1}, &id,
                                            sizeof(id))},
                         {"table/rows", view(base::DType::kFloat32, {1, kDim},
                                             row.data(), kDim * 4)}})
                  .ok());
  const std::string rows = *base::ReadText(path);
  const std::string sha256 = base::Sha256Hex(
      {reinterpret_cast<const std::byte*>(rows.data()), rows.size()});
  proto::AppendDeltaRequest request;
  request.set_rows(rows);
  request.set_manifest(absl::StrCat(
      R"({"format":"refract-delta","schema":1,"model":"small","version":)",
      version, R"(,"sequence":)", sequence, R"(,"id":"d)", sequence,
      R"(","parent":{"sequence":)", parent, R"(,"id":")",
      parent == 0 ? "" : absl::StrCat("d", parent), R"("},"rows":{"file":")",
      absl::StrFormat("delta-%020d-%s.safetensors", sequence,
                      sha256.substr(0, 8)),
      R"(","bytes":)", rows.size(), R"(,"sha256":")", sha256,
      R"("},"tables":{"table":{"upserted":1,"deleted":0}}})"));
  return request.SerializeAsString();
}

class DeltaTopicTest : public testing::Test {
 protected:
  DeltaTopicTest() {
    folder_ = testing::TempDir() + "/topic_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~DeltaTopicTest() override {
    topic_.reset();
    std::filesystem::remove_all(folder_);
  }

  // A node that serves these versions, started again.
  void Serve(const std::vector<int64_t>& versions) {
    std::vector<Catalog::Entry> entries;
    for (const int64_t version : versions) {
      ServedModelOptions options;
      options.local_fallback = true;
      options.deltas_folder = folder_;
      auto served = ServedModel::Create(
          testing_models::MakeSmallModel({.version = version, .split = false}),
          options);
      ASSERT_TRUE(served.ok()) << served.status();
      (*served)->deltas()->CatchUp();
      entries.push_back({"small", version, *std::move(served)});
    }
    absl::MutexLock lock(&mu_);
    catalog_ = std::make_shared<Catalog>(std::move(entries));
  }
  std::shared_ptr<const Catalog> catalog() const {
    absl::MutexLock lock(&mu_);
    return catalog_;
  }
  void Start(const std::string& brokers, const std::string& topic = kTopic,
             size_t max_message_bytes = size_t{64} << 20) {
    topic_.reset();
    auto reader = MakeKafkaReader({.brokers = brokers,
                                   .topic = topic,
                                   .properties = "reconnect.backoff.max.ms=100",
                                   .max_message_bytes = max_message_bytes});
    ASSERT_TRUE(reader.ok()) << reader.status();
    auto started =
        DeltaTopic::Start(*std::move(reader), [this] { return catalog(); },
                          {.topic = topic, .deltas_folder = folder_});
    ASSERT_TRUE(started.ok()) << started.status();
    topic_ = *std::move(started);
  }
  DeltaTopic::Counts counts() const { return topic_->counts(); }
  void Await(const std::function<bool(const DeltaTopic::Counts&)>& reached) {
    const absl::Time end = absl::Now() + kPatience;
    while (!reached(counts()) && absl::Now() < end) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    const DeltaTopic::Counts last = counts();
    ASSERT_TRUE(reached(last))
        << "added " << last.added << ", known " << last.known << ", refused "
        << last.refused << ", other " << last.other << ", errors "
        << last.errors << ", up " << last.up;
  }
  void AwaitAdded(uint64_t added) {
    Await([&](const auto& counts) { return counts.added >= added; });
  }
  // The last delta and the value of row 1, once the node has applied what its
  // folder has.
  std::pair<int64_t, float> State(int64_t version = 1) {
    const auto model = *catalog()->Find("small", absl::StrCat(version));
    auto* const served = const_cast<ServedModel*>(model.get());
    served->deltas()->CatchUp();
    const TableStore::Pin pin = served->PinTables();
    const auto* const overlay = served->tables()->overlays().at("table");
    const std::byte* const row =
        overlay->any() ? overlay->Find(1, pin.state()) : nullptr;
    float value = 0;
    if (row != nullptr) std::memcpy(&value, row, sizeof(value));
    return {served->deltas()->counts().state.sequence, value};
  }
  std::string Folder() const { return folder_ + "/small/1"; }
  std::string Position() const { return Folder() + "/.kafka-position"; }

  std::string folder_;
  Broker broker_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const Catalog> catalog_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<DeltaTopic> topic_;
};

// What State() returns.
std::pair<int64_t, float> Is(int64_t sequence, float value) {
  return {sequence, value};
}

TEST_F(DeltaTopicTest, RowsBecomeVisibleAndANodeGoesOnWhereItWas) {
  Serve({1});
  broker_.Send(DeltaMessage(1, 1.5F));
  broker_.Send(DeltaMessage(2, 2.5F));
  Start(broker_.address());
  AwaitAdded(2);
  EXPECT_EQ(State(), Is(2, 2.5F));
  broker_.Send(DeltaMessage(3, 3.5F));
  AwaitAdded(3);
  EXPECT_EQ(State(), Is(3, 3.5F));
  EXPECT_TRUE(counts().up);
  EXPECT_EQ(counts().errors, 0);

  // Restarts: the folder has the deltas, the topic is read after them.
  topic_.reset();
  Serve({1});
  broker_.Send(DeltaMessage(4, 4.5F));
  EXPECT_EQ(*base::ReadText(Position()), "deltas 0 3\n");
  Start(broker_.address());
  AwaitAdded(1);
  EXPECT_EQ(counts().known, 0);
  EXPECT_EQ(State(), Is(4, 4.5F));

  // Without a position, deltas that are there are passed over.
  topic_.reset();
  std::filesystem::remove(Position());
  Start(broker_.address());
  Await([](const auto& counts) { return counts.known == 4; });
  EXPECT_EQ(counts().added, 0);

  // With the folder, a node loses its position, and reads all again.
  topic_.reset();
  std::filesystem::remove_all(folder_);
  Serve({1});
  EXPECT_EQ(State().first, 0);
  Start(broker_.address());
  AwaitAdded(4);
  EXPECT_EQ(State(), Is(4, 4.5F));
}

TEST_F(DeltaTopicTest, WhatDoesNotFitIsRefusedByNameAndTheNextIsTaken) {
  Serve({1});
  broker_.Send(DeltaMessage(1, 1));
  broker_.Send("no message of Protobuf");
  broker_.Send("");
  broker_.Send(DeltaMessage(3, 3));  // its parent is missing
  broker_.Send(DeltaMessage(4, 4));
  std::string spoilt = DeltaMessage(2, 2);
  spoilt.back() ^= 1;
  broker_.Send(spoilt);
  testing::internal::CaptureStderr();
  FLAGS_logtostderr = true;
  Start(broker_.address());
  Await([](const auto& counts) { return counts.refused == 5; });
  broker_.Send(DeltaMessage(2, 2.5F));
  broker_.Send(DeltaMessage(3, 3.5F));
  AwaitAdded(3);
  FLAGS_logtostderr = false;
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("partition 0 offset 1: message refused"));
  EXPECT_THAT(log, HasSubstr("partition 0 offset 3: delta of small/1 refused"));
  EXPECT_THAT(log, HasSubstr("gap: the parent is delta 2, the last delta in "
                             "the folder is 1"));
  // A line for the messages, and a line for the version.
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(log, " refused (")).size(),
            3);
  EXPECT_EQ(State(), Is(3, 3.5F));
  EXPECT_EQ(counts().refused, 5);
}

TEST_F(DeltaTopicTest, GoesBackWhereDeltasAreMissing) {
  Serve({1});
  for (int i = 1; i <= 3; ++i)
    broker_.Send(DeltaMessage(i, static_cast<float>(i)));
  // The topic was made anew, with more and with fewer messages than before.
  for (const char* const position : {"deltas 0 2\n", "deltas 0 1000\n"}) {
    topic_.reset();
    std::filesystem::remove_all(Folder());
    std::filesystem::create_directories(Folder());
    ASSERT_TRUE(base::WriteText(Position(), position).ok());
    Serve({1});
    Start(broker_.address());
    AwaitAdded(3);
    EXPECT_EQ(counts().refused, 0);
    EXPECT_EQ(State(), Is(3, 3));
  }
}

TEST_F(DeltaTopicTest, VersionsThatAreServedLaterGetTheirDeltas) {
  Serve({});
  broker_.Send(DeltaMessage(1, 1.5F));
  broker_.Send(DeltaMessage(1, 9.5F, 0, /*version=*/2));
  broker_.Send(DeltaMessage(2, 2.5F));
  Start(broker_.address());
  Await([](const auto& counts) { return counts.other == 3; });
  Serve({1});
  AwaitAdded(2);
  EXPECT_EQ(State(), Is(2, 2.5F));
  // A start behind the other version's delta, which is found all the same.
  Start(broker_.address());
  Await([](const auto& counts) { return counts.up; });
  broker_.Send(DeltaMessage(3, 3.5F));
  AwaitAdded(1);
  EXPECT_EQ(counts().other, 0);
  Serve({1, 2});
  AwaitAdded(2);
  EXPECT_EQ(State(2), Is(1, 9.5F));
  EXPECT_EQ(State(1), Is(3, 3.5F));
}

TEST_F(DeltaTopicTest, ABrokerThatIsAwayIsLoggedOnceAndComesBack) {
  Serve({1});
  Start(broker_.address());
  broker_.Send(DeltaMessage(1, 1));
  AwaitAdded(1);
  testing::internal::CaptureStderr();
  FLAGS_logtostderr = true;
  rd_kafka_mock_broker_set_down(broker_.cluster(), -1);
  Await([](const auto& counts) { return counts.errors == 1 && !counts.up; });
  absl::SleepFor(absl::Seconds(2));  // tries that fail alike
  EXPECT_EQ(counts().errors, 1);
  EXPECT_EQ(State(), Is(1, 1));
  rd_kafka_mock_broker_set_up(broker_.cluster(), -1);
  Await([](const auto& counts) { return counts.up; });
  broker_.Send(DeltaMessage(2, 2));
  AwaitAdded(2);
  FLAGS_logtostderr = false;
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(
      std::vector<std::string>(absl::StrSplit(log, "no deltas come")).size(), 2)
      << log;
  EXPECT_THAT(log, HasSubstr("'deltas': deltas are read from 1 partition"));
  EXPECT_EQ(counts().known, 0);
}

TEST_F(DeltaTopicTest, NoBrokerAndNoTopicAreErrorsThatEnd) {
  Serve({1});
  testing::internal::CaptureStderr();
  FLAGS_logtostderr = true;
  Start("127.0.0.1:1");
  Await([](const auto& counts) { return counts.errors == 1; });
  broker_.Send(DeltaMessage(1, 1));
  rd_kafka_mock_topic_set_error(broker_.cluster(), kTopic,
                                RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
  Start(broker_.address());
  Await([](const auto& counts) { return counts.errors == 1; });
  EXPECT_FALSE(counts().up);
  rd_kafka_mock_topic_set_error(broker_.cluster(), kTopic,
                                RD_KAFKA_RESP_ERR_NO_ERROR);
  AwaitAdded(1);
  FLAGS_logtostderr = false;
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("Connection refused"));
  EXPECT_THAT(log, HasSubstr("UNKNOWN_TOPIC_OR_PART"));
}

TEST_F(DeltaTopicTest, WaitsForAnotherWriter) {
  Serve({1});
  std::filesystem::create_directories(Folder());
  const std::string path = Folder() + "/.lock";
  base::UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  broker_.Send(DeltaMessage(1, 1));
  Start(broker_.address());
  Await([](const auto& counts) { return counts.up; });
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_EQ(counts().added + counts().refused, 0);
  ASSERT_EQ(flock(lock.get(), LOCK_UN), 0);
  AwaitAdded(1);
}

TEST_F(DeltaTopicTest, LongMessagesAreRefused) {
  Serve({1});
  broker_.Send(DeltaMessage(1, 1));
  broker_.Send(std::string(3000, 'x'));
  broker_.Send(std::string(900000, 'x'));
  broker_.Send(DeltaMessage(2, 2));
  Start(broker_.address(), kTopic, /*max_message_bytes=*/2000);
  AwaitAdded(2);
  EXPECT_EQ(counts().refused, 2);
}

TEST_F(DeltaTopicTest, ReadsAllPartitions) {
  rd_kafka_mock_topic_create(broker_.cluster(), "three", 3, 1);
  Serve({1, 2});
  for (int i = 1; i <= 3; ++i) {
    broker_.Send(DeltaMessage(i, static_cast<float>(i)), "three", 2);
    broker_.Send(DeltaMessage(i, static_cast<float>(-i), -1, 2), "three", 0);
  }
  Start(broker_.address(), "three");
  AwaitAdded(6);
  EXPECT_EQ(State(1), Is(3, 3));
  EXPECT_EQ(State(2), Is(3, -3));
  Start(broker_.address(), "three");
  broker_.Send(DeltaMessage(4, 4), "three", 2);
  AwaitAdded(1);
  Await([](const auto& counts) { return counts.behind == 0; });
}

TEST(KafkaReaderTest, WrongPropertiesAreNamed) {
  const auto error = [](const std::string& properties) {
    return std::string(MakeKafkaReader({.brokers = "127.0.0.1:1",
                                        .topic = kTopic,
                                        .properties = properties})
                           .status()
                           .message());
  };
  EXPECT_EQ(error("# none\n\n client.id = a = b \n"), "");
  EXPECT_THAT(error("client.i=a"), HasSubstr("property 'client.i'"));
  EXPECT_THAT(error("security.protocol=none"),
              HasSubstr("property 'security.protocol'"));
  EXPECT_THAT(error("client.id"), HasSubstr("'client.id' is no line"));
}

}  // namespace
}  // namespace refract::cpu_node
