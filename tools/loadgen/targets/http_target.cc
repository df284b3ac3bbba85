#include "tools/loadgen/targets/http_target.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/ssl.hpp"
#include "nlohmann/json.hpp"
#include "runtime/tensor_elements.h"
#include "tools/loadgen/targets/http_connection.h"

namespace refract::loadgen {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::json;

// While answers are late, an open loop needs more connections: HTTP/1.1 takes
// one request at a time on each. Queries beyond this number wait.
constexpr size_t kMaxConnections = 1000;  // to each address
constexpr absl::Duration kHttpControlTimeout = absl::Seconds(30);
constexpr absl::Duration kHttpPollInterval = absl::Milliseconds(100);

// Codes as gRPC would give them, so that reports of both protocols count the
// same errors (cpu_node/http/service.cc has the inverse).
absl::StatusCode CodeOf(int status) {
  switch (status) {
    case 200:
      return absl::StatusCode::kOk;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 499:
      return absl::StatusCode::kCancelled;
    case 405:
    case 501:
      return absl::StatusCode::kUnimplemented;
    case 502:
    case 503:
      return absl::StatusCode::kUnavailable;
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return status >= 400 && status < 500 ? absl::StatusCode::kInvalidArgument
                                           : absl::StatusCode::kInternal;
  }
}

// OK for 200; else the server's reason, {"error": "…"} as KServe v2 has it.
absl::Status StatusOf(const HttpAnswer& answer, absl::string_view call) {
  if (answer.status == 200) return absl::OkStatus();
  const Json json = base::ParseJson(answer.body);
  std::string reason = absl::StrCat("HTTP status ", answer.status);
  if (json.is_object() && json.contains("error") && json["error"].is_string()) {
    reason = json["error"].get<std::string>();
  }
  return absl::Status(CodeOf(answer.status), absl::StrCat(call, ": ", reason));
}

// The elements as JSON; null for a type that JSON has not.
Json ElementsOf(const base::Tensor& tensor) {
  const bool flags = tensor.dtype() == base::DType::kBool;
  return runtime::VisitElements(tensor.view(), [&](auto elements) -> Json {
    using T = typename decltype(elements)::value_type;
    if constexpr (runtime::kIsHalf<T>) {
      return nullptr;
    } else {
      Json list = Json::array();
      for (const T element : elements) {
        list.push_back(flags ? Json(element != 0) : Json(element));
      }
      return list;
    }
  });
}

// Connections to one address.
struct Pool {
  HttpPeer peer;
  size_t connections = 0;
  std::vector<std::unique_ptr<HttpConnection>> all;
  std::vector<HttpConnection*> idle;  // the last used at the end
};

class HttpTarget final : public Target {
 public:
  HttpTarget(const TargetOptions& options, base::Clock& clock);
  ~HttpTarget() override;

  absl::Status Reach();

  absl::StatusOr<ServedModel> DescribeModel(const std::string& name,
                                            const std::string& version,
                                            absl::Duration timeout) override;
  absl::StatusOr<ServerTimes> Statistics(const ServedModel& model) override;
  size_t Prepare(const ServedModel& model,
                 absl::Span<const base::Tensor> tensors) override;
  void Record(size_t count) override;
  absl::StatusOr<RecordedResponse> Recorded(size_t request) const override;
  void Issue(size_t query, size_t request, absl::Time deadline,
             CompletionSink& sink) override;
  Answers TakeAnswers() override {
    absl::MutexLock lock(&mu_);
    return std::exchange(answers_, {});
  }

 private:
  struct Query {
    size_t query = 0;
    size_t request = 0;
    absl::Time deadline;
    CompletionSink* sink = nullptr;
  };
  struct Prepared {
    std::string body;
    size_t json_bytes = 0;
  };

  static std::string PathOf(const ServedModel& model, absl::string_view end);
  // Asks one server and waits for the answer. `call` names the question.
  absl::StatusOr<HttpAnswer> Ask(Pool& pool, const std::string& target,
                                 absl::string_view call);
  absl::StatusOr<Json> AskJson(Pool& pool, const std::string& target,
                               absl::string_view call);
  absl::Status AwaitReady(Pool& pool, const ServedModel& model,
                          absl::Time deadline);

