#include "tessera/calibrate/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/base/random.h"
#include "tessera/mesh/machine_cluster.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/runtime/launcher.h"
#include "tessera/runtime/op_runs.h"

namespace tessera {
namespace {

// Of a quiet virtual machine 0.06, of one that compiles something else 0.24 and more.
constexpr double kMostSpread = 0.10;
constexpr double kMostError = 0.30;      // of a family's kernels, in the mean
constexpr double kSecondsOfCase = 0.02;  // of a round
constexpr int kLeastRuns = 3;
constexpr std::int64_t kTimesCache = 3;  // of a stream of which a cache holds little
constexpr std::int64_t kBeyondCaches = std::int64_t{1} << 28U;  // bytes, where none is known

double mean_spread(const std::vector<std::vector<double>>& rounds) {
  double sum = 0.0;
  for (const std::vector<double>& each : rounds) {
    sum += middle_spread(each);
  }
  return sum / static_cast<double>(rounds.size());
}

// The median of what some calls take, at least so many.
double median_seconds(const std::function<double()>& run, std::size_t least = kLeastRuns) {
  std::vector<double> seconds;
  for (double spent = 0.0; spent < kSecondsOfCase || seconds.size() < least;) {
    seconds.push_back(run());
    spent += seconds.back();
  }
  return median(std::move(seconds));
}

// What streams take does not depend on what they read, and normal variates take longer to draw.
constexpr Initial kOnes = {.normal = {.std = 0.0F}, .constant = 1.0F};

Initial content_of(KernelFamily family) {
  return family == KernelFamily::kStream ? kOnes : Initial{.normal = {.std = 0.02F}};
}

// A sum whose three tensors have so many bytes in all. They are written once: to get the memory
// takes longer than some sums.
class Stream {
 public:
  // Borrows the backend.
  Stream(Backend& backend, std::int64_t bytes)
      : bytes_(static_cast<double>(bytes)),
        sum_(backend, make_op(AddAttrs{}), {third(bytes), third(bytes)}, kOnes) {
    sum_.run();
  }

  // Bytes per second, on the backend's threads.
  double bandwidth(Backend& backend) {
    return bytes_ / median_seconds([&] { return sum_.run(backend); }, 1);
  }

 private:
  static TensorType third(std::int64_t bytes) {
    const std::int64_t elements = bytes / 3 / static_cast<std::int64_t>(sizeof(float));
    return {.dtype = DType::kF32, .dims = {{.name = "i", .bound = elements}}};
  }

  double bytes_;
  OpRuns sum_;
};

// Memory of a rank's collectives, of which each gets the next part: as in a training step, what is
// sent and received has left the caches.
class ColdBytes {
 public:
  explicit ColdBytes(std::int64_t bytes)
      : elements_(static_cast<std::size_t>(bytes) / sizeof(float), 1.0F) {}

  // At most all of it. Parts begin where lines of caches do.
  std::span<std::byte> next(std::size_t bytes) {
    constexpr std::size_t kLine = 64;
    const std::span<std::byte> all = std::as_writable_bytes(std::span(elements_));
    const std::size_t begin = at_ + bytes > all.size() ? 0 : at_;
    at_ = (begin + bytes + kLine - 1) / kLine * kLine;
    return all.subspan(begin, bytes);
  }

 private:
  std::vector<float> elements_;
  std::size_t at_ = 0;
};

// Seconds of each size's all-gather and reduce-scatter of all ranks, by round.
class TimedCollectives {
 public:
  TimedCollectives(std::int64_t ranks, std::int64_t rounds) : ranks_(ranks), rounds_(rounds) {}

  // The legs, and how far their rounds lie apart in the mean.
  std::pair<std::vector<MeasuredLeg>, double> run() {
    for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
      for (const std::int64_t bytes : kBytes) {
        const auto whole = static_cast<double>(bytes);
        const auto ranks = static_cast<double>(ranks_);
        legs_.push_back({.work = {.axis = "",
                                  .kind = kind,
                                  .ranks = ranks_,
                                  .bytes = whole,
                                  .sent = whole * (ranks - 1.0) / ranks}});
      }
    }
    seconds_.resize(legs_.size());
    launch_ranks(ranks_, {}, [&](World& world) { run_as(world); });
    for (std::size_t i = 0; i < legs_.size(); ++i) {
      legs_[i].seconds = median(seconds_[i]);
    }
    return {std::move(legs_), mean_spread(seconds_)};
  }

