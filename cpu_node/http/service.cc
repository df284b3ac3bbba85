#include "cpu_node/http/service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "cpu_node/frontend/methods.h"
#include "cpu_node/http/infer_codec.h"
#include "cpu_node/http/message_json.h"
#include "cpu_node/http/route.h"
#include "nlohmann/json.hpp"

namespace refract::cpu_node {
namespace {

// Requests other than inference have a short body, or none.
constexpr size_t kMaxShortBodyBytes = size_t{64} << 10;

// Bytes that JSON or zlib processes in roughly a millisecond.
constexpr size_t kLongBytes = size_t{128} << 10;

// Compression gains nothing on shorter answers.
constexpr size_t kLeastCompressed = 1024;

absl::string_view View(const HttpRequest& request) {
  return request.body.has_value() ? request.body->view() : absl::string_view();
}

// 499 is nginx's status for a request that its client gave up; no standard
// status says that.
int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kOutOfRange:
      return 413;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

HttpAnswer JsonAnswer(std::string json) {
  HttpAnswer answer;
  answer.content_type = "application/json";
  answer.body = std::move(json);
  return answer;
}

// For health and readiness: the status, 400 for "no" as in Triton, whose
// clients read nothing else. KServe's client reads `field` of the body; the
// state of a model has no body, as the protocol says.
HttpAnswer YesOrNo(bool yes, absl::string_view field = "") {
  HttpAnswer answer;
  if (!field.empty()) {
    answer = JsonAnswer(
        absl::StrCat("{\"", field, "\":", yes ? "true" : "false", "}"));
  }
  answer.status = yes ? 200 : 400;
  return answer;
}

// A short request's body as a JSON object; empty bodies are empty objects.
absl::StatusOr<nlohmann::json> ShortBody(const HttpRequest& request) {
  const absl::string_view text = View(request);
  if (text.size() > kMaxShortBodyBytes) {
    return absl::OutOfRangeError(absl::StrCat("the request is longer than ",
                                              kMaxShortBodyBytes, " bytes"));
  }
  if (!request.content_encoding.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const ContentCoding coding,
                             CodingOf(request.content_encoding));
    if (coding != ContentCoding::kIdentity) {
      return absl::UnimplementedError(
          "requests other than inference may not be compressed");
    }
  }
  if (text.empty()) return nlohmann::json::object();
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request's JSON: ", error.what()));
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the request's JSON: must be an object");
  }
  return json;
}

template <typename Message>
absl::Status ReadParameters(const nlohmann::json& body, Message& message) {
  const auto found = body.find("parameters");
  if (found == body.end()) return absl::OkStatus();
  if (!found->is_object()) {
    return absl::InvalidArgumentError(
        "the request's JSON: 'parameters' must be an object");
  }
  for (const auto& [name, value] : found->items()) {
    inference::ModelRepositoryParameter parameter;
    if (value.is_boolean()) {
      parameter.set_bool_param(value.template get<bool>());
    } else if (value.is_number_integer()) {
      parameter.set_int64_param(value.template get<int64_t>());
    } else if (value.is_string()) {
      parameter.set_string_param(value.template get<std::string>());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("the request's JSON: parameter '", base::Shorten(name),
                       "' must be an integer, a string or a boolean"));
    }
    (*message.mutable_parameters())[name] = std::move(parameter);
  }
  return absl::OkStatus();
}

// Calls the method shared by both front ends.
template <typename Request, typename Response>
absl::StatusOr<Response> Ask(Engine& engine, const Request& request) {
  Response response;
  REFRACT_RETURN_IF_ERROR(Answer(engine, request, response));
  return response;
}

template <typename Request>
Request OfModel(const Route& route) {
  Request request;
  request.set_name(route.model);
  request.set_version(route.version);
  return request;
}

}  // namespace

HttpAnswer ErrorAnswer(int http_status, absl::string_view text) {
  HttpAnswer answer = JsonAnswer(absl::StrCat(
      "{\"error\":", JsonString(base::Shorten(text, base::kMaxStatusTextBytes)),
      "}"));
  answer.status = http_status;
  return answer;
}

HttpAnswer ErrorAnswer(const absl::Status& status) {
  return ErrorAnswer(HttpStatusOf(status.code()), status.message());
}

