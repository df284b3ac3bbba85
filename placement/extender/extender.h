#ifndef REFRACT_PLACEMENT_EXTENDER_EXTENDER_H_
#define REFRACT_PLACEMENT_EXTENDER_EXTENDER_H_

// A scheduler extender of Kubernetes (KEP-1819): kube-scheduler asks it over
// HTTP which of its candidate nodes suit a pod, and how well. It applies the
// placer's rules: an app stays in its fabric pod, fragments grow the least,
// then the best fit, near the app's other instances. This is the legacy way to
// extend a scheduler; docs/how-to/kubernetes.md says when it is worthwhile.

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "placement/extender/objects.h"
#include "placement/policy/placer.h"

namespace refract::placement {

// Scores of extenders are 0 to 10.
inline constexpr int kBestExtenderScore = 10;

struct NodeVerdict {
  std::string node;
  std::string obstacle;  // empty: the pod may run there
  // kBestExtenderScore: the node that the placer would choose. Others: 9, less
  // the buckets (FgdBucket) by which they fragment more, at least 0.
  int score = 0;
};

// Verdicts on the nodes of `candidates`, in this order, for `pod`. `pods`: all
// pods of the cluster; ended and unbound pods take no resources. Pure.
// Kubernetes does not say which GPU of a node a pod has: pods are put on GPUs
// as the placer would. InvalidArgument: `nodes` that contradict each other.
absl::StatusOr<std::vector<NodeVerdict>> Judge(
    absl::Span<const NodeObject> nodes, absl::Span<const PodObject> pods,
    const PodObject& pod, absl::Span<const std::string> candidates,
    const PlacerOptions& options);

// Answers the three verbs. Takes and returns JSON of the extender's API v1.
// Errors: InvalidArgument for a request outside this API; other errors are in
// the field Error of the answer, except in Prioritize(), whose answer has no
// such field. Not thread-safe.
class Extender {
 public:
  // How the extender reaches the cluster.
  struct Cluster {
    std::function<absl::StatusOr<std::vector<NodeObject>>()> nodes;
    std::function<absl::StatusOr<std::vector<PodObject>>()> pods;
    // Null: the extender does not bind.
    std::function<absl::Status(const std::string& name_space,
                               const std::string& pod, const std::string& uid,
                               const std::string& node)>
        bind;
  };
  struct Options {
    PlacerOptions placer;
    // Nodes and pods are read again when older than this.
    absl::Duration refresh = absl::Seconds(5);
  };

  // `clock` must outlive the extender.
  Extender(Cluster cluster, const Options& options, base::Clock& clock);

  absl::StatusOr<std::string> Filter(absl::string_view request);
  absl::StatusOr<std::string> Prioritize(absl::string_view request);
  absl::StatusOr<std::string> Bind(absl::string_view request);

 private:
  struct Bound {
    PodObject pod;
    absl::Time at;
  };

  absl::Status Refresh();
  void Remember(const PodObject& pod);

  const Cluster cluster_;
  const Options options_;
  base::Clock& clock_;
  absl::Time read_at_ = absl::InfinitePast();
  std::vector<NodeObject> nodes_;
  std::vector<PodObject> pods_;  // with the pods of bound_
  // Pods of earlier requests, by UID: Bind() gets only the UID.
  absl::flat_hash_map<std::string, PodObject> asked_;
  // Bound here, not yet seen in a list of pods.
  std::vector<Bound> bound_;
};

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_EXTENDER_EXTENDER_H_
