#include "placement/planner/sizing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "placement/planner/queueing.h"

namespace refract::placement {
namespace {

constexpr double kBytesPerGbit = 1e9 / 8;
constexpr int kMostInstances = 1'000'000;
// A simulation keeps 16 bytes for each pair of a CN and an HN.
constexpr double kMostPairs = 1 << 26;
constexpr double kMostRate = 1e12;

// The scarcest resource of a node, by the number of instances that fit.
class Least {
 public:
  void Allow(double amount, const char* resource) {
    const int whole =
        static_cast<int>(std::min<double>(std::floor(amount + 1e-9), 1 << 20));
    if (whole < packing.per_node) {
      packing.per_node = whole;
      packing.bound_by = resource;
    }
  }
  Packing packing{.per_node = 1 << 20, .bound_by = "nothing"};
};

// The instances' share of the NICs; without a given share all NICs are shared
// evenly.
Packing WithNic(Least least, const NodeType& node, std::optional<int> percent) {
  if (percent.has_value()) {
    least.Allow(std::floor(100.0 / *percent) * node.nics, "NICs");
  }
  Packing packing = least.packing;
  packing.nic_percent =
      percent.value_or(std::clamp(100 * node.nics / packing.per_node, 1, 100));
  packing.nic_bytes_per_s =
      packing.nic_percent / 100.0 * node.nic_gbps * kBytesPerGbit;
  return packing;
}

// Squared coefficient of variation of service times t·f: t by the requests'
// sizes, f the variation around it, independent of t. E[t²f²] ÷ E[tf]² − 1 =
// (E[t²] ÷ E[t]²) · (E[f²] ÷ E[f]²) − 1.
double Scv(const ModelCosts& costs, const std::vector<double>& rows,
           const Variation& variation, double RequestCost::*first,
           double RequestCost::*second) {
  double sum = 0;
  double squares = 0;
  for (const double one : rows) {
    const RequestCost cost = costs.At(one);
    const double time = cost.*first + (second == nullptr ? 0.0 : cost.*second);
    sum += time;
    squares += time * time;
  }
  if (sum == 0) return 0;
  const auto count = static_cast<double>(rows.size());
  double spread = std::exp(variation.sigma * variation.sigma);  // E[f²]/E[f]²
  if (!variation.factors.empty()) {
    const double mean = variation.Mean();
    double of_squares = 0;
    for (const double factor : variation.factors) of_squares += factor * factor;
    spread = of_squares / static_cast<double>(variation.factors.size()) /
             (mean * mean);
  }
  return squares * count / (sum * sum) * spread - 1;
}

// HN seconds of a request of average size in the cheapest batches: a lower
// bound of what any batches need.
double BatchedHnSeconds(const SizingInput& input, const RequestCost& mean) {
  const ModelCosts& costs = input.service->costs;
  if (input.configuration.batching_window_us < 0) return mean.hn_s;
  const auto most = static_cast<double>(input.service->hn.max_batch_rows);
  // Costs are lines between points, so the time per row is least at a point, or
  // in the smallest or the largest batch.
  const std::vector<double>& requests = input.service->traffic.rows;
  std::vector<double> sizes = {
      most, *std::min_element(requests.begin(), requests.end())};
  for (const RequestCost& point : costs.points) sizes.push_back(point.rows);
  double best = mean.hn_s;
  for (const double rows : sizes) {
    if (rows > most) continue;
    best = std::min(best,
                    costs.At(rows).hn_s * costs.hn.Mean() * mean.rows / rows);
  }
  return best;
}

class Sizer {
 public:
  Sizer(const SizingInput& input, const SizingOptions& options)
      : input_(input),
        options_(options),
        load_(LoadOf(*input.service, DesignRate(*input.service), options)) {}