  // On the thread of the context.
  void Start(Query query);
  void Send(Pool& pool, HttpConnection* connection, const Query& query);
  absl::Status Accept(size_t request, const HttpAnswer& answer);

  base::Clock& clock_;
  asio::ssl::context tls_{asio::ssl::context::tls_client};
  absl::Status tls_status_;
  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{
      context_.get_executor()};
  std::vector<Pool> pools_;
  std::vector<std::deque<Query>> waiting_;  // of each pool
  absl::Duration connect_timeout_;
  bool binary_ = true;
  std::string infer_path_;
  // Written by Prepare() only, so never while queries are out. A deque: bodies
  // stay where they are.
  std::deque<Prepared> requests_;
  mutable absl::Mutex mu_;
  Answers answers_ ABSL_GUARDED_BY(mu_);
  size_t record_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<size_t, HttpAnswer> recorded_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

HttpTarget::HttpTarget(const TargetOptions& options, base::Clock& clock)
    : clock_(clock),
      waiting_(options.addresses.size()),
      connect_timeout_(options.connect_timeout) {
  if (options.tls) {
    try {
      tls_.set_verify_mode(asio::ssl::verify_peer);
      if (options.roots.empty()) {
        tls_.set_default_verify_paths();
      } else {
        tls_.add_certificate_authority(asio::buffer(options.roots));
      }
      if (!options.certificate.empty()) {
        tls_.use_certificate_chain(asio::buffer(options.certificate));
        tls_.use_private_key(asio::buffer(options.key), asio::ssl::context::pem);
      }
    } catch (const boost::system::system_error& error) {
      tls_status_ = absl::InvalidArgumentError(
          absl::StrCat("the TLS files do not fit: ", error.code().message()));
    }
  }
  for (const std::string& address : options.addresses) {
    Pool pool{.connections = static_cast<size_t>(options.connections)};
    const size_t colon = address.rfind(':');
    pool.peer = {.address = address,
                 .host = address.substr(0, colon),
                 .port = colon == std::string::npos ? ""
                                                    : address.substr(colon + 1),
                 .token = options.token,
                 .tls = options.tls ? &tls_ : nullptr};
    std::string& host = pool.peer.host;
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
    }
    pools_.push_back(std::move(pool));
  }
  // After the loop above: connections refer to their pool's `peer`, which must not move.
  for (Pool& pool : pools_) {
    while (pool.all.size() < pool.connections) {
      pool.all.push_back(HttpConnection::Create(context_, pool.peer));
      pool.idle.push_back(pool.all.back().get());
    }
  }
  thread_ = std::thread([this] { context_.run(); });
}

HttpTarget::~HttpTarget() {
  // Every query was answered before (target.h).
  context_.stop();
  thread_.join();
  pools_.clear();
}

absl::StatusOr<HttpAnswer> HttpTarget::Ask(Pool& pool,
                                           const std::string& target,
                                           absl::string_view call) {
  // Connections belong to the thread of `context_`, so the call is posted there. The locals outlive
  // it, since this thread waits for the answer.
  absl::StatusOr<HttpAnswer> answer = absl::UnknownError("");
  absl::Notification answered;
  asio::post(context_, [&] {
    // No query is out, so that all connections are idle.
    pool.idle.back()->Call({.target = target}, kHttpControlTimeout,
                           [&](absl::StatusOr<HttpAnswer> got) {
                             answer = std::move(got);
                             answered.Notify();
                           });
  });
  answered.WaitForNotification();
  if (!answer.ok()) return base::Annotate(answer.status(), call);
  return answer;
}

absl::StatusOr<Json> HttpTarget::AskJson(Pool& pool, const std::string& target,
                                         absl::string_view call) {
  REFRACT_ASSIGN_OR_RETURN(const HttpAnswer answer, Ask(pool, target, call));
  REFRACT_RETURN_IF_ERROR(StatusOf(answer, call));
  Json json = base::ParseJson(answer.body);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(call, ": the answer is no JSON"));
  }
  return json;
}

