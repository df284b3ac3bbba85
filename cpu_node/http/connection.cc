// A connection handles one request at a time, so pipelined requests wait in its
// buffer.

#include "cpu_node/http/connection.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/asio/dispatch.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/write.hpp"
#include "boost/beast/core.hpp"
#include "boost/beast/http.hpp"
#include "cpu_node/http/stream.h"
#include "glog/logging.h"

namespace refract::cpu_node::http_connections {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace beast_http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyTime = std::chrono::steady_clock::time_point;

// First and later sizes of a connection's buffer: most requests fit into the
// first; long bodies arrive in pieces of the second.
constexpr size_t kSmallBuffer = size_t{8} << 10;
constexpr size_t kLargeBuffer = size_t{64} << 10;

// Pause after an answer that ends the connection: closing a socket with unread
// bytes would reset it, and the client might not see the answer.
constexpr std::chrono::seconds kLinger(2);

constexpr char kJsonLengthField[] = "Inference-Header-Content-Length";

std::string ToString(beast::string_view text) {
  return std::string(text.data(), text.size());
}

}  // namespace

// A client's connection. The operation under way keeps it alive. All methods, the
// destructor as well, run on the loop's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(int fd, int family, Loop* loop, Shared* shared)
      : loop_(*loop), shared_(*shared), stream_(loop->context.get_executor()) {
    error_code error;
    stream_.socket().assign(family == AF_INET ? tcp::v4() : tcp::v6(), fd,
                            error);
    if (error) ::close(fd);
    peer_ = stream_.socket().remote_endpoint(error);
    loop_.connections.insert(this);
  }
  ~Connection() {
    loop_.connections.erase(this);
    --shared_.connections;
  }

  void Start() {
    if (Options().tls == nullptr) return AwaitRequest(Options().max_stall);
    stream_.UseTls(Options().tls->context().get());
    stream_.expires_after(std::chrono::duration_cast<SteadyTime::duration>(
        Chrono(Options().max_stall)));
    stream_.async_handshake(
        [this, self = shared_from_this()](error_code error) {
          if (!error) return AwaitRequest(Options().max_stall);
          if (const auto held_back = shared_.handshake_log.Admit()) {
            LOG(WARNING) << "HTTP: a TLS handshake failed: "
                         << base::WhyHandshakeFailed(stream_.tls(), "client's",
                                                     error.message())
                         << *held_back;
          }
          Close();
        });
  }

  // Called at shutdown: ends the connection now or after its answer.
  void Retire() {
    last_ = true;
    if (!busy_) Close();
  }

 private:
  // A reference to a connection that any thread may drop: if it is the last
  // reference, the loop's thread destroys the connection.
  class Hold {
   public:
    explicit Hold(std::shared_ptr<Connection> connection)
        : connection_(std::move(connection)) {}
    Hold(const Hold&) = default;
    Hold(Hold&&) = default;
    ~Hold() {
      if (connection_ == nullptr) return;
      asio::io_context& context = connection_->loop_.context;
      asio::dispatch(context, [last = std::move(connection_)] {});
    }
    // Runs `work` with the connection, on the loop's thread. Call at most once.
    template <typename Work>
    void Run(Work work) {
      asio::io_context& context = connection_->loop_.context;
      asio::post(context, [self = std::move(connection_),
                           work = std::move(work)]() mutable { work(*self); });
    }

   private:
    std::shared_ptr<Connection> connection_;
  };

  using Parser = beast_http::request_parser<beast_http::buffer_body>;
  using Response = beast_http::response<beast_http::string_body>;

  const HttpServerOptions& Options() const { return shared_.options; }

  // Binds a completion to this connection, which it keeps alive.
  template <typename Handler>
  auto Then(Handler handler) {
    return
        [self = shared_from_this(), handler = std::move(handler)](
            error_code error, size_t bytes) mutable { handler(error, bytes); };
  }

  static std::chrono::nanoseconds Chrono(absl::Duration duration) {
    return absl::ToChronoNanoseconds(duration);
  }

  // Sets the timeout of the next operation: it ends if the client stalls, or if
  // the message that began at `began_` is too slow on average.
  void ExpectProgress(size_t bytes_so_far) {
    const auto now = std::chrono::steady_clock::now();
    const auto stall = Chrono(Options().max_stall);
    const std::chrono::duration<double> fair(
        static_cast<double>(bytes_so_far) /
        static_cast<double>(Options().least_bytes_per_s));
    stream_.expires_at(std::min(
        now + std::chrono::duration_cast<SteadyTime::duration>(stall),
        began_ +
            std::chrono::duration_cast<SteadyTime::duration>(
                stall +
                std::chrono::duration_cast<std::chrono::nanoseconds>(fair))));
  }

  // ------------------------------------------------------------- request

  // Waits for a request's first byte.
  void AwaitRequest(absl::Duration patience) {
    busy_ = false;
    if (last_ || shared_.stopping) return Close();
    if (buffer_.size() > 0) return ReadHeader();  // pipelined
    // Idle connections are many: an idle connection does not keep the memory of
    // its last long request.
    if (buffer_.capacity() > kSmallBuffer) buffer_.shrink_to_fit();
    stream_.expires_after(
        std::chrono::duration_cast<SteadyTime::duration>(Chrono(patience)));
    stream_.async_read_some(buffer_.prepare(kSmallBuffer),
                            Then([this](error_code error, size_t bytes) {
                              if (error) return Close();
                              buffer_.commit(bytes);
                              ReadHeader();
                            }));
  }

  void ReadHeader() {
    busy_ = true;
    head_only_ = false;
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(Options().max_header_bytes));
    // HttpBody has a limit. Beast 1.74 takes boost::none for 0.
    parser_->body_limit(std::numeric_limits<uint64_t>::max());
    stream_.expires_after(std::chrono::duration_cast<SteadyTime::duration>(
        Chrono(Options().max_stall)));
    beast_http::async_read_header(
        stream_, buffer_, *parser_,
        Then([this](error_code error, size_t) { OnHeader(error); }));
  }

  void OnHeader(error_code error) {
    if (error) return OnReadError(error);
    const Parser::value_type& head = parser_->get();
    version_ = head.version();
    keep_alive_ = head.keep_alive();
    head_only_ = head.method() == beast_http::verb::head;
    accept_encoding_ = ToString(head[beast_http::field::accept_encoding]);
    // Checked before the body takes memory.
    const absl::Status allowed = shared_.service.CheckAccess(
        head_only_ || head.method() == beast_http::verb::get,
        ToString(head.target()),
        ToString(head[beast_http::field::authorization]));
    if (!allowed.ok()) return Refuse(allowed);
    const auto length = parser_->content_length();
    if (length.has_value() && *length > Options().max_body_bytes) {
      return Refuse(absl::OutOfRangeError(
          absl::StrCat("the request has ", *length, " bytes, more than the ",
                       Options().max_body_bytes, " of --http-max-input-size")));
    }
    if (head.count(beast_http::field::transfer_encoding) > 0 &&
        !parser_->chunked()) {
      return Refuse(absl::UnimplementedError(
          "of Transfer-Encoding only 'chunked' is supported"));
    }
    if (parser_->is_done()) return Handle();
    body_.emplace(shared_.bodies, Options().max_body_bytes,
                  static_cast<size_t>(length.value_or(0)));
    began_ = std::chrono::steady_clock::now();
    const beast::string_view expect = head[beast_http::field::expect];
    // Clients of HTTP/1.0 do not know 100 Continue (RFC 9110, 10.1.1).
    if (expect.empty() || version_ < 11) return ReadBody();
    if (!beast::iequals(expect, "100-continue")) {
      return RefuseWith(417, "of Expect only '100-continue' is supported");
    }
    static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
    ExpectProgress(0);
    asio::async_write(stream_, asio::buffer(kContinue, sizeof(kContinue) - 1),
                      Then([this](error_code error, size_t) {
                        if (error) return Close();
                        ReadBody();
                      }));
  }

  void ReadBody() {
    if (parser_->is_done()) return Handle();
    const absl::StatusOr<absl::Span<char>> room = body_->Room();
    if (!room.ok()) return Refuse(room.status());
    parser_->get().body().data = room->data();
    parser_->get().body().size = room->size();
    parser_->get().body().more = true;
    // Beast reads as many bytes as the buffer has room for.
    if (room->size() > kSmallBuffer) buffer_.reserve(kLargeBuffer);
    ExpectProgress(body_->size());
    beast_http::async_read_some(
        stream_, buffer_, *parser_,
        Then([this, size = room->size()](error_code error, size_t) {
          if (error && error != beast_http::error::need_buffer) {
            return OnReadError(error);
          }
          body_->Commit(size - parser_->get().body().size);
          ReadBody();
        }));
  }

  // Beast closes the connection of a slow client, so that the log is the only
  // place for the reason.
  void LogIfSlow(error_code error, absl::string_view what) {
    if (error != beast::error::timeout) return;
    if (const auto held_back = shared_.slow_log.Admit()) {
      LOG(WARNING) << "HTTP: client " << peer_.address() << " is too slow for "
                   << "--http-stall-timeout: " << what << *held_back;
    }
  }

  // Answers an error of the client. A client that is gone or too slow gets no
  // answer.
  void OnReadError(error_code error) {
    LogIfSlow(error, body_.has_value()
                         ? absl::StrCat("a request ends after ", body_->size(),
                                        " bytes of its body")
                         : "a request ends within its header");
    const bool of_http =
        error.category() ==
        beast_http::make_error_code(beast_http::error::bad_method).category();
    if (!of_http || error == beast_http::error::end_of_stream ||
        error == beast_http::error::partial_message) {
      return Close();
    }
    if (error == beast_http::error::header_limit ||
        error == beast_http::error::buffer_overflow) {
      return RefuseWith(431,
                        absl::StrCat("the request's header is longer than ",
                                     Options().max_header_bytes, " bytes"));
    }
    RefuseWith(400, absl::StrCat("the bytes are not an HTTP request: ",
                                 error.message()));
  }

  // Answers a request before its end is read; the connection cannot be used
  // afterwards.
  void Refuse(const absl::Status& status) {
    keep_alive_ = false;
    body_.reset();
    Write(ErrorAnswer(status));
  }
  void RefuseWith(int http_status, absl::string_view text) {
    keep_alive_ = false;
    body_.reset();
    Write(ErrorAnswer(http_status, text));
  }

  // ------------------------------------------------------------- handling

  void Handle() {
    const Parser::value_type& head = parser_->get();
    HttpRequest request;
    request.method = ToString(head.method_string());
    request.target = ToString(head.target());
    request.content_encoding =
        ToString(head[beast_http::field::content_encoding]);
    request.accept_encoding = accept_encoding_;
    request.authorization = ToString(head[beast_http::field::authorization]);
    if (shared_.service.traces()) {
      request.traceparent = ToString(head["traceparent"]);
    }
    if (const auto found = head.find(kJsonLengthField); found != head.end()) {
      request.json_bytes = ToString(found->value());
    }
    request.body = std::move(body_);
    body_.reset();
    stream_.expires_never();
    cancel_ = std::stop_source();
    handling_ = true;
    WatchForEnd();
    // `done` holds it, so that the connection outlives the request.
    const HttpService::Done done =
        [hold = Hold(shared_from_this())](HttpAnswer answer) mutable {
          hold.Run([answer = std::move(answer)](Connection& self) mutable {
            self.OnAnswer(std::move(answer));
          });
        };
    if (!HttpService::IsLong(request)) {
      return shared_.service.Handle(std::move(request), cancel_.get_token(),
                                    done);
    }
    asio::post(shared_.long_work,
               [&service = shared_.service, request = std::move(request),
                cancel = cancel_.get_token(), done]() mutable {
                 service.Handle(std::move(request), std::move(cancel), done);
               });
  }

  // Cancels the request if the client closes the connection.
  void WatchForEnd() {
    if (watching_) return;
    watching_ = true;
    stream_.socket().async_wait(
        tcp::socket::wait_read,
        [this, self = shared_from_this()](error_code error) {
          watching_ = false;
          if (error || !handling_) return;
          char byte = 0;
          const ssize_t got = ::recv(stream_.socket().native_handle(), &byte, 1,
                                     MSG_PEEK | MSG_DONTWAIT);
          const bool open =
              got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
          // A pipelined request, or with TLS perhaps the client's close_notify,
          // after which no answer arrives.
          if (open) return;
          gone_ = true;
          cancel_.request_stop();
        });
  }

  void OnAnswer(HttpAnswer answer) {
    handling_ = false;
    if (gone_) return Close();
    if (!HttpService::IsLong(accept_encoding_, answer)) {
      HttpService::CompressFor(accept_encoding_, answer);
      return Write(std::move(answer));
    }
    asio::post(shared_.long_work,
               [hold = Hold(shared_from_this()), accept = accept_encoding_,
                answer = std::move(answer)]() mutable {
                 HttpService::CompressFor(accept, answer);
                 hold.Run([answer = std::move(answer)](Connection& self) mutable {
                   self.Write(std::move(answer));
                 });
               });
  }

  // --------------------------------------------------------------- answer

  void Write(HttpAnswer answer) {
    last_ = last_ || shared_.stopping;
    response_ = Response();
    response_.version(version_);
    response_.result(static_cast<unsigned>(answer.status));
    if (answer.status == 499) response_.reason("Client Closed Request");
    response_.keep_alive(keep_alive_ && !last_);
    response_.set(beast_http::field::server, "refract");
    if (answer.status == 401) {
      response_.set(beast_http::field::www_authenticate, "Bearer");
    }
    if (!answer.content_type.empty()) {
      response_.set(beast_http::field::content_type, answer.content_type);
    }
    if (answer.coding != ContentCoding::kIdentity) {
      const absl::string_view name = Name(answer.coding);
      response_.set(beast_http::field::content_encoding,
                    beast::string_view(name.data(), name.size()));
    }
    if (answer.json_bytes.has_value()) {
      response_.set(kJsonLengthField, std::to_string(*answer.json_bytes));
    }
    if (!answer.allow.empty()) {
      response_.set(beast_http::field::allow, answer.allow);
    }
    if (answer.status == 415) {
      response_.set(beast_http::field::accept_encoding, "gzip, deflate");
    }
    response_.body() = std::move(answer.body);
    response_.prepare_payload();
    // The header of an answer to HEAD has the length of GET's body.
    if (head_only_) response_.body().clear();
    answer_memory_ = std::move(answer.memory);
    serializer_.emplace(response_);
    written_ = 0;
    began_ = std::chrono::steady_clock::now();
    WriteSome();
  }

  void WriteSome() {
    ExpectProgress(written_);
    beast_http::async_write_some(stream_, *serializer_,
                                 Then([this](error_code error, size_t bytes) {
                                   written_ += bytes;
                                   if (error) {
                                     LogIfSlow(error, "it does not read its "
                                                      "answer");
                                     return Close();
                                   }
                                   if (!serializer_->is_done())
                                     return WriteSome();
                                   OnWritten();
                                 }));
  }

  void OnWritten() {
    const bool goes_on = response_.keep_alive();
    serializer_.reset();
    response_ = Response();
    answer_memory_.Reset();
    if (goes_on) return AwaitRequest(Options().max_idle);
    error_code error;
    stream_.socket().shutdown(tcp::socket::shutdown_send, error);
    stream_.expires_after(kLinger);
    Linger();
  }

  void Linger() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kSmallBuffer),
                            Then([this](error_code error, size_t) {
                              if (error) return Close();
                              Linger();
                            }));
  }

  // Ends all operations, and with them this connection.
  void Close() {
    error_code error;
    stream_.socket().close(error);
    stream_.cancel();
  }

  Loop& loop_;
  Shared& shared_;
  ClientStream stream_;
  tcp::endpoint peer_;  // for the log
  // Holds a header and the bytes that arrived with it.
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::optional<HttpBody> body_;
  std::string accept_encoding_;
  unsigned version_ = 11;
  bool keep_alive_ = false;
  bool head_only_ = false;  // the request is a HEAD
  bool busy_ = false;      // from a request's first byte to its answer
  bool handling_ = false;  // the service handles the request
  bool watching_ = false;  // WatchForEnd() has a pending operation
  bool gone_ = false;      // the client closed the connection
  bool last_ = false;      // no further request on this connection
  std::stop_source cancel_;
  SteadyTime began_;  // start of the body or of the answer
  Response response_;
  std::optional<beast_http::response_serializer<beast_http::string_body>>
      serializer_;
  size_t written_ = 0;
  base::ByteBudget::Hold answer_memory_;
};

void StartConnection(int fd, int family, Loop* loop, Shared* shared) {
  std::make_shared<Connection>(fd, family, loop, shared)->Start();
}

void RetireConnections(const Loop& loop) {
  // Retire() closes later, so the set does not change during the loop.
  for (Connection* connection : loop.connections) connection->Retire();
}

}  // namespace refract::cpu_node::http_connections