  Sizing Run(std::optional<std::pair<int, int>> start) {
    sizing_.idle_p99_s =
        IdleP99(input_.service->costs, SystemOf(input_, 1, 1), load_);
    ++sizing_.simulations;
    sizing_.analytic = SizeByFormula(input_, sizing_.idle_p99_s);
    if (sizing_.idle_p99_s > input_.service->slo_p99_s) {
      const RequestCost& mean = sizing_.analytic.mean;
      sizing_.why_not = absl::StrFormat(
          "an idle deployment has p99 %.3g ms (on average CN %.3g ms, HN %.3g "
          "ms)",
          sizing_.idle_p99_s * 1e3, (mean.cn_pre_s + mean.cn_post_s) * 1e3,
          mean.hn_s * 1e3);
      return sizing_;
    }
    // Adds a third of the instances until the objective is met, because every
    // trial is several simulations; then removes instances by bisection.
    int cns = start ? start->first : sizing_.analytic.cns;
    int hns = start ? start->second : sizing_.analytic.hns;
    cns = std::max(cns, LeastOf(sizing_.analytic.least_cns));
    hns = std::max(hns, LeastOf(sizing_.analytic.least_hns));
    if (input_.configuration.whole) cns = hns = std::max(cns, hns);
    while (true) {
      if (TooMany(cns, hns)) {
        sizing_.why_not = absl::StrFormat(
            "%d CN and %d HN are more than a simulation holds", cns, hns);
        return sizing_;
      }
      if (Meets(cns, hns)) break;
      // Where requests hardly wait, more instances would not help.
      if (HardlyWaits(Result(cns, hns).mean)) {
        sizing_.why_not = absl::StrFormat(
            "p99 %.3g ms with %d CN and %d HN, where requests hardly wait",
            Result(cns, hns).p99_s.mean * 1e3, cns, hns);
        return sizing_;
      }
      cns += std::max(1, cns / 3);
      hns += std::max(1, hns / 3);
      if (input_.configuration.whole) hns = cns;
    }
    if (input_.configuration.whole) {
      cns = hns = LeastThat(LeastOf(sizing_.analytic.least_cns), cns,
                            [&](int n) { return Meets(n, n); });
      while (cns > 1 && Meets(cns - 1, cns - 1)) cns = --hns;
    } else {
      std::tie(cns, hns) = Reduce(cns, hns, /*cns_first=*/true);
      std::tie(cns, hns) = Trade(cns, hns);
    }
    sizing_.met = true;
    sizing_.cns = cns;
    sizing_.hns = hns;
    sizing_.price = Price(cns, hns);
    sizing_.result = Result(cns, hns);
    if (input_.configuration.whole) {
      if (cns > 1) sizing_.one_cn_less = Result(cns - 1, hns - 1);
    } else {
      if (cns > 1) sizing_.one_cn_less = Result(cns - 1, hns);
      if (hns > 1) sizing_.one_hn_less = Result(cns, hns - 1);
    }
    return sizing_;
  }

 private:
  static int LeastOf(double amount) {
    return std::max(
        1, static_cast<int>(std::ceil(std::min(amount, 2.0 * kMostInstances))));
  }
  bool TooMany(int cns, int hns) const {
    return std::max(cns, hns) > kMostInstances ||
           (!input_.configuration.whole &&
            static_cast<double>(cns) * hns > kMostPairs);
  }
  double Price(int cns, int hns) const {
    return cns * input_.cn_price +
           (input_.configuration.whole ? 0 : hns * input_.hn_price);
  }

  // Results are kept: bisection, trades and the final check ask for the same
  // pairs.
  const RepeatedResult& Result(int cns, int hns) {
    const auto [at, is_new] = results_.try_emplace({cns, hns});
    if (is_new) {
      at->second =
          SimulateRepeatedly(input_.service->costs, SystemOf(input_, cns, hns),
                             load_, options_.seeds);
      ++sizing_.simulations;
    }
    return at->second;
  }
  // More instances would change nothing: the objective is so close to the p99
  // of an idle deployment that chance decides.
  static bool HardlyWaits(const SimulationResult& result) {
    constexpr double kIdle = 0.02;
    return std::max({result.cn_busy, result.hn_busy, result.cn_nic_busy,
                     result.hn_nic_busy}) < kIdle;
  }
  // Queues of overloaded instances grow without end, which a run of 20
  // objectives does not show.
  bool Meets(int cns, int hns) {
    return cns >= sizing_.analytic.least_cns &&
           hns >= sizing_.analytic.least_hns &&
           Result(cns, hns).p99_s.mean <= input_.service->slo_p99_s;
  }

  // The least n in [least, met] with meets(n); meets(met) holds. Steps that
  // double go down from `met`, because the answer is mostly near it, and
  // bisection ends the search.
  template <typename Predicate>
  static int LeastThat(int least, int met, const Predicate& meets) {
    for (int step = std::max(1, (met - least) / 8); least < met; step *= 2) {
      const int n = std::max(least, met - step);
      if (!meets(n)) {
        least = n + 1;
        break;
      }
      met = n;
    }
    while (least < met) {
      const int middle = least + (met - least) / 2;
      if (meets(middle)) {
        met = middle;
      } else {
        least = middle + 1;
      }
    }
    return met;
  }