absl::Status HttpTarget::Reach() {
  REFRACT_RETURN_IF_ERROR(tls_status_);
  const absl::Time deadline = clock_.Now() + connect_timeout_;
  for (Pool& pool : pools_) {
    while (true) {
      const absl::StatusOr<HttpAnswer> answer =
          Ask(pool, "/v2/health/live", "live");
      // Any answer means that the address is reached, even an HTTP error.
      if (answer.ok()) break;
      if (clock_.Now() >= deadline) {
        return absl::UnavailableError(
            absl::StrCat("--target ", pool.peer.address, ": no connection within ",
                         absl::FormatDuration(connect_timeout_), " (",
                         answer.status().message(), ")"));
      }
      std::this_thread::sleep_for(absl::ToChronoMilliseconds(kHttpPollInterval));
    }
  }
  return absl::OkStatus();
}

std::string HttpTarget::PathOf(const ServedModel& model,
                               absl::string_view end) {
  return absl::StrCat(
      "/v2/models/", model.name,
      model.version.empty() ? "" : absl::StrCat("/versions/", model.version),
      end);
}

absl::Status HttpTarget::AwaitReady(Pool& pool, const ServedModel& model,
                                    absl::Time deadline) {
  while (true) {
    const absl::StatusOr<HttpAnswer> answer =
        Ask(pool, PathOf(model, "/ready"), "model ready");
    if (answer.ok() && answer->status == 200) return absl::OkStatus();
    // Triton answers 400 both for an unknown model and for a model that is
    // being loaded; the metadata tell them apart.
    if (answer.ok() && answer->status != 503) {
      REFRACT_RETURN_IF_ERROR(
          AskJson(pool, PathOf(model, ""), "model metadata").status());
    }
    if (clock_.Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          "model ", model.name, " is not ready at ", pool.peer.address));
    }
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(kHttpPollInterval));
  }
}

absl::StatusOr<ServedModel> HttpTarget::DescribeModel(
    const std::string& name, const std::string& version,
    absl::Duration timeout) {
  ServedModel model{.name = name, .version = version};
  const absl::Time deadline = clock_.Now() + timeout;
  for (Pool& pool : pools_) {
    REFRACT_RETURN_IF_ERROR(AwaitReady(pool, model, deadline));
  }
  Pool& first = pools_.front();
  REFRACT_ASSIGN_OR_RETURN(
      const Json metadata, AskJson(first, PathOf(model, ""), "model metadata"));
  try {
    for (const Json& input : metadata.at("inputs")) {
      const std::string datatype = input.at("datatype").get<std::string>();
      // An unknown type is refused by PlanRequests(), with the input's name.
      const auto dtype = base::DTypeFromKServeName(datatype);
      base::Dims dims;
      for (const Json& dim : input.at("shape")) {
        dims.push_back(dim.get<int64_t>());
      }
      model.inputs.push_back(
          {.name = input.at("name").get<std::string>(),
           .dtype = dtype.value_or(base::DType::kUnknown),
           .dims = dims,
           .unknown_type = dtype.has_value() ? "" : datatype});
    }
    // Extensions; a server without them has no parameters and no binary tensors.
    const absl::StatusOr<Json> config =
        AskJson(first, PathOf(model, "/config"), "model config");
    if (config.ok() && config->contains("parameters")) {
      for (const auto& [key, value] : config->at("parameters").items()) {
        model.parameters[key] = value.at("string_value").get<std::string>();
      }
    }
    const absl::StatusOr<Json> server = AskJson(first, "/v2", "metadata");
    binary_ = false;
    if (server.ok() && server->contains("extensions")) {
      for (const Json& extension : server->at("extensions")) {
        binary_ = binary_ || extension == "binary_tensor_data";
      }
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(
        "metadata of ", name, ": not as KServe v2 has it: ", error.what()));
  }
  for (const ServedInput& input : model.inputs) {
    if (!binary_ && (input.dtype == base::DType::kFloat16 ||
                     input.dtype == base::DType::kBFloat16)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input ", input.name, ": ", base::KServeName(input.dtype),
          " needs the extension binary_tensor_data, which the server lacks"));
    }
  }
  infer_path_ = PathOf(model, "/infer");
  return model;
}

