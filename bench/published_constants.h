#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/gauss_newton.h"
#include "bench/kernel_points.h"
#include "bench/published_tables.h"
#include "tessera/base/format.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/device_time.h"

namespace tessera {

// A constant that is fitted: at most `most`.
struct Parameter {
  std::string name;
  std::string family;  // of chips; empty: of
  std::string stack;
  double most = 1.0;
  double initial = 0.0;
  std::function<void(PublishedConstants&, double)> set;
  bool is_of_host = false;
};

// A time that was measured, of a row or of a kernel.
struct Measured {
  std::size_t table = 0;
  std::string family;
  std::string stack;
  double seconds = 0.0;
  std::function<double(const PublishedConstants&)> predict;
};

// A number of a curve.
using CurveMember = double& (*)(DeviceCurve&);

struct CurveConstant {
  std::string_view name;
  double most;
  CurveMember of;
};

inline constexpr double kNoMost = 1e9;

// The others keep what the files have: steps hardly tell them.
inline constexpr auto kCurve = std::to_array<CurveConstant>({
    {"matmul.bf16", 1.0, [](DeviceCurve& c) -> double& { return c.matmul.bf16; }},
    {"matmul.f8", 1.0, [](DeviceCurve& c) -> double& { return c.matmul.f8; }},
    {"k_half", kNoMost, [](DeviceCurve& c) -> double& { return c.k_half; }},
    {"tile_half", kNoMost, [](DeviceCurve& c) -> double& { return c.tile_half; }},
    {"stream", 1.0, [](DeviceCurve& c) -> double& { return c.stream; }},
    {"kernel", kNoMost, [](DeviceCurve& c) -> double& { return c.kernel; }},
    {"attention.forward", 1.0, [](DeviceCurve& c) -> double& { return c.attention.forward; }},
    {"attention.backward", 1.5, [](DeviceCurve& c) -> double& { return c.attention.backward; }},
});

// Constants of chips and stacks, and the times that they are fitted to.
class Fit {
 public:
  // DEFAULTS, CLUSTERS, STACKS, MICRO and tables.
  explicit Fit(std::span<const std::string> arguments)
      : defaults_(arguments[0]), constants_(PublishedConstants::load(arguments[1], arguments[2])) {
    for (auto& [file, cluster] : constants_.clusters) {
      DeviceCurve curve = cluster.device.curve.value_or(kUsualCurve);
      curve.matmul.f8 = cluster.device.peak_flops.f8 > 0.0 ? curve.matmul.f8 : 0.0;
      cluster.device.curve = curve;
    }
    for (std::size_t i = 4; i < arguments.size(); ++i) {
      add_table(arguments[i]);
    }
    for (const ChipFamily& family : defaults_.families()) {
      add_kernels(family, arguments[3]);
      add_chip(family);
    }
    for (const auto& [name, stack] : constants_.stacks) {
      add_stack(stack);
    }
  }

  std::size_t num_tables() const { return names_.size(); }

  const std::string& table(std::size_t i) const { return names_[i]; }

  std::span<const Parameter> parameters() const { return parameters_; }

  std::vector<double> initial() const {
    std::vector<double> values;
    for (const Parameter& parameter : parameters_) {
      values.push_back(std::log(parameter.initial));
    }
    return values;
  }

  // Logarithms of the constants that fit best.
  std::vector<double> fit(std::vector<double> values, int iterations) {
    values = search_hosts(std::move(values));
    double least = loss(residuals_of(values), values, std::nullopt);
    for (int i = 0; i < iterations; ++i) {
      const std::vector<double> goal = linear_fit(linearize(values), std::nullopt);
      bool better = false;
      for (double length = 1.0; length > 0.2 && !better; length /= 2.0) {
        std::vector<double> moved = values;
        for (std::size_t j = 0; j < moved.size(); ++j) {
          moved[j] += length * (goal[j] - moved[j]);
        }
        const double now = loss(residuals_of(moved), moved, std::nullopt);
        better = now < least;
        if (better) {
          least = now;
          values = moved;
        }
      }
      if (!better) {
        break;
      }
    }
    return values;
  }

  // What residuals do near a point.
  struct Linear {
    std::vector<double> values;
    std::vector<double> residuals;
    std::vector<std::vector<double>> jacobian;

    // Where the constants are `moved`.
    std::vector<double> at(const std::vector<double>& moved) const {
      std::vector<double> result = residuals;
      for (std::size_t i = 0; i < result.size(); ++i) {
        for (std::size_t j = 0; j < moved.size(); ++j) {
          result[i] += jacobian[i][j] * (moved[j] - values[j]);
        }
      }
      return result;
    }
  };