  // Removes instances of either kind until removing one more instance misses
  // the objective; CNs first, or HNs first.
  std::pair<int, int> Reduce(int cns, int hns, bool cns_first) {
    const auto reduce_cns = [&] {
      cns = LeastThat(std::min(cns, LeastOf(sizing_.analytic.least_cns)), cns,
                      [&](int n) { return Meets(n, hns); });
    };
    if (cns_first) reduce_cns();
    hns = LeastThat(std::min(hns, LeastOf(sizing_.analytic.least_hns)), hns,
                    [&](int n) { return Meets(cns, n); });
    if (!cns_first) reduce_cns();
    // Bisection assumes that more instances are never slower; noise may
    // contradict that.
    while (true) {
      if (cns > 1 && Meets(cns - 1, hns)) {
        --cns;
      } else if (hns > 1 && Meets(cns, hns - 1)) {
        --hns;
      } else {
        return {cns, hns};
      }
    }
  }

  // Price of the instances. Each instance beyond the available nodes costs more
  // than all others together.
  double Burden(int cns, int hns) const {
    constexpr double kMissing = 1e12;
    return Price(cns, hns) + kMissing * (std::max(0, cns - input_.most_cns) +
                                         std::max(0, hns - input_.most_hns));
  }

  // A few more instances of one kind may save some of the other kind: the waits
  // of both share one objective.
  std::pair<int, int> Trade(int cns, int hns) {
    // Steps of small and of large numbers of instances.
    constexpr std::pair<int, double> kSteps[] = {
        {1, 0.02}, {2, 0.05}, {3, 0.1}, {4, 0.2}};
    bool better = true;
    while (better) {
      better = false;
      for (const auto& [least, part] : kSteps) {
        for (const bool more_cns : {true, false}) {
          const int step =
              std::max(least, static_cast<int>((more_cns ? cns : hns) * part));
          const int c = more_cns ? cns + step : cns;
          const int h = more_cns ? hns : hns + step;
          const int least_c =
              more_cns ? c : LeastOf(sizing_.analytic.least_cns);
          const int least_h =
              more_cns ? LeastOf(sizing_.analytic.least_hns) : h;
          // Even with the fewest instances of the other kind the pair costs
          // more.
          if (Burden(least_c, least_h) >= Burden(cns, hns)) continue;
          // The added instances must stay while those of the other kind go.
          const auto [fewer_c, fewer_h] = Reduce(c, h, !more_cns);
          if (Burden(fewer_c, fewer_h) < Burden(cns, hns) - 1e-9) {
            cns = fewer_c;
            hns = fewer_h;
            better = true;
          }
        }
      }
    }
    return {cns, hns};
  }

