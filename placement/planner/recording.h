#ifndef REFRACT_PLACEMENT_PLANNER_RECORDING_H_
#define REFRACT_PLACEMENT_PLANNER_RECORDING_H_

// How fast a CPU node and a GPU node were while requests were traced. A machine
// has slow phases: for a tenth of a second, for example, everything on it takes
// several times as long, and queues grow. The rate of requests does not change
// the length of a phase, so a simulation replays speeds by time, not by
// request.

#include <cstddef>
#include <utility>
#include <vector>

namespace refract::placement {

// Speed of a server over time, 1 = usual. Repeats after its length.
class SpeedTimeline {
 public:
  // Work in [begin, end) seconds that usually takes `usual_s`.
  struct Work {
    double begin = 0;
    double end = 0;
    double usual_s = 0;
  };

  // Adds `length` seconds. The speed at a moment is the mean speed of the works
  // under way. Between works it is the speed of the faster neighbour, because
  // no work shows that the pause was slow. Works may overlap; without works the
  // speed is 1.
  void Append(const std::vector<Work>& works, double length);

  double length() const { return begins_.back(); }
  // Time from the moment `at` ≥ 0 until `usual_s` of work is done.
  double TimeFor(double at, double usual_s) const;

 private:
  void Add(double end, double speed);

  // Speed i holds from begins_[i] to begins_[i + 1].
  std::vector<double> begins_ = {0};
  std::vector<double> speeds_;
};

// One CN and one HN, recorded together.
struct Recording {
  SpeedTimeline cn;
  SpeedTimeline hn;
  // Moment at which a CN sent a request, and seconds of the way to the HN and
  // back, in which no worker was busy with it. Ascending moments; ≥ 1 entry.
  std::vector<std::pair<double, double>> ways;

  double length() const { return cn.length(); }
  // Linear between entries.
  double WayAt(double at) const;
};

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_RECORDING_H_
