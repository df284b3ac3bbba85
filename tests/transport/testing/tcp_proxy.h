#ifndef REFRACT_TESTS_TRANSPORT_TESTING_TCP_PROXY_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_TCP_PROXY_H_

// Stands between clients and a server's TCP port: can hold everything up, cut
// only data connections, and rewrite session frames.

#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "transport/loop/fd.h"
#include "transport/session/session_socket.h"
#include "transport/loop/socket.h"
#include "transport/loop/waker.h"

namespace refract::transport {

class TcpProxy {
 public:
  // Gets each session frame; its result is sent on instead.
  using Rewrite =
      std::function<std::string(bool from_client, const SessionFrame& frame)>;

  explicit TcpProxy(int server_port, Rewrite rewrite = nullptr)
      : server_port_(server_port), rewrite_(std::move(rewrite)) {
    auto listener = ListenTcp({"127.0.0.1", 0});
    CHECK(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    auto waker = ThreadWaker::Create();
    CHECK(waker.ok());
    waker_ = *waker;
    thread_ = std::thread([this] { Run(); });
  }
  ~TcpProxy() {
    stop_ = true;
    waker_->Wake();
    thread_.join();
  }

  int port() const { return listener_.port; }
  // From now on nothing comes through on the connections that exist; new ones
  // work. Kernels at both ends go on acknowledging.
  void Freeze() { Command(kFreeze); }
  // The same for data connections only: their sessions go on.
  void FreezeData() { Command(kFreezeData); }
  // Closes the data connections that exist, and leaves their sessions.
  void CutData() { Command(kCutData); }
  // Data connections made so far.
  int data_connections() const { return data_connections_; }

 private:
  enum CommandKind { kNone, kFreeze, kFreezeData, kCutData };
  struct Direction {
    std::string partial;  // session: of a frame that is not complete
    std::string out;
  };
  struct Connection {
    std::array<UniqueFd, 2> fds;          // client's, server's
    std::array<Direction, 2> directions;  // from the client, from the server
    enum { kNew, kSession, kData } kind = kNew;
    bool frozen = false;
    bool over = false;
  };

  void Command(CommandKind kind) {
    command_ = kind;
    waker_->Wake();
    while (command_ != kNone) std::this_thread::yield();
  }

  void Run() {
    while (!stop_) {
      DoCommand();
      std::vector<pollfd> fds = {{listener_.fd.get(), POLLIN, 0}};
      for (Connection& connection : connections_) {
        for (size_t i = 0; i < 2; ++i) {
          short events = 0;
          if (!connection.frozen) {
            // Bounded, so that back-pressure passes through.
            if (connection.directions[i].out.size() < kMaxQueue) {
              events |= POLLIN;
            }
            if (!connection.directions[1 - i].out.empty()) events |= POLLOUT;
          }
          fds.push_back(
              {events == 0 ? -1 : connection.fds[i].get(), events, 0});
        }
      }
      fds.push_back({waker_->fd(), POLLIN, 0});
      if (waker_->Arm()) {
        poll(fds.data(), fds.size(), -1);
        waker_->Disarm();
      }
      size_t at = 1;
      for (Connection& connection : connections_) {
        for (size_t i = 0; i < 2; ++i, ++at) {
          if (fds[at].revents != 0) Serve(connection, i, fds[at].revents);
        }
      }
      connections_.remove_if([](const Connection& c) { return c.over; });
      if (fds[0].revents != 0) AcceptOne();
    }
  }

  void DoCommand() {
    const CommandKind kind = command_;
    for (Connection& connection : connections_) {
      const bool data = connection.kind == Connection::kData;
      if (kind == kFreeze || (kind == kFreezeData && data)) {
        connection.frozen = true;
      }
      if (kind == kCutData && data) connection.over = true;
    }
    connections_.remove_if([](const Connection& c) { return c.over; });
    if (kind != kNone) command_ = kNone;
  }

  void AcceptOne() {
    auto client = Accept(listener_.fd.get());
    if (!client.ok() || !client->valid()) return;
    const Wait wait{*waker_, base::Clock::Real(),
                    [] { return absl::OkStatus(); }};
    auto server = ConnectTcp({"127.0.0.1", server_port_}, wait,
                             base::Clock::Real().Now() + absl::Seconds(5));
    if (!server.ok()) return;  // closes the client's
    Connection& connection = connections_.emplace_back();
    connection.fds = {*std::move(client), *std::move(server)};
  }

  void Serve(Connection& connection, size_t side, short events) {
    if ((events & POLLOUT) != 0) {
      std::string& out = connection.directions[1 - side].out;
      const ssize_t n = send(connection.fds[side].get(), out.data(), out.size(),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) out.erase(0, static_cast<size_t>(n));
    }
    if ((events & ~POLLOUT) == 0) return;
    std::array<char, 65536> buffer;
    const ssize_t n = recv(connection.fds[side].get(), buffer.data(),
                           buffer.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      // The rest of this side's bytes, as many as can be sent.
      const std::string& out = connection.directions[side].out;
      [[maybe_unused]] const ssize_t sent = send(
          connection.fds[1 - side].get(), out.data(), out.size(), MSG_NOSIGNAL);
      connection.over = true;
      return;
    }
    Forward(connection, side, {buffer.data(), static_cast<size_t>(n)});
  }

  void Forward(Connection& connection, size_t side, absl::string_view bytes) {
    Direction& direction = connection.directions[side];
    if (connection.kind == Connection::kData) {
      direction.out.append(bytes.data(), bytes.size());
      return;
    }
    direction.partial.append(bytes.data(), bytes.size());
    absl::string_view rest = direction.partial;
    while (connection.kind != Connection::kData) {
      const absl::string_view before = rest;
      auto frame = DecodeSessionFrame(rest);
      if (!frame.ok()) {
        connection.over = true;
        return;
      }
      if (!frame->has_value()) break;
      const bool attach = (*frame)->kind == FrameKind::kAttach;
      if (attach) ++data_connections_;
      connection.kind = attach ? Connection::kData : Connection::kSession;
      if (rewrite_ != nullptr && !attach) {
        direction.out += rewrite_(side == 0, **frame);
      } else {
        const absl::string_view raw =
            before.substr(0, before.size() - rest.size());
        direction.out.append(raw.data(), raw.size());
      }
    }
    if (connection.kind == Connection::kData) {
      direction.out.append(rest.data(), rest.size());
      rest = {};
    }
    direction.partial = std::string(rest);
  }

  static constexpr size_t kMaxQueue = size_t{1} << 20;
  const int server_port_;
  const Rewrite rewrite_;
  Listener listener_;
  std::shared_ptr<ThreadWaker> waker_;
  std::atomic<bool> stop_ = false;
  std::atomic<CommandKind> command_ = kNone;
  std::atomic<int> data_connections_ = 0;
  std::list<Connection> connections_;
  std::thread thread_;
};

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_TCP_PROXY_H_