  const SizingInput& input_;
  const SizingOptions& options_;
  const SimulatedLoad load_;
  std::map<std::pair<int, int>, RepeatedResult> results_;
  Sizing sizing_;
};

}  // namespace

int PartsPerGpu(MigProfile part) {
  if (part == MigProfile::kNone) return 1;
  int parts = 0;
  uint8_t used = 0;
  while (const uint8_t slices = ChooseMigSlices(part, used)) {
    used |= slices;
    ++parts;
  }
  return parts;
}

Packing PackCn(const NodeType& node, const CnOptions& options, double cores) {
  Least least;
  least.Allow(node.cores / cores, "cores");
  if (options.memory_gib > 0) {
    least.Allow(node.memory_gib / options.memory_gib, "memory");
  }
  if (options.max_per_node > 0) {
    least.Allow(options.max_per_node, "max_per_node");
  }
  return WithNic(least, node, options.nic_percent);
}

Packing PackHn(const NodeType& node, const HnOptions& options,
               MigProfile part) {
  Least least;
  least.Allow(node.gpus * PartsPerGpu(part), "GPUs");
  least.Allow(node.cores / options.cores, "cores");
  if (options.memory_gib > 0) {
    least.Allow(node.memory_gib / options.memory_gib, "memory");
  }
  if (options.max_per_node > 0) {
    least.Allow(options.max_per_node, "max_per_node");
  }
  return WithNic(least, node, options.nic_percent);
}

Packing PackWhole(const NodeType& node, const MonolithOptions& options) {
  Least least;
  least.Allow(node.gpus, "GPUs");
  least.Allow(node.cores / options.cores, "cores");
  if (options.memory_gib > 0) {
    least.Allow(node.memory_gib / options.memory_gib, "memory");
  }
  return WithNic(least, node, std::nullopt);
}

std::vector<Configuration> ConfigurationsOf(const ServiceSpec& service) {
  std::vector<Configuration> all;
  for (const double cores : service.cn.cores) {
    for (const GpuPart& part : service.hn.parts) {
      for (const double window : service.hn.batching_window_us) {
        all.push_back({cores, part, window});
      }
    }
  }
  return all;
}

SizingInput MakeInput(const PlanSpec& spec, const ServiceSpec& service,
                      const Configuration& configuration) {
  SizingInput input{.service = &service, .configuration = configuration};
  // Check(spec) refuses instances that fit no node: per_node is at least 1.
  if (configuration.whole) {
    const NodeType& node = *spec.FindNode(service.monolith->node);
    input.cn = PackWhole(node, *service.monolith);
    input.cn_price = node.price_per_h / input.cn.per_node;
    return input;
  }
  const NodeType& cn = *spec.FindNode(service.cn.node);
  const NodeType& hn = *spec.FindNode(service.hn.node);
  input.cn = PackCn(cn, service.cn, configuration.cn_cores);
  input.hn = PackHn(hn, service.hn, configuration.part.mig);
  input.cn_price = cn.price_per_h / input.cn.per_node;
  input.hn_price = hn.price_per_h / input.hn.per_node;
  const auto most = [](const NodeType& node, const Packing& packing) {
    return node.count < 0 ? std::numeric_limits<int>::max()
                          : static_cast<int>(std::min<int64_t>(
                                node.count * packing.per_node,
                                std::numeric_limits<int>::max()));
  };
  input.most_cns = most(cn, input.cn);
  input.most_hns = most(hn, input.hn);
  return input;
}

double DesignRate(const ServiceSpec& service) {
  return service.traffic.queries_per_s * service.traffic.burst;
}

SimulatedSystem SystemOf(const SizingInput& input, int cns, int hns) {
  const Configuration& configuration = input.configuration;
  SimulatedSystem system;
  system.cns = cns;
  system.hns = hns;
  system.cn_workers = static_cast<int>(configuration.cn_cores);
  system.hn_parallel = input.service->hn.parallel;
  system.hn_slowdown = configuration.part.slowdown;
  system.whole = configuration.whole;
  if (!configuration.whole) {
    system.cn_nic_bytes_per_s = input.cn.nic_bytes_per_s;
    system.hn_nic_bytes_per_s = input.hn.nic_bytes_per_s;
  }
  system.batching.enabled = configuration.batching_window_us >= 0;
  system.batching.window =
      absl::Microseconds(std::max(0.0, configuration.batching_window_us));
  system.batching.max_rows = input.service->hn.max_batch_rows;
  return system;
}

SimulatedLoad LoadOf(const ServiceSpec& service, double requests_per_s,
                     const SizingOptions& options) {
  SimulatedLoad load;
  load.requests_per_s = requests_per_s;
  load.rows = service.traffic.rows;
  load.deadline_s = service.slo_p99_s;
  load.seed = options.first_seed;
  // A run must last many times the time of a request, or queues of a large
  // system never fill.
  constexpr double kLengthInDeadlines = 20;
  load.requests = static_cast<int>(std::clamp(
      requests_per_s * service.slo_p99_s * kLengthInDeadlines,
      static_cast<double>(options.requests), 50.0 * options.requests));
  return load;
}

AnalyticSizing SizeByFormula(const SizingInput& input, double idle_p99_s) {
  const ServiceSpec& service = *input.service;
  const Configuration& configuration = input.configuration;
  const std::vector<double>& rows = service.traffic.rows;
  const double rate = DesignRate(service);
  AnalyticSizing sizing;
  sizing.mean = MeanOf(service.costs, rows);
  // Costs are those of a whole GPU; `mean` takes the part's slowdown for
  // reports. BatchedHnSeconds() wants the time on a whole GPU.
  const double slowdown = configuration.part.slowdown;
  sizing.mean.hn_s *= slowdown;
  const double cn_s = sizing.mean.cn_pre_s + sizing.mean.cn_post_s;
  RequestCost whole_gpu = sizing.mean;
  whole_gpu.hn_s /= slowdown;
  sizing.hn_s = BatchedHnSeconds(input, whole_gpu) * slowdown;
  const int workers = static_cast<int>(configuration.cn_cores);
  const int parallel = service.hn.parallel;
  // NICs are full duplex: the direction of more bytes binds.
  const double bytes = configuration.whole ? 0
                                           : std::max(sizing.mean.up_bytes,
                                                      sizing.mean.down_bytes);
  const auto larger = [&](double compute, double nic, const char* name,
                          std::string* bound) {
    *bound = nic > compute ? "NIC" : name;
    return std::max(compute, nic);
  };
  sizing.least_cns =
      larger(rate * cn_s / workers,
             bytes == 0 ? 0 : rate * bytes / input.cn.nic_bytes_per_s, "cores",
             &sizing.cn_bound_by);
  sizing.least_hns =
      larger(rate * sizing.hn_s / parallel,
             bytes == 0 ? 0 : rate * bytes / input.hn.nic_bytes_per_s, "GPU",
             &sizing.hn_bound_by);
  if (configuration.whole) {
    sizing.least_cns = sizing.least_hns =
        std::max(sizing.least_cns, sizing.least_hns);
  }
  const double cn_scv = Scv(service.costs, rows, service.costs.cn,
                            &RequestCost::cn_pre_s, &RequestCost::cn_post_s);
  const double hn_scv =
      Scv(service.costs, rows, service.costs.hn, &RequestCost::hn_s, nullptr);
  // Batches grow with the load: the geometric mean of a request's time alone
  // and in the largest batch stands for the loads between.
  const double hn_typical_s = std::sqrt(sizing.hn_s * sizing.mean.hn_s);
  const auto wait_cn = [&](int cns) {
    return WaitQuantile({workers, rate / cns, cn_s, cn_scv}, 0.99);
  };
  const auto wait_hn = [&](int hns) {
    return WaitQuantile({parallel, rate / hns, hn_typical_s, hn_scv}, 0.99);
  };
  // Each of the two waits gets half of the time that the objective leaves.
  const double room = std::max(0.0, service.slo_p99_s - idle_p99_s) / 2;
  const auto fewest = [&](double least, const auto& wait) {
    // Steps of 2 % for large numbers: the result only begins the simulation.
    int n = std::max(1, static_cast<int>(std::ceil(least)));
    int step = 1;
    while (wait(n) > room && n < kMostInstances) {
      n += step;
      step = std::max(1, n / 50);
    }
    return n;
  };
  sizing.cns = fewest(sizing.least_cns, wait_cn);
  sizing.hns = fewest(sizing.least_hns, wait_hn);
  if (configuration.whole) {
    sizing.cns = sizing.hns = std::max(sizing.cns, sizing.hns);
  }
  sizing.p99_s = idle_p99_s + wait_cn(sizing.cns) + wait_hn(sizing.hns);
  const auto price = [&](double cns, double hns) {
    return cns * input.cn_price +
           (configuration.whole ? 0 : hns * input.hn_price);
  };
  sizing.price = price(sizing.cns, sizing.hns);
  // A lower bound of the price of any answer: Search() relies on it.
  sizing.least_price = price(std::max(1.0, std::ceil(sizing.least_cns)),
                             std::max(1.0, std::ceil(sizing.least_hns)));
  return sizing;
}

Sizing Size(const SizingInput& input, const SizingOptions& options,
            std::optional<std::pair<int, int>> start) {
  return Sizer(input, options).Run(start);
}

double FindKnee(const SizingInput& input, int cns, int hns, double meets,
                const SizingOptions& options) {
  const SimulatedSystem system = SystemOf(input, cns, hns);
  const AnalyticSizing formula = SizeByFormula(input, 0);
  // Parts of the instances that the design rate keeps busy.
  const double busy =
      std::max(formula.least_cns / cns, formula.least_hns / hns);
  const double design = DesignRate(*input.service);
  const auto good = [&](double rate) {
    // A run that ends does not show that queues grow.
    if (rate / design * busy > 1) return false;
    return SimulateRepeatedly(input.service->costs, system,
                              LoadOf(*input.service, rate, options),
                              options.seeds)
               .p99_s.mean <= input.service->slo_p99_s;
  };
  double low = meets;
  // Small steps near the plan's rate, larger steps far from it: the smallest
  // deployment may have its knee far above a small rate.
  double step = 1.1;
  double high = low * step;
  while (good(high) && high < kMostRate) {
    low = high;
    step *= 1.2;
    high *= step;
  }
  // Bisection of the logarithm, to 2 %.
  while (high / low > 1.02) {
    const double middle = std::sqrt(low * high);
    (good(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace refract::placement
