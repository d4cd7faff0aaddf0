#include "tessera/calibrate/fit_machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/cost/constants.h"
#include "tessera/simulate/cache_hits.h"
#include "tessera/simulate/timed_program.h"

namespace tessera {
namespace {

double& peak_of(DeviceSpec::PeakFlops& peaks, DType dtype) {
  return dtype == DType::kF32 ? peaks.f32 : peaks.bf16;
}

double flop_of(const Works& works) {
  double sum = 0.0;
  for (const Work& work : works) {
    sum += flop(work);
  }
  return sum;
}

std::string_view plural(KernelFamily family) {
  switch (family) {
    case KernelFamily::kProduct:
      return "products";
    case KernelFamily::kAttention:
      return "attention";
    case KernelFamily::kStream:
      return "streams";
  }
  return "";
}

constexpr double kMost = 1e6;           // of constants that are no shares
constexpr double kLeastSeconds = 1e-8;  // below which nothing is measured
constexpr double kLeastElements = 1.0;

class Fit {
 public:
  Fit(const Cluster& machine, const MachineMeasures& measures) : measures_(measures) {
    fitted_.cluster = machine;
    fitted_.cluster.host = {.cores = measures.cores,
                            .memory_bandwidth = rounded(measures.host_bandwidth),
                            .cache_bytes = measures.cache_bytes,
                            .cache_bandwidth = rounded(measures.cache_bandwidth)};
    DeviceSpec& core = fitted_.cluster.device;
    core.memory_bandwidth = rounded(measures.core_bandwidth);
    for (const MeasuredKernel& kernel : measures.kernels) {
      if (kernel.family == KernelFamily::kProduct) {
        const double rate = flop_of(kernel.works) / kernel.seconds;
        double& peak = peak_of(core.peak_flops, kernel.dtype);
        peak = std::max(peak, rounded(rate / static_cast<double>(measures.cores)));
      }
    }
    all_cores_ = device_of(fitted_.cluster, measures.cores);
  }

  FittedMachine run() {
    curve_ = kUsualCurve;
    curve_.matmul = {.f32 = 0.8, .bf16 = 0.8, .f8 = 0.0};
    curve_.vector = 0.1;
    curve_.tile_half = 0.0;  // without tiles nothing depends on it
    curve_.comm_share = 0.0;
    fit(KernelFamily::kStream,
        curve_.kernel,
        {1e-7, 1e-6, 1e-5, 1e-4},
        {{&curve_.stream}, {&curve_.kernel, kMost, kLeastSeconds}, {&curve_.vector}});
    fit(KernelFamily::kProduct,
        curve_.k_half,
        {1.0, 10.0, 100.0, 1000.0},
        {{&curve_.matmul.f32, kMost},
         {&curve_.matmul.bf16, kMost},
         {&curve_.k_half, kMost, kLeastElements}});
    DeviceSpec::PeakFlops& peaks = fitted_.cluster.device.peak_flops;
    const double before = peaks.f32;
    raise(peaks.f32, curve_.matmul.f32);
    curve_.vector *= before / peaks.f32;
    raise(peaks.bf16, curve_.matmul.bf16);
    all_cores_ = device_of(fitted_.cluster, measures_.cores);
    fit(KernelFamily::kAttention,
        curve_.attention.half,
        {1.0, 10.0, 100.0, 1000.0},
        {{&curve_.attention.forward},
         {&curve_.attention.backward, kMost},
         {&curve_.attention.half, kMost, kLeastElements}});
    if (fitted_.cluster.device.peak_flops.bf16 == 0.0) {
      curve_.matmul.bf16 = 0.0;
    }
    add_residuals();
    fit_levels();
    fitted_.cluster.device.curve = curve_;
    return std::move(fitted_);
  }

 private:
  // Upwards, in three digits: what it rates is at most it.
  static double rounded(double rate) {
    if (rate == 0.0) {
      return 0.0;
    }
    const double digit = std::pow(10.0, std::floor(std::log10(rate)) - 2.0);
    return std::ceil(rate / digit) * digit;
  }

  // What sums without ends would reach may be more than any that was measured: then that is `most`.
  static void raise(double& most, double& share) {
    if (share > 1.0) {
      most = rounded(most * share);
      share = 1.0;
    }
  }