 private:
  static constexpr std::array<std::int64_t, 5> kBytes = {
      1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24};

  // Every rank runs as many: how often follows from the bytes.
  void run_as(World& world) {
    std::vector<std::int64_t> all_ranks;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      all_ranks.push_back(rank);
    }
    const std::unique_ptr<Communicator> group = world.group(all_ranks);
    const std::int64_t bytes =
        std::clamp(2 * machine_cache_bytes() / ranks_, 2 * kBytes.back(), 8 * kBytes.back());
    ColdBytes all(bytes);
    ColdBytes parts(bytes / ranks_);
    for (std::int64_t round = 0; round < rounds_; ++round) {
      for (std::size_t i = 0; i < legs_.size(); ++i) {
        const std::int64_t times = std::clamp<std::int64_t>(
            kBytes.back() / static_cast<std::int64_t>(legs_[i].work.bytes), kLeastRuns, 200);
        group->barrier();
        const auto start = std::chrono::steady_clock::now();
        for (std::int64_t time = 0; time < times; ++time) {
          run_one(*group, legs_[i].work, all, parts);
        }
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (world.rank() == 0) {
          seconds_[i].push_back(taken.count() / static_cast<double>(times));
        }
      }
    }
  }

  void run_one(Communicator& group, const LegWork& work, ColdBytes& all, ColdBytes& parts) const {
    const auto elements = static_cast<std::int64_t>(work.bytes / sizeof(float)) / ranks_;
    const auto bytes = static_cast<std::size_t>(elements) * sizeof(float);
    const std::span<std::byte> whole = all.next(bytes * static_cast<std::size_t>(ranks_));
    const std::span<std::byte> own = parts.next(bytes);
    if (work.kind == CollectiveKind::kAllGather) {
      group.all_gather(own, whole, bytes);
    } else {
      group.reduce_scatter(Fold::kSum,
                           {.data = whole.data(), .count = elements * ranks_},
                           {.data = own.data(), .count = elements},
                           elements);
    }
  }

  std::int64_t ranks_;
  std::int64_t rounds_;
  std::vector<MeasuredLeg> legs_;
  std::vector<std::vector<double>> seconds_;  // by leg and round
};

double bytes_of(const MachineKernel& kernel) {
  double sum = 0.0;
  for (const TensorTypes& types : {kernel.operands, infer(*kernel.op, kernel.operands)}) {
    for (const TensorType& type : types) {
      sum += static_cast<double>(type.num_bytes());
    }
  }
  return sum;
}

void say(const CalibrateOptions& options, std::string_view line) {
  if (options.progress) {
    options.progress(line);
  }
}

// Bandwidths of memory and cache; and how far rounds lie apart.
double measure_memory(const CalibrateOptions& options, MachineMeasures& measures) {
  say(options, "memory");
  const std::int64_t cache = machine_cache_bytes();
  const std::unique_ptr<Backend> core = make_cpu_backend(1);
  const std::unique_ptr<Backend> all = make_cpu_backend(static_cast<int>(options.cores));
  Stream from_memory(*all, std::max(kTimesCache * cache, kBeyondCaches));
  std::optional<Stream> from_cache;
  if (cache > 0) {
    from_cache.emplace(*all, cache / 4);
  }
  std::vector<std::vector<double>> rounds(from_cache ? 3 : 2);
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    rounds[0].push_back(from_memory.bandwidth(*core));
    rounds[1].push_back(from_memory.bandwidth(*all));
    if (from_cache) {
      rounds[2].push_back(from_cache->bandwidth(*all));
    }
  }
  measures.core_bandwidth = median(rounds[0]);
  measures.host_bandwidth = std::max(measures.core_bandwidth, median(rounds[1]));
  if (cache > 0) {
    measures.cache_bytes = static_cast<double>(cache);
    measures.cache_bandwidth = std::max(measures.host_bandwidth, median(rounds[2]));
  }
  return mean_spread(rounds);
}