  Linear linearize(const std::vector<double>& values) {
    Linear linear = {.values = values,
                     .residuals = residuals_of(values),
                     .jacobian = std::vector<std::vector<double>>(
                         measured_.size(), std::vector<double>(values.size(), 0.0))};
    for (std::size_t j = 0; j < values.size(); ++j) {
      std::vector<double> moved = values;
      moved[j] -= kMove;
      const std::vector<double> now = residuals_with(moved, j, linear.residuals);
      for (std::size_t i = 0; i < measured_.size(); ++i) {
        linear.jacobian[i][j] = (linear.residuals[i] - now[i]) / kMove;
      }
    }
    return linear;
  }

  // The constants that would fit best were all linear; without one of the tables, if it is said
  // which. None moves by more than a factor of two.
  std::vector<double> linear_fit(const Linear& linear, std::optional<std::size_t> without) const {
    constexpr int kRounds = 40;
    std::vector<double> values = linear.values;
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<double> residuals = linear.at(values);
      std::vector<double> weights;
      std::vector<double> away;
      for (std::size_t i = 0; i < residuals.size(); ++i) {
        weights.push_back(weight(i, residuals[i], without));
      }
      for (std::size_t j = 0; j < values.size(); ++j) {
        away.push_back(values[j] - std::log(parameters_[j].initial));
      }
      const std::vector<double> move =
          gauss_newton_step(linear.jacobian, residuals, weights, away, kPull / kUsual);
      for (std::size_t j = 0; j < values.size(); ++j) {
        const double most = std::min(std::log(parameters_[j].most), linear.values[j] + kFarthest);
        values[j] = std::clamp(values[j] + 0.5 * move[j], linear.values[j] - kFarthest, most);
      }
    }
    return values;
  }

  // Mean error of each table.
  std::vector<double> errors(const std::vector<double>& values) {
    return errors_of(residuals_of(values));
  }