absl::StatusOr<ServerTimes> HttpTarget::Statistics(const ServedModel& model) {
  ServerTimes times;
  for (Pool& pool : pools_) {
    REFRACT_ASSIGN_OR_RETURN(
        const Json stats, AskJson(pool, PathOf(model, "/stats"), "statistics"));
    try {
      for (const Json& one : stats.at("model_stats")) {
        const Json& sums = one.at("inference_stats");
        // KServe's JSON of 64 bits may be text.
        const auto number = [&sums](const char* sum, const char* field) {
          const Json& value = sums.at(sum).at(field);
          int64_t parsed = 0;
          if (value.is_string()) {
            (void)absl::SimpleAtoi(value.get<std::string>(), &parsed);
            return parsed;
          }
          return value.get<int64_t>();
        };
        const auto ns = [&number](const char* sum) {
          return absl::Nanoseconds(number(sum, "ns"));
        };
        times.requests += static_cast<uint64_t>(number("success", "count"));
        times.queue += ns("queue");
        times.before += ns("compute_input");
        times.remote += ns("compute_infer");
        times.after += ns("compute_output");
      }
    } catch (const Json::exception&) {
      return absl::UnimplementedError("statistics are not as Triton's");
    }
  }
  return times;
}

size_t HttpTarget::Prepare(const ServedModel& model,
                           absl::Span<const base::Tensor> tensors) {
  // The body is JSON, then, with binary tensors, their bytes in the order of the inputs.
  // `json_bytes` is the length of the JSON, which a header announces. The id is the request's
  // index, by which Accept() checks that an answer is not another request's.
  Json json = {{"id", absl::StrCat(requests_.size())},
               {"inputs", Json::array()}};
  if (binary_) json["parameters"] = {{"binary_data_output", true}};
  size_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const base::Tensor& tensor = tensors[i];
    Json input = {{"name", model.inputs[i].name},
                  {"datatype", std::string(base::KServeName(tensor.dtype()))},
                  {"shape", std::vector<int64_t>(tensor.dims().begin(),
                                                 tensor.dims().end())}};
    if (binary_) {
      input["parameters"] = {{"binary_data_size", tensor.bytes()}};
      bytes += tensor.bytes();
    } else {
      input["data"] = ElementsOf(tensor);
    }
    json["inputs"].push_back(std::move(input));
  }
  Prepared prepared{.body = base::FormatJson(json)};
  if (binary_) {
    prepared.json_bytes = prepared.body.size();
    prepared.body.reserve(prepared.body.size() + bytes);
    for (const base::Tensor& tensor : tensors) {
      prepared.body.append(reinterpret_cast<const char*>(tensor.data()),
                           tensor.bytes());
    }
  }
  requests_.push_back(std::move(prepared));
  return requests_.back().body.size();
}

void HttpTarget::Issue(size_t query, size_t request, absl::Time deadline,
                       CompletionSink& sink) {
  asio::post(context_, [this, one = Query{query, request, deadline, &sink}] {
    Start(one);
  });
}

void HttpTarget::Start(Query query) {
  // Queries take the addresses in turn. Opening a connection counts as part of the latency of the
  // query that needed it.
  const size_t number = query.query % pools_.size();
  Pool& pool = pools_[number];
  if (pool.idle.empty() && pool.all.size() < kMaxConnections) {
    pool.all.push_back(HttpConnection::Create(context_, pool.peer));
    pool.idle.push_back(pool.all.back().get());
  }
  if (pool.idle.empty()) {
    waiting_[number].push_back(query);
    return;
  }
  HttpConnection* connection = pool.idle.back();
  pool.idle.pop_back();
  Send(pool, connection, query);
}

