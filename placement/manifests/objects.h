#ifndef REFRACT_PLACEMENT_MANIFESTS_OBJECTS_H_
#define REFRACT_PLACEMENT_MANIFESTS_OBJECTS_H_

// The objects of a service, one function each. For manifests.cc.

#include <string>

#include "placement/manifests/manifests.h"
#include "placement/manifests/yaml.h"
#include "placement/planner/deployment.h"

namespace refract::placement {

// Arguments of the functions below.
struct ManifestOf {
  const Deployment& deployment;
  const Service& service;
  const ManifestOptions& options;

  bool is_hn() const { return service.role == Role::kHn; }
  bool autoscaled() const { return service.least_replicas < service.replicas; }
};

// apiVersion, kind and metadata with the labels that all objects have.
Yaml Object(absl::string_view version, absl::string_view kind,
            absl::string_view name, const Deployment& deployment,
            const ManifestOptions& options);
// Labels that select the pods of the service, of its app and component.
Yaml ServiceLabels(const Service& service);
// Pods of the app in `role`.
Yaml AppLabels(const Service& service, Role role);

// pod.cc: labels and annotations, and the spec of a pod.
Yaml PodLabels(const ManifestOf& of);
Yaml PodAnnotations(const ManifestOf& of);
Yaml PodSpec(const ManifestOf& of);

// objects.cc
bool NeedsClaim(const ManifestOf& of);
Yaml ClaimTemplate(const ManifestOf& of);
Yaml Workload(const ManifestOf& of);  // StatefulSet or Deployment
Yaml ServiceObject(const ManifestOf& of);
Yaml DisruptionBudget(const ManifestOf& of);
Yaml Autoscaler(const ManifestOf& of);
// The `metrics` of an autoscaler.
Yaml ScaleMetrics(const ManifestOf& of);
Yaml TrafficPolicy(const ManifestOf& of);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_MANIFESTS_OBJECTS_H_
