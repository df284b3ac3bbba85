#include "tools/transport_bench/verbs_yardstick.h"

#include "tools/transport_bench/verbs_session.h"

namespace refract::transport_bench {
namespace {

class VerbsSubject : public Subject {
 public:
  explicit VerbsSubject(const VerbsPort& port) : port_(port) {}
  bool Supports(const Point& point) const override {
    return point.op != Op::kFanIn;
  }
  absl::StatusOr<std::unique_ptr<Session>> Open(
      const Setup& setup) const override {
    return VerbsSession::Create(port_, setup);
  }

 private:
  const VerbsPort port_;
};

}  // namespace

std::unique_ptr<Subject> VerbsYardstick(const VerbsPort& port) {
  return std::make_unique<VerbsSubject>(port);
}

}  // namespace refract::transport_bench