// Of all kernels, whose rounds take turns; and how far these lie apart.
double measure_kernels(const CalibrateOptions& options, std::vector<MeasuredKernel>& measured) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(static_cast<int>(options.cores));
  std::vector<MachineKernel> kernels;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (MachineKernel& kernel : machine_kernels(dtype)) {
      measured.push_back({.family = kernel.family,
                          .dtype = dtype,
                          .what = kernel.what,
                          .works = work(*kernel.op, kernel.operands),
                          .bytes = bytes_of(kernel)});
      kernels.push_back(std::move(kernel));
    }
  }
  std::vector<std::vector<double>> seconds(kernels.size());
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    say(options, format("round {} of {}: {} kernels", round + 1, options.rounds, kernels.size()));
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      OpRuns runs(*backend, kernels[i].op, kernels[i].operands, content_of(kernels[i].family));
      runs.run();  // what it does once
      seconds[i].push_back(median_seconds([&] { return runs.run(); }));
    }
  }
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    measured[i].seconds = median(seconds[i]);
  }
  return mean_spread(seconds);
}

std::string percent(double share) {
  return format("{:.1f} %", share * 100.0);
}

}  // namespace

Calibration calibrate(const Cluster& machine, const CalibrateOptions& options) {
  TESSERA_REQUIRE(options.cores >= 1 && options.ranks >= 1 && options.rounds >= 1,
                  ErrorCode::kInvalidArgument,
                  "{} cores, {} ranks, {} rounds: expected at least 1 of each",
                  options.cores,
                  options.ranks,
                  options.rounds);
  MachineMeasures measures = {.cores = options.cores};
  double spread = measure_memory(options, measures);
  spread = std::max(spread, measure_kernels(options, measures.kernels));
  if (options.ranks > 1) {
    say(options, format("collectives of {} ranks", options.ranks));
    auto [legs, of_legs] = TimedCollectives(options.ranks, options.rounds).run();
    measures.legs = std::move(legs);
    spread = std::max(spread, of_legs);
  }
  Calibration calibration = {
      .machine = fit_machine(machine, measures), .spread = spread, .rounds = options.rounds};
  Cluster& cluster = calibration.machine.cluster;
  cluster.curve_source = format("tessera bench calibrate, {}, {} cores, spread {}:",
                                options.date,
                                options.cores,
                                percent(spread));
  for (const Residual& residual : calibration.machine.residuals) {
    cluster.curve_source += format("{} {} {} (largest {})",
                                   &residual == calibration.machine.residuals.data() ? "" : ",",
                                   residual.of,
                                   percent(residual.errors.mean),
                                   percent(residual.errors.largest));
  }
  if (options.ranks == 1) {
    cluster.curve_source += "; collectives not measured";
  }
  return calibration;
}

std::string calibration_text(const Calibration& calibration) {
  std::string text = format("{:<20} {:>6}  {:>6}  {:>7}\n", "", "points", "error", "largest");
  for (const Residual& residual : calibration.machine.residuals) {
    text += format("{:<20} {:>6}  {:>6}  {:>7}{}\n",
                   residual.of,
                   residual.num,
                   percent(residual.errors.mean),
                   percent(residual.errors.largest),
                   "  " + residual.worst);
  }
  return text + format("spread of {} rounds {} (at most {})\n",
                       calibration.rounds,
                       percent(calibration.spread),
                       percent(kMostSpread));
}

void require_good(const Calibration& calibration) {
  TESSERA_REQUIRE(calibration.spread <= kMostSpread,
                  ErrorCode::kDeviceError,
                  "the machine is too busy to be measured: kernels' times differ by {} from round "
                  "to round, expected at most {}; end what else runs here, or take a quieter hour",
                  percent(calibration.spread),
                  percent(kMostSpread));
  for (const Residual& residual : calibration.machine.residuals) {
    TESSERA_REQUIRE(residual.errors.mean <= kMostError,
                    ErrorCode::kDeviceError,
                    "{}: the fitted curve is {} off in the mean, expected at most {}; most of all "
                    "for: {}",
                    residual.of,
                    percent(residual.errors.mean),
                    percent(kMostError),
                    residual.worst);
  }
}

}  // namespace tessera