void HttpTarget::Send(Pool& pool, HttpConnection* connection,
                      const Query& query) {
  const Prepared& request = requests_[query.request];
  connection->Call(
      {.target = infer_path_,
       .body = request.body,
       .json_bytes = request.json_bytes},
      query.deadline - clock_.Now(),
      [this, &pool, connection, query](absl::StatusOr<HttpAnswer> answer) {
        // In this order: the result is recorded and the connection passed on before Done(), since
        // the last Done() ends the run, after which TakeAnswers() is called and the sink goes away.
        const absl::Status status = answer.ok()
                                        ? Accept(query.request, *answer)
                                        : answer.status();
        if (!status.ok()) {
          absl::MutexLock lock(&mu_);
          answers_.first_errors.try_emplace(status.code(), status.message());
        }
        std::deque<Query>& waiting = waiting_[&pool - pools_.data()];
        if (waiting.empty()) {
          pool.idle.push_back(connection);
        } else {
          const Query next = waiting.front();
          waiting.pop_front();
          Send(pool, connection, next);
        }
        query.sink->Done(query.query, status.code());
      });
}

// Looks at an answer far enough to know that it is this request's.
absl::Status HttpTarget::Accept(size_t request, const HttpAnswer& answer) {
  REFRACT_RETURN_IF_ERROR(StatusOf(answer, "infer"));
  const size_t bytes =
      answer.json_bytes > 0 ? answer.json_bytes : answer.body.size();
  if (bytes > answer.body.size()) {
    return absl::DataLossError("an answer is shorter than its header says");
  }
  const Json json =
      base::ParseJson(absl::string_view(answer.body).substr(0, bytes));
  if (!json.is_object()) return absl::DataLossError("an answer is no JSON");
  if (const auto id = json.find("id");
      id != json.end() && *id != absl::StrCat(request)) {
    return absl::DataLossError(absl::StrCat("request ", request,
                                            " got the answer of request ",
                                            base::FormatJson(*id)));
  }
  const auto outputs = json.find("outputs");
  if (outputs == json.end() || !outputs->is_array() || outputs->empty()) {
    return absl::DataLossError("an answer has no outputs");
  }
  absl::MutexLock lock(&mu_);
  answers_.bytes += answer.body.size();
  ++answers_.count;
  if (request < record_) recorded_[request] = answer;
  return absl::OkStatus();
}

void HttpTarget::Record(size_t count) {
  absl::MutexLock lock(&mu_);
  record_ = count;
  recorded_.clear();
}

absl::StatusOr<RecordedResponse> HttpTarget::Recorded(size_t request) const {
  absl::MutexLock lock(&mu_);
  const auto it = recorded_.find(request);
  if (it == recorded_.end()) {
    return absl::NotFoundError(
        absl::StrCat("request ", request, " was not answered"));
  }
  const HttpAnswer& answer = it->second;
  if (answer.json_bytes == 0) {
    return absl::InvalidArgumentError(
        "--record: the server answers without the extension "
        "binary_tensor_data");
  }
  RecordedResponse result;
  size_t at = answer.json_bytes;
  try {
    const Json json =
        base::ParseJson(absl::string_view(answer.body).substr(0, at));
    for (const Json& output : json.at("outputs")) {
      const std::string name = output.at("name").get<std::string>();
      const auto dtype = base::DTypeFromKServeName(
          output.at("datatype").get<std::string>());
      base::Dims dims;
      for (const Json& dim : output.at("shape")) {
        dims.push_back(dim.get<int64_t>());
      }
      const size_t size =
          output.at("parameters").at("binary_data_size").get<size_t>();
      if (!dtype) {
        return absl::InvalidArgumentError(
            absl::StrCat("output ", name, ": its datatype is not known"));
      }
      REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                               base::Tensor::Allocate(*dtype, dims));
      if (tensor.bytes() != size || at + size > answer.body.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("output ", name, ": ", size,
                         " bytes, its shape has ", tensor.bytes()));
      }
      if (size > 0) std::memcpy(tensor.data(), &answer.body[at], size);
      at += size;
      result.names.push_back(name);
      result.outputs.push_back(std::move(tensor));
    }
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("an answer is not as KServe v2 has it: ", error.what()));
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> ConnectHttp(
    const TargetOptions& options, base::Clock& clock) {
  auto target = std::make_unique<HttpTarget>(options, clock);
  REFRACT_RETURN_IF_ERROR(target->Reach());
  return std::unique_ptr<Target>(std::move(target));
}

}  // namespace refract::loadgen
