#include "bench/gpu_node/node_subject.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "gpu_node/model/device_model.h"
#include "gpu_node/model/warm_up.h"
#include "transport/memory/arena.h"
#include "transport/memory/mapping.h"
#include "transport/loop/waker.h"

namespace refract::bench {
namespace {

// For answers that wait to be read: far more than run at any time.
constexpr size_t kAnswerBytes = size_t{64} << 20;
// A full queue would end a run for another reason than its deadlines.
constexpr size_t kMaxQueue = size_t{1} << 20;

absl::StatusOr<std::shared_ptr<transport::LinkMemory>> MakeMemory() {
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<transport::ThreadWaker> waker,
                           transport::ThreadWaker::Create());
  std::vector<std::shared_ptr<transport::Arena>> arenas;
  // The arenas of a link: messages to send, error texts, pulls. Answers are
  // allocated in the first and freed without being sent.
  for (int i = 0; i < 3; ++i) {
    REFRACT_ASSIGN_OR_RETURN(auto mapping,
                             transport::Mapping::Anonymous(kAnswerBytes));
    const transport::Region region{0, std::move(mapping)};
    arenas.push_back(
        std::make_shared<transport::Arena>(region, 0, kAnswerBytes, waker));
  }
  return std::make_shared<transport::LinkMemory>(transport::Region{}, arenas[0],
                                                 arenas[1], arenas[2], waker,
                                                 kAnswerBytes, 1);
}

}  // namespace

absl::StatusOr<std::vector<PreparedRequest>> PrepareRequests(
    const models::LoadedModel& model, const std::vector<int64_t>& rows) {
  if (!model.plan.has_value() || !model.plan->uses_hn()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model '", model.name,
                     "' has no split plan with a part for GPU nodes"));
  }
  const runtime::Part part = runtime::Part::Hn(model.graph, *model.plan);
  std::vector<PreparedRequest> requests;
  for (size_t i = 0; i < rows.size(); ++i) {
    PreparedRequest request;
    request.rows = rows[i];
    REFRACT_ASSIGN_OR_RETURN(
        request.inputs, gpu_node::MakeInputs(model.graph, part, rows[i],
                                             static_cast<uint32_t>(i + 1)));
    requests.push_back(std::move(request));
  }
  return requests;
}

// One request; the values of its answer go to `values` unless that is null.
class NodeSubject::Call : public transport::ServerCall {
 public:
  using Done = std::function<void(const absl::Status&)>;
  Call(const NodeSubject* subject, size_t request, absl::Time deadline,
       std::vector<float>* values, Done done)
      : subject_(*subject),
        tensors_(subject->views_[request]),
        deadline_(deadline),
        values_(values),
        done_(std::move(done)) {}

  size_t model() const override { return 0; }
  absl::Time deadline() const override { return deadline_; }
  absl::Span<const base::TensorView> tensors() const override {
    return tensors_;
  }
  // The payload is in memory: no pull is needed.
  bool settled() const override { return true; }
  bool abandoned() const override { return false; }
  absl::StatusOr<transport::OutgoingMessage> AllocateReply(
      absl::Span<const base::TensorSpec> specs) override {
    if (values_ != nullptr) specs_.assign(specs.begin(), specs.end());
    REFRACT_ASSIGN_OR_RETURN(
        auto message,
        transport::NewMessage(subject_.memory_,
                              transport::MessageKind::kResponse, specs));
    return transport::OutgoingMessage(std::move(message));
  }
  void Reply(transport::OutgoingMessage message) override {
    // The first float output is compared.
    for (size_t i = 0; values_ != nullptr && i < specs_.size(); ++i) {
      if (specs_[i].dtype != base::DType::kFloat32) continue;
      int64_t count = 1;
      for (const int64_t dim : specs_[i].dims) count *= dim;
      const auto* const data = reinterpret_cast<const float*>(message.data(i));
      values_->assign(data, data + count);
      break;
    }
    done_(absl::OkStatus());
  }
  void Fail(const absl::Status& why) override { done_(why); }

 private:
  const NodeSubject& subject_;
  const absl::Span<const base::TensorView> tensors_;
  const absl::Time deadline_;
  std::vector<float>* const values_;
  std::vector<base::TensorSpec> specs_;
  const Done done_;
};

NodeSubject::NodeSubject(const std::vector<PreparedRequest>& requests)
    : requests_(requests) {
  for (const PreparedRequest& request : requests) {
    views_.emplace_back();
    for (const base::Tensor& input : request.inputs) {
      views_.back().push_back(input.view());
    }
  }
}

absl::StatusOr<std::unique_ptr<NodeSubject>> NodeSubject::Create(
    std::shared_ptr<const models::LoadedModel> model,
    const std::vector<PreparedRequest>& requests,
    const NodeSubjectOptions& options) {
  std::unique_ptr<NodeSubject> subject(new NodeSubject(requests));
  REFRACT_ASSIGN_OR_RETURN(subject->memory_, MakeMemory());
  // The options decide whether requests are merged.
  auto copy = std::make_shared<models::LoadedModel>(*model);
  copy->config.serving.dynamic_batching = false;
  std::vector<std::unique_ptr<gpu_node::DeviceModel>> models;
  REFRACT_ASSIGN_OR_RETURN(auto part,
                           gpu_node::DeviceModel::Create(std::move(copy)));
  subject->merges_ = part->layout().why_not().empty();
  models.push_back(std::move(part));
  gpu_node::GpuNodeOptions node;
  node.instances = options.instances;
  node.max_queue = kMaxQueue;
  node.batching_window = options.batching_window;
  REFRACT_ASSIGN_OR_RETURN(
      subject->node_, gpu_node::GpuNode::Create(
                          gpu_node::DeviceModels(std::move(models)), node));
  return subject;
}

NodeSubject::~NodeSubject() = default;

bool NodeSubject::merges() const { return merges_; }

void NodeSubject::Issue(size_t query, size_t request, absl::Time deadline,
                        loadgen::CompletionSink& sink) {
  node_->OnRequest(
      std::make_unique<Call>(this, request, deadline, nullptr,
                             [query, &sink](const absl::Status& status) {
                               sink.Done(query, status.code());
                             }));
}

absl::StatusOr<std::vector<std::vector<float>>> NodeSubject::AnswerAll() {
  std::vector<std::vector<float>> answers(requests_.size());
  absl::Mutex mu;
  absl::Status failure;
  absl::BlockingCounter open(static_cast<int>(requests_.size()));
  for (size_t i = 0; i < requests_.size(); ++i) {
    node_->OnRequest(std::make_unique<Call>(this, i, absl::InfiniteFuture(),
                                            &answers[i],
                                            [&](const absl::Status& status) {
                                              {
                                                absl::MutexLock lock(&mu);
                                                failure.Update(status);
                                              }
                                              open.DecrementCount();
                                            }));
  }
  open.Wait();
  absl::MutexLock lock(&mu);
  REFRACT_RETURN_IF_ERROR(failure);
  return answers;
}

}  // namespace refract::bench