  std::vector<double> errors_of(const std::vector<double>& residuals) const {
    std::vector<double> sums(names_.size(), 0.0);
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      sums[measured_[i].table] += std::abs(std::expm1(residuals[i])) / sizes_[measured_[i].table];
    }
    return sums;
  }

  // The mean over tables of steps.
  double mean_of_steps(const std::vector<double>& all) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < num_step_tables_; ++i) {
      sum += all[i] / static_cast<double>(num_step_tables_);
    }
    return sum;
  }

  // Mean errors where each constant is drawn between half and twice of what it is.
  std::vector<double> errors_of_random(const std::vector<double>& values, std::uint32_t seed) {
    std::mt19937 draw(seed);
    std::vector<double> moved = values;
    for (std::size_t j = 0; j < moved.size(); ++j) {
      const double share = static_cast<double>(draw()) / static_cast<double>(std::mt19937::max());
      moved[j] =
          std::min(moved[j] + (2.0 * share - 1.0) * std::log(2.0), std::log(parameters_[j].most));
    }
    return errors(moved);
  }

  // What the files are to say.
  std::string text(const std::vector<double>& values) {
    apply(values);
    std::string text;
    for (const ChipFamily& family : defaults_.families()) {
      if (!has(family.name, &Parameter::family)) {
        continue;
      }
      for (const std::string& file : family.files) {
        Cluster& cluster = constants_.clusters.at(file);
        for (const CurveConstant& constant : kCurve) {
          round(constant.of(*cluster.device.curve));
        }
        const std::string device = to_toml(cluster.device);
        text += format("# {}\n{}# outermost level: efficiency = {:.3g}\n\n",
                       file,
                       device.substr(device.find("[device.curve]")),
                       cluster.levels.back().efficiency);
      }
    }
    for (auto& [name, stack] : constants_.stacks) {
      round(stack.issue);
      round(stack.collective);
      round(stack.attention);
      text += has(name, &Parameter::stack) ? to_toml(stack) + "\n" : "";
    }
    return text;
  }

 private:
  // In logarithms: how far a step moves for a derivative, and how many times the squared distance
  // from where it began counts.
  static constexpr double kMove = 0.03;
  static constexpr double kPull = 0.003;
  static constexpr double kFarthest = 0.7;
  // Errors that count in full; of larger ones each counts as if it were as large.
  static constexpr double kUsual = 0.03;

  // To what the files are to say.
  static void round(double& value) {
    value = std::strtod(format("{:.3g}", value).c_str(), nullptr);
  }

  bool has(const std::string& name, std::string Parameter::* member) const {
    return std::ranges::find(parameters_, name, member) != parameters_.end();
  }

  std::size_t add_name(std::string name) {
    names_.push_back(std::move(name));
    sizes_.push_back(0.0);
    return names_.size() - 1;
  }

  void add_table(const std::string& file) {
    PublishedTable& table = tables_.emplace_back(set_.read(file, defaults_));
    set_.simulate(table, constants_);
    const std::size_t number = add_name(table.name);
    num_step_tables_ = names_.size();
    for (const PublishedTable::Row& row : table.rows) {
      if (row.waits.empty()) {
        measured_.push_back({.table = number,
                             .family = family_of(row.run.chip),
                             .stack = row.run.stack,
                             .seconds = row.score.target,
                             .predict = [row](const PublishedConstants& constants) {
                               return predicted_seconds(row, constants);
                             }});
        sizes_[number] += 1.0;
      }
    }
  }

  std::string family_of(const std::string& file) const {
    for (const ChipFamily& family : defaults_.families()) {
      if (std::ranges::find(family.files, file) != family.files.end()) {
        return family.name;
      }
    }
    return "";
  }

  void add_kernels(const ChipFamily& family, const std::string& directory) {
    for (const auto& [gpu, file] : family.gpus) {
      const KernelPoints points = read_kernel_points(directory, gpu);
      add_points(family, file, gpu + " attention", points.attention);
      add_points(family, file, gpu + " attention backward", points.attention_backward);
      add_points(family, file, gpu + " norms", points.norms);
      add_points(family, file, gpu + " norms backward", points.norms_backward);
    }
  }

  void add_points(const ChipFamily& family,
                  const std::string& file,
                  const std::string& name,
                  const std::vector<KernelPoint>& points) {
    if (points.empty()) {
      return;
    }
    const std::size_t number = add_name(name);
    sizes_[number] = static_cast<double>(points.size());
    for (const KernelPoint& point : points) {
      measured_.push_back({.table = number,
                           .family = family.name,
                           .stack = "",
                           .seconds = point.seconds,
                           .predict = [point, file](const PublishedConstants& constants) {
                             const Cluster& cluster = constants.clusters.at(file);
                             return DeviceTime(cluster.device, file).seconds(point.works);
                           }});
    }
  }

  void add_chip(const ChipFamily& family) {
    const auto is_step = [&](const Measured& each) {
      return each.family == family.name && !each.stack.empty();
    };
    if (std::ranges::none_of(measured_, is_step)) {
      return;
    }
    Cluster& first = constants_.clusters.at(family.files[0]);
    for (const CurveConstant& constant : kCurve) {
      if (constant.name == "matmul.f8" && first.device.peak_flops.f8 == 0.0) {
        continue;
      }
      double& value = constant.of(*first.device.curve);
      parameters_.push_back({.name = format("{} {}", family.name, constant.name),
                             .family = family.name,
                             .stack = "",
                             .most = constant.most,
                             .initial = value,
                             .set = [family, constant](PublishedConstants& all, double now) {
                               for (const std::string& file : family.files) {
                                 constant.of(*all.clusters.at(file).device.curve) = now;
                               }
                             }});
    }
    add_network(family, first.levels.back());
    const auto runs_capped = [&](const PublishedTable& table) {
      return std::ranges::any_of(table.rows, [&](const PublishedTable::Row& row) {
        return row.waits.empty() && row.run.chip == family.capped;
      });
    };
    if (std::ranges::any_of(tables_, runs_capped)) {
      parameters_.push_back({.name = format("{} capped products", family.name),
                             .family = family.name,
                             .stack = "",
                             .most = 1.0,
                             .initial = 0.9,
                             .set = [family](PublishedConstants& all, double now) {
                               DeviceCurve& curve = *all.clusters.at(family.capped).device.curve;
                               curve.matmul.bf16 *= now;
                               curve.matmul.f8 *= now;
                             }});
    }
  }

  void add_network(const ChipFamily& family, const Level& network) {
    constexpr double kBegin = 0.8;
    parameters_.push_back({.name = format("{} network efficiency", family.name),
                           .family = family.name,
                           .stack = "",
                           .most = 1.0,
                           .initial = network.efficiency > 0.0 ? network.efficiency : kBegin,
                           .set = [family](PublishedConstants& all, double now) {
                             for (const std::string& file : family.files) {
                               all.clusters.at(file).levels.back().efficiency = now;
                             }
                           }});
  }

  void add_stack(const SoftwareStack& stack) {
    if (std::ranges::find(measured_, stack.name, &Measured::stack) == measured_.end()) {
      return;
    }
    parameters_.push_back({.name = stack.name + " attention",
                           .family = "",
                           .stack = stack.name,
                           .most = 1.0,
                           .initial = stack.attention,
                           .set = [name = stack.name](PublishedConstants& all, double now) {
                             all.stacks.at(name).attention = now;
                           }});
    if (stack.collective > 0.0) {
      parameters_.push_back(
          {.name = stack.name + " collective",
           .family = "",
           .stack = stack.name,
           .most = kNoMost,
           .initial = stack.collective,
           .set = [name = stack.name](PublishedConstants& all,
                                      double now) { all.stacks.at(name).collective = now; },
           .is_of_host = true});
    }
    parameters_.push_back(
        {.name = stack.name + " issue",
         .family = "",
         .stack = stack.name,
         .most = kNoMost,
         .initial = stack.issue,
         .set = [name = stack.name](PublishedConstants& all,
                                    double now) { all.stacks.at(name).issue = now; },
         .is_of_host = true});
  }

  void apply(const std::vector<double>& values) {
    for (std::size_t j = 0; j < parameters_.size(); ++j) {
      parameters_[j].set(constants_, std::exp(values[j]));
    }
  }

  std::vector<double> residuals_of(const std::vector<double>& values) {
    std::vector<std::size_t> all(measured_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return predict(values, all, std::vector<double>(measured_.size(), 0.0));
  }

  // `known` but for those that parameter j has a part in.
  std::vector<double> residuals_with(const std::vector<double>& values,
                                     std::size_t j,
                                     const std::vector<double>& known) {
    const Parameter& parameter = parameters_[j];
    std::vector<std::size_t> changed;
    for (std::size_t i = 0; i < measured_.size(); ++i) {
      if (parameter.family.empty() ? measured_[i].stack == parameter.stack
                                   : measured_[i].family == parameter.family) {
        changed.push_back(i);
      }
    }
    return predict(values, changed, known);
  }

  // Those of `which` in place of the known ones, by all cores.
  std::vector<double> predict(const std::vector<double>& values,
                              const std::vector<std::size_t>& which,
                              std::vector<double> known) {
    apply(values);
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t i = next++; i < which.size(); i = next++) {
        const Measured& each = measured_[which[i]];
        known[which[i]] = std::log(each.predict(constants_) / each.seconds);
      }
    };
    std::vector<std::future<void>> workers;
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
      workers.push_back(std::async(std::launch::async, work));
    }
    for (std::future<void>& worker : workers) {
      worker.get();
    }
    return known;
  }

  // A host that is never late has no slope, so that its times are looked for by factors before
  // slopes are followed.
  std::vector<double> search_hosts(std::vector<double> values) {
    constexpr auto kFactors = std::to_array({0.25, 0.5, 2.0, 4.0, 8.0});
    std::vector<double> residuals = residuals_of(values);
    double least = loss(residuals, values, std::nullopt);
    for (std::size_t j = 0; j < values.size(); ++j) {
      const std::vector<double> from = values;
      for (const double factor : kFactors) {
        if (!parameters_[j].is_of_host) {
          break;
        }
        std::vector<double> moved = from;
        moved[j] += std::log(factor);
        std::vector<double> now = residuals_with(moved, j, residuals);
        const double loss_now = loss(now, moved, std::nullopt);
        if (loss_now < least) {
          least = loss_now;
          values = moved;
          residuals = std::move(now);
        }
      }
    }
    return values;
  }

  double weight(std::size_t i, double residual, std::optional<std::size_t> without) const {
    const Measured& each = measured_[i];
    return without == each.table
               ? 0.0
               : 1.0 / (sizes_[each.table] * std::max(std::abs(residual), kUsual));
  }

  double loss(const std::vector<double>& residuals,
              const std::vector<double>& values,
              std::optional<std::size_t> without) const {
    double sum = 0.0;
    for (std::size_t i = 0; i < residuals.size(); ++i) {
      // Squared where it is small, then straight (Huber 1964).
      const double size = std::abs(residuals[i]);
      const double unit = without == measured_[i].table ? 0.0 : 1.0 / sizes_[measured_[i].table];
      sum += unit * (size < kUsual ? size * size / (2.0 * kUsual) : size - kUsual / 2.0);
    }
    for (std::size_t j = 0; j < values.size(); ++j) {
      const double away = values[j] - std::log(parameters_[j].initial);
      sum += kPull / kUsual / 2.0 * away * away;
    }
    return sum;
  }

  PublishedDefaults defaults_;
  PublishedConstants constants_;
  PublishedSet set_;
  std::vector<PublishedTable> tables_;
  std::vector<std::string> names_;  // of tables of steps, then of kernels
  std::vector<double> sizes_;
  std::size_t num_step_tables_ = 0;
  std::vector<Measured> measured_;
  std::vector<Parameter> parameters_;
};

}  // namespace tessera
