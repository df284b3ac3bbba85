#ifndef REFRACT_TESTS_TRANSPORT_TESTING_PULL_SIMULATION_H_
#define REFRACT_TESTS_TRANSPORT_TESTING_PULL_SIMULATION_H_

// A receiver's port as the scheduler sees it: gets of all senders arrive after
// a round trip and then share the port in the order they came. Senders may be
// slow to answer, or never answer. Virtual time.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "transport/pulls/pull_scheduler.h"

namespace refract::transport {

class PullSimulation {
 public:
  struct Link {
    double bytes_per_second = 12.5e9;
    absl::Duration round_trip = absl::Microseconds(8);
  };
  struct Request : ScheduledPull {
    size_t connection = 0;
    size_t bytes = 0;
    absl::Time arrival;
    absl::Time deadline = absl::InfiniteFuture();
    // The settings of the scheduler.
    absl::Time told_deadline = absl::InfiniteFuture();
    absl::Time finished = absl::InfiniteFuture();
    bool cancelled = false;
  };

  PullSimulation(Link link, const PullScheduler::Options& options,
                 size_t connections)
      : link_(link), scheduler_(options) {
    for (size_t i = 0; i < connections; ++i) {
      connections_.push_back(std::make_unique<Connection>(this));
      scheduler_.Attach(connections_.back().get(), 16);
    }
  }

  // In order of arrival, before Run.
  Request& Add(size_t connection, size_t bytes, absl::Time arrival,
               absl::Time deadline, absl::Time told_deadline) {
    auto request = std::make_unique<Request>();
    request->connection = connection;
    request->bytes = bytes;
    request->arrival = arrival;
    request->deadline = deadline;
    request->told_deadline = told_deadline;
    requests_.push_back(std::move(request));
    return *requests_.back();
  }

  // `connection` answers each get so much later; infinite: never.
  void SetDelay(size_t connection, absl::Duration delay) {
    connections_[connection]->delay = delay;
  }

  // Until everything is finished or cancelled. Requests are cancelled by their
  // senders when their deadline passes, if `cancel`.
  void Run(bool cancel) {
    size_t next = 0;
    std::vector<Request*> open;
    while (true) {
      // The next thing that happens.
      absl::Time at = absl::InfiniteFuture();
      if (next < requests_.size()) at = requests_[next]->arrival;
      if (!under_way_.empty()) at = std::min(at, under_way_.front().done);
      for (const auto& connection : connections_) {
        at = std::min(at, scheduler_.OverdueAt(*connection));
      }
      if (cancel) {
        for (const Request* request : open)
          at = std::min(at, request->deadline);
      }
      if (at == absl::InfiniteFuture()) break;
      now_ = std::max(now_, at);
      while (next < requests_.size() && requests_[next]->arrival <= now_) {
        Request& request = *requests_[next++];
        scheduler_.Add(connections_[request.connection].get(), &request,
                       request.bytes, request.told_deadline);
        open.push_back(&request);
      }
      while (!under_way_.empty() && under_way_.front().done <= now_) {
        const Get get = under_way_.front();
        under_way_.pop_front();
        Request& request = *get.request;
        scheduler_.Completed(connections_[request.connection].get(), &request,
                             get.bytes, now_);
        if (!request.done()) continue;
        if (!request.cancelled) request.finished = now_;
        std::erase(open, &request);
      }
      for (size_t i = 0; cancel && i < open.size();) {
        Request& request = *open[i];
        if (request.deadline > now_) {
          ++i;
          continue;
        }
        request.cancelled = true;
        scheduler_.Cancel(connections_[request.connection].get(), &request);
        open.erase(open.begin() + static_cast<ptrdiff_t>(i));
      }
      scheduler_.Dispatch(now_);
      most_outstanding_ =
          std::max(most_outstanding_, scheduler_.window().outstanding());
    }
  }

  absl::Time now() const { return now_; }
  size_t most_outstanding() const { return most_outstanding_; }
  const std::vector<std::unique_ptr<Request>>& requests() const {
    return requests_;
  }
  size_t num_met() const {
    return static_cast<size_t>(
        std::count_if(requests_.begin(), requests_.end(), [](const auto& r) {
          return !r->cancelled && r->finished <= r->deadline;
        }));
  }

 private:
  struct Get {
    Request* request;
    size_t bytes;
    absl::Time done;
  };
  class Connection final : public PullConnection {
   public:
    explicit Connection(PullSimulation* simulation) : simulation_(simulation) {}
    Post PostChunk(ScheduledPull& pull, size_t bytes, absl::Time now) override {
      simulation_->Start(pull, bytes, now, delay);
      return {Post::Result::kPosted, bytes};
    }
    absl::Duration delay = absl::ZeroDuration();

   private:
    PullSimulation* const simulation_;
  };

  void Start(ScheduledPull& pull, size_t bytes, absl::Time now,
             absl::Duration delay) {
    if (delay == absl::InfiniteDuration()) return;
    const absl::Duration takes =
        absl::Seconds(static_cast<double>(bytes) / link_.bytes_per_second);
    absl::Time done = now + link_.round_trip + delay + takes;
    if (delay == absl::ZeroDuration()) {
      port_free_ = std::max(port_free_, now + link_.round_trip) + takes;
      done = port_free_;
    }
    const auto place = std::upper_bound(
        under_way_.begin(), under_way_.end(), done,
        [](absl::Time time, const Get& get) { return time < get.done; });
    under_way_.insert(place, {static_cast<Request*>(&pull), bytes, done});
  }
  const Link link_;
  PullScheduler scheduler_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::deque<Get> under_way_;  // by `done`
  absl::Time now_ = absl::FromUnixSeconds(1000);
  absl::Time port_free_ = absl::InfinitePast();
  size_t most_outstanding_ = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TESTS_TRANSPORT_TESTING_PULL_SIMULATION_H_