bool HttpService::IsLong(const HttpRequest& request) {
  // With binary tensors only the JSON takes long, and it is short.
  return View(request).size() > kLongBytes &&
         (!request.content_encoding.empty() || !request.json_bytes.has_value());
}

bool HttpService::IsLong(absl::string_view accept_encoding,
                         const HttpAnswer& answer) {
  return answer.body.size() > kLongBytes &&
         PreferredCoding(accept_encoding) != ContentCoding::kIdentity;
}

void HttpService::CompressFor(absl::string_view accept_encoding,
                              HttpAnswer& answer) {
  if (answer.body.size() < kLeastCompressed) return;
  const ContentCoding coding = PreferredCoding(accept_encoding);
  if (coding == ContentCoding::kIdentity) return;
  const absl::Status status = base::WithinMemory([&] {
    answer.body = Compress(answer.body, coding);
    answer.coding = coding;
    return absl::OkStatus();
  });
  if (!status.ok()) answer = ErrorAnswer(status);
}

absl::Status HttpService::CheckAccess(bool get, absl::string_view target,
                                      absl::string_view authorization) const {
  if (access_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<Route> route = RouteOf(target);
  // The rights are the same as for gRPC (frontend/service.cc). An unknown path
  // needs a client token.
  if (!route.ok()) return access_->Check(Access::kClient, authorization);
  switch (route->call) {
    case Route::Call::kServerLive:
    case Route::Call::kServerReady:
    case Route::Call::kModelReady:
      return access_->Check(Access::kAnybody, authorization);
    case Route::Call::kModelLoad:
    case Route::Call::kModelUnload:
      return access_->Check(Access::kControl, authorization);
    case Route::Call::kTraceSetting:
      return access_->Check(get ? Access::kClient : Access::kControl,
                            authorization);
    default:
      return access_->Check(Access::kClient, authorization);
  }
}

void HttpService::Handle(HttpRequest request, std::stop_token cancel,
                         const Done& done) {
  const absl::StatusOr<Route> route = RouteOf(request.target);
  if (!route.ok()) return done(ErrorAnswer(route.status()));
  HttpAnswer answer;
  const absl::string_view method = route->both   ? "GET, POST"
                                   : route->post ? "POST"
                                                 : "GET";
  // HEAD is GET; the connection leaves the body out.
  const bool get = request.method == "GET" || request.method == "HEAD";
  const bool post = request.method == "POST";
  if (route->both ? !get && !post : route->post ? !post : !get) {
    answer = ErrorAnswer(405, absl::StrCat("this path takes ", method));
    answer.allow = std::string(method);
    return done(std::move(answer));
  }
  if (route->call == Route::Call::kModelInfer) {
    return Infer(std::move(request), *route, std::move(cancel), done);
  }
  if (route->call == Route::Call::kModelLoad) {
    return ChangeModel<inference::RepositoryModelLoadRequest>(*route, request,
                                                              done);
  }
  if (route->call == Route::Call::kModelUnload) {
    return ChangeModel<inference::RepositoryModelUnloadRequest>(*route, request,
                                                                done);
  }
  const absl::Status status = base::WithinMemory([&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(answer, AnswerShort(*route, request));
    return absl::OkStatus();
  });
  done(status.ok() ? std::move(answer) : ErrorAnswer(status));
}

absl::StatusOr<HttpAnswer> HttpService::AnswerShort(
    const Route& route, const HttpRequest& request) {
  using Kind = Route::Call;
  switch (route.call) {
    case Kind::kServerLive: {
      REFRACT_ASSIGN_OR_RETURN(
          const inference::ServerLiveResponse response,
          (Ask<inference::ServerLiveRequest, inference::ServerLiveResponse>(
              engine_, {})));
      return YesOrNo(response.live(), "live");
    }
    case Kind::kServerReady: {
      REFRACT_ASSIGN_OR_RETURN(
          const inference::ServerReadyResponse response,
          (Ask<inference::ServerReadyRequest, inference::ServerReadyResponse>(
              engine_, {})));
      return YesOrNo(response.ready(), "ready");
    }
    case Kind::kModelReady: {
      REFRACT_ASSIGN_OR_RETURN(
          const inference::ModelReadyResponse response,
          (Ask<inference::ModelReadyRequest, inference::ModelReadyResponse>(
              engine_, OfModel<inference::ModelReadyRequest>(route))));
      return YesOrNo(response.ready());
    }
    case Kind::kServerMetadata: {
      REFRACT_ASSIGN_OR_RETURN(
          inference::ServerMetadataResponse response,
          (Ask<inference::ServerMetadataRequest,
               inference::ServerMetadataResponse>(engine_, {})));
      response.add_extensions("binary_tensor_data");
      return JsonAnswer(MessageToJson(response));
    }
    case Kind::kModelMetadata: {
      REFRACT_ASSIGN_OR_RETURN(
          const inference::ModelMetadataResponse response,
          (Ask<inference::ModelMetadataRequest,
               inference::ModelMetadataResponse>(
              engine_, OfModel<inference::ModelMetadataRequest>(route))));
      return JsonAnswer(MessageToJson(response));
    }
    case Kind::kModelConfig: {
      REFRACT_ASSIGN_OR_RETURN(
          const inference::ModelConfigResponse response,
          (Ask<inference::ModelConfigRequest, inference::ModelConfigResponse>(
              engine_, OfModel<inference::ModelConfigRequest>(route))));
      return JsonAnswer(MessageToJson(response.config()));
    }
    case Kind::kModelStatistics: {
      REFRACT_ASSIGN_OR_RETURN(
          const inference::ModelStatisticsResponse response,
          (Ask<inference::ModelStatisticsRequest,
               inference::ModelStatisticsResponse>(
              engine_, OfModel<inference::ModelStatisticsRequest>(route))));
      return JsonAnswer(MessageToJson(response));
    }
    case Kind::kRepositoryIndex:
      return AnswerIndex(request);
    case Kind::kTraceSetting:
      return AnswerTraceSetting(route, request);
    case Kind::kModelLoad:
    case Kind::kModelUnload:
    case Kind::kModelInfer:
      break;
  }
  return absl::InternalError("no short method");
}

template <typename Request>
void HttpService::ChangeModel(const Route& route, const HttpRequest& request,
                              const Done& done) {
  Request change;
  const absl::Status status = base::WithinMemory([&]() -> absl::Status {
    change.set_model_name(route.model);
    REFRACT_ASSIGN_OR_RETURN(const nlohmann::json body, ShortBody(request));
    return ReadParameters(body, change);
  });
  if (!status.ok()) return done(ErrorAnswer(status));
  AnswerLater(control_, change, [done](const absl::Status& result) {
    done(result.ok() ? HttpAnswer() : ErrorAnswer(result));
  });
}

absl::StatusOr<HttpAnswer> HttpService::AnswerIndex(
    const HttpRequest& request) {
  REFRACT_ASSIGN_OR_RETURN(const nlohmann::json body, ShortBody(request));
  inference::RepositoryIndexRequest index;
  if (const auto ready = body.find("ready"); ready != body.end()) {
    if (!ready->is_boolean()) {
      return absl::InvalidArgumentError(
          "the request's JSON: 'ready' must be true or false");
    }
    index.set_ready(ready->get<bool>());
  }
  inference::RepositoryIndexResponse response;
  REFRACT_RETURN_IF_ERROR(Answer(engine_, index, response));
  // The index is a bare array, without an object around it.
  std::string json = "[";
  for (const auto& model : response.models()) {
    absl::StrAppend(&json, json.size() > 1 ? "," : "", MessageToJson(model));
  }
  return JsonAnswer(json + "]");
}

absl::StatusOr<HttpAnswer> HttpService::AnswerTraceSetting(
    const Route& route, const HttpRequest& request) {
  inference::TraceSettingRequest setting;
  setting.set_model_name(route.model);
  if (request.method == "POST") {
    REFRACT_ASSIGN_OR_RETURN(const nlohmann::json body, ShortBody(request));
    for (const auto& [name, value] : body.items()) {
      // Triton takes a text, a list of texts, or null for the initial value.
      auto& list = (*setting.mutable_settings())[name];
      const nlohmann::json values = value.is_array() ? value
                                    : value.is_null()
                                        ? nlohmann::json::array()
                                        : nlohmann::json::array({value});
      for (const nlohmann::json& each : values) {
        list.add_value(each.is_string() ? each.get<std::string>()
                                        : base::FormatJson(each));
      }
    }
  }
  inference::TraceSettingResponse response;
  REFRACT_RETURN_IF_ERROR(Answer(engine_, setting, response));
  nlohmann::json answer = nlohmann::json::object();
  for (const auto& [name, list] : response.settings()) {
    // As in Triton: levels are a list, other settings are text.
    if (name == "trace_level") {
      answer[name] =
          std::vector<std::string>(list.value().begin(), list.value().end());
    } else {
      answer[name] = list.value(0);
    }
  }
  return JsonAnswer(base::FormatJson(answer));
}

void HttpService::Infer(HttpRequest request, const Route& route,
                        std::stop_token cancel, const Done& done) {
  // The quota is taken before any work on the body, and given back with the
  // request.
  absl::StatusOr<ClientQuota::Hold> quota = ClientQuota::Hold();
  if (access_ != nullptr) quota = access_->Admit(request.authorization);
  if (!quota.ok()) return done(ErrorAnswer(quota.status()));
  // Counted before decoding, as for gRPC: AwaitQuiet() needs it.
  infer_calls_.fetch_add(1, std::memory_order_relaxed);
  const absl::Time now = engine_.clock().Now();
  HttpInferRequest infer;
  tracing::RequestContext trace;
  if (engine_.traces()) trace = engine_.tracer()->Begin(request.traceparent);
  int refusal = 0;  // HTTP status; 0: by the error code
  const absl::Status status = base::WithinMemory([&]() -> absl::Status {
    // An overloaded node would otherwise spend its time on decoding. The
    // deadline is still unknown: it is inside the JSON.
    REFRACT_RETURN_IF_ERROR(
        engine_.Foresee(route.model, route.version, absl::InfiniteFuture()));
    const absl::StatusOr<ContentCoding> coding =
        CodingOf(request.content_encoding);
    if (!coding.ok()) {
      refusal = 415;
      return coding.status();
    }
    if (*coding != ContentCoding::kIdentity) {
      HttpBody plain(memory_, max_body_bytes_);
      REFRACT_RETURN_IF_ERROR(Decompress(View(request), *coding, plain));
      request.body = std::move(plain);
    }
    REFRACT_ASSIGN_OR_RETURN(
        infer,
        DecodeHttpRequest(View(request), request.json_bytes, now, memory_));
    // The tensors are copies: the body's memory goes before the request waits.
    request.body.reset();
    return absl::OkStatus();
  });
  if (!status.ok()) {
    const absl::Status refused =
        engine_.Refuse(route.model, route.version, status, trace, now);
    // An unknown model is reported before other errors.
    return done(refusal != 0 && refused == status
                    ? ErrorAnswer(refusal, refused.message())
                    : ErrorAnswer(refused));
  }
  infer.request.model_name = route.model;
  infer.request.model_version = route.version;
  infer.request.received = now;
  infer.request.trace = trace;
  infer.request.quota = *std::move(quota);
  infer.request.cancel = std::move(cancel);
  engine_.Infer(
      std::move(infer.request),
      [this, done, id = std::move(infer.id), forms = std::move(infer.forms)](
          const absl::StatusOr<InferResponse>& result) {
        HttpAnswer answer;
        const absl::Status encoded = base::WithinMemory([&]() -> absl::Status {
          REFRACT_RETURN_IF_ERROR(result.status());
          // The answer exists already, so a short budget cannot refuse it; it
          // counts against later requests.
          base::ByteBudget::Hold memory = memory_.TakeAnyway(BytesOf(*result));
          REFRACT_ASSIGN_OR_RETURN(HttpInferAnswer body,
                                   EncodeHttpAnswer(*result, id, forms));
          answer = JsonAnswer(std::move(body.body));
          answer.json_bytes = body.json_bytes;
          if (body.json_bytes.has_value()) {
            answer.content_type = "application/octet-stream";
          }
          answer.memory = std::move(memory);
          return absl::OkStatus();
        });
        done(encoded.ok() ? std::move(answer) : ErrorAnswer(encoded));
      });
}

}  // namespace refract::cpu_node