  std::vector<MeasuredWorks> points_of(KernelFamily family) const {
    std::vector<MeasuredWorks> points;
    for (const MeasuredKernel& kernel : measures_.kernels) {
      if (kernel.family == family) {
        points.push_back(point_of(kernel));
      }
    }
    return points;
  }

  MeasuredWorks point_of(const MeasuredKernel& kernel) const {
    return {.device = &all_cores_,
            .works = kernel.works,
            .seconds = kernel.seconds,
            .cached = cached_share(kernel.bytes, measures_.cache_bytes)};
  }

  // From each of `starts` of a constant that the others can make up for in part, which keeps a
  // descent from ever moving it far.
  void fit(KernelFamily family,
           double& constant,
           std::initializer_list<double> starts,
           const std::vector<Constant>& constants) {
    const std::vector<MeasuredWorks> points = points_of(family);
    TESSERA_REQUIRE(!points.empty(),
                    ErrorCode::kInvalidArgument,
                    "no {} were measured, expected some of each family",
                    plural(family));
    const auto error = [&] { return errors_of(curve_, points).mean_square; };
    const DeviceCurve before = curve_;
    DeviceCurve best = curve_;
    double least = std::numeric_limits<double>::infinity();
    for (const double start : starts) {
      curve_ = before;
      constant = start;
      descend(constants, error);
      if (error() < least) {
        least = error();
        best = curve_;
      }
    }
    curve_ = best;
  }

  void add_residuals() {
    using enum KernelFamily;
    for (const KernelFamily family : {kProduct, kAttention, kStream}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        std::vector<MeasuredWorks> points;
        Residual residual = {.of = format("{} in {}", plural(family), name(dtype))};
        double most = -1.0;
        for (const MeasuredKernel& kernel : measures_.kernels) {
          if (kernel.family == family && kernel.dtype == dtype) {
            points.push_back(point_of(kernel));
            const double error = errors_of(curve_, std::span(&points.back(), 1)).mean;
            if (error > most) {
              most = error;
              residual.worst = kernel.what;
            }
          }
        }
        if (!points.empty()) {
          residual.num = points.size();
          residual.errors = errors_of(curve_, points);
          fitted_.residuals.push_back(std::move(residual));
        }
      }
    }
  }

  // Threads reach each other alike on every level.
  void fit_levels() {
    if (measures_.legs.empty()) {
      return;
    }
    double fastest = 0.0;
    for (const MeasuredLeg& leg : measures_.legs) {
      fastest = std::max(fastest, leg.work.sent / leg.seconds);
    }
    constexpr double kLargest = 1e9;  // bytes
    Level level = {.name = "all",
                   .size = measures_.legs.front().work.ranks,
                   .bandwidth = rounded(fastest),
                   .latency = 5e-6,
                   .half = 1e5,
                   .efficiency = 0.8};
    descend(std::vector<Constant>{{&level.latency, 1.0, kLeastSeconds},
                                  {&level.half, kLargest, kLeastElements},
                                  {&level.efficiency, kLargest}},
            [&] { return errors_of(level, measures_.legs).mean_square; });
    raise(level.bandwidth, level.efficiency);
    for (Level& each : fitted_.cluster.levels) {
      const Level before = each;
      each = level;
      each.name = before.name;
      each.size = before.size;
    }
    Residual residual = {.of = "collectives",
                         .num = measures_.legs.size(),
                         .errors = errors_of(level, measures_.legs)};
    double most = -1.0;
    for (const MeasuredLeg& leg : measures_.legs) {
      const double error = errors_of(level, std::span(&leg, 1)).mean;
      if (error > most) {
        most = error;
        residual.worst =
            format("{} of {:.0f} bytes by {} ranks",
                   leg.work.kind == CollectiveKind::kAllGather ? "all-gather" : "reduce-scatter",
                   leg.work.bytes,
                   leg.work.ranks);
      }
    }
    fitted_.residuals.push_back(std::move(residual));
  }

  const MachineMeasures& measures_;
  FittedMachine fitted_;
  DeviceSpec all_cores_;
  DeviceCurve curve_;
};

}  // namespace

FittedMachine fit_machine(const Cluster& machine, const MachineMeasures& measures) {
  return Fit(machine, measures).run();
}

}  // namespace tessera
