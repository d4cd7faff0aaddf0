// Fits the constants of chips and of software stacks to training steps and kernels that others
// published, all at once.
//
// usage: published_fit [--leave-out] [--sensitivity] DEFAULTS CLUSTERS STACKS MICRO FILE.csv...
//
// DEFAULTS, CLUSTERS and STACKS are as of published_bench; MICRO is a directory of attention.csv,
// norms.csv and gemm_peaks.csv (curve_fit). Chips of a family (DEFAULTS) have one curve. What is
// made least is the sum of squared logarithms of predicted over measured times, each table counted
// once, with a weak pull towards the constants that the files have. The best products of many
// shapes are not fitted to: they say what short bursts reach. Prints the constants, and each
// table's score before and after. --leave-out: and when it is left out of the fit. --sensitivity:
// and the mean of all scores with each constant 10 % up and down.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/gauss_newton.h"
#include "bench/kernel_points.h"
#include "bench/published_tables.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/print.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/device_time.h"

namespace tessera {
namespace {

// A constant that is fitted: at most `most`.
struct Parameter {
  std::string name;
  std::string family;  // of chips; empty: of
  std::string stack;
  double most = 1.0;
  double initial = 0.0;
  std::function<void(PublishedConstants&, double)> set;
};

// A time that was measured, of a row or of a kernel.
struct Measured {
  std::size_t table = 0;
  std::string family;
  std::string stack;
  double seconds = 0.0;
  std::function<double(const PublishedConstants&)> predict;
};

struct Options {
  bool leave_out = false;
  bool sensitivity = false;
  std::vector<std::string> arguments;
};

// A number of a curve.
using CurveMember = double& (*)(DeviceCurve&);

struct CurveConstant {
  std::string_view name;
  double most;
  CurveMember of;
};

constexpr double kNoMost = 1e9;

// The others keep what the files have: steps hardly tell them.
constexpr auto kCurve = std::to_array<CurveConstant>({
    {"matmul.bf16", 1.0, [](DeviceCurve& c) -> double& { return c.matmul.bf16; }},
    {"matmul.f8", 1.0, [](DeviceCurve& c) -> double& { return c.matmul.f8; }},
    {"stream", 1.0, [](DeviceCurve& c) -> double& { return c.stream; }},
    {"attention.forward", 1.0, [](DeviceCurve& c) -> double& { return c.attention.forward; }},
    {"attention.backward", 1.5, [](DeviceCurve& c) -> double& { return c.attention.backward; }},
});

class Fit {
 public:
  explicit Fit(const Options& options)
      : defaults_(options.arguments[0]),
        constants_(PublishedConstants::load(options.arguments[1], options.arguments[2])) {
    for (auto& [file, cluster] : constants_.clusters) {
      DeviceCurve curve = cluster.device.curve.value_or(kUsualCurve);
      curve.matmul.f8 = cluster.device.peak_flops.f8 > 0.0 ? curve.matmul.f8 : 0.0;
      cluster.device.curve = curve;
    }
    for (std::size_t i = 4; i < options.arguments.size(); ++i) {
      add_table(options.arguments[i]);
    }
    for (const ChipFamily& family : defaults_.families()) {
      add_kernels(family, options.arguments[3]);
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
      apply(moved);
      for (std::size_t i = 0; i < measured_.size(); ++i) {
        const Measured& each = measured_[i];
        const Parameter& parameter = parameters_[j];
        if (parameter.family.empty() ? each.stack == parameter.stack
                                     : each.family == parameter.family) {
          const double now = std::log(each.predict(constants_) / each.seconds);
          linear.jacobian[i][j] = (linear.residuals[i] - now) / kMove;
        }
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
    parameters_.push_back({.name = stack.name + " issue",
                           .family = "",
                           .stack = stack.name,
                           .most = kNoMost,
                           .initial = stack.issue,
                           .set = [name = stack.name](PublishedConstants& all, double now) {
                             all.stacks.at(name).issue = now;
                           }});
  }

  void apply(const std::vector<double>& values) {
    for (std::size_t j = 0; j < parameters_.size(); ++j) {
      parameters_[j].set(constants_, std::exp(values[j]));
    }
  }

  std::vector<double> residuals_of(const std::vector<double>& values) {
    apply(values);
    std::vector<double> residuals;
    for (const Measured& each : measured_) {
      residuals.push_back(std::log(each.predict(constants_) / each.seconds));
    }
    return residuals;
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

void print_leave_out(Fit& fit, const Fit::Linear& linear) {
  print("\n# each table's mean error when it is left out of the fit\n");
  for (std::size_t i = 0; i < fit.num_tables(); ++i) {
    const std::vector<double> values = fit.linear_fit(linear, i);
    print(format("# {:<32} {:5.1f} %\n", fit.table(i), 100.0 * fit.errors(values)[i]));
  }
}

void print_sensitivity(const Fit& fit, const Fit::Linear& linear) {
  const auto mean = [&](const std::vector<double>& values) {
    return 100.0 * fit.mean_of_steps(fit.errors_of(linear.at(values)));
  };
  print(format(
      "\n# mean of the tables of steps, {:.2f} %, with a constant 10 % down and up, to first "
      "order\n",
      mean(linear.values)));
  for (std::size_t j = 0; j < linear.values.size(); ++j) {
    std::array<double, 2> errors = {};
    for (std::size_t side = 0; side < 2; ++side) {
      std::vector<double> moved = linear.values;
      moved[j] += std::log(side == 0 ? 0.9 : 1.1);
      errors[side] = mean(moved);
    }
    print(format("# {:<32} {:6.2f} % {:6.2f} %\n", fit.parameters()[j].name, errors[0], errors[1]));
  }
}

void run(const Options& options) {
  constexpr int kIterations = 4;
  Fit fit(options);
  const std::vector<double> before = fit.initial();
  const std::vector<double> first = fit.errors(before);
  const std::vector<double> fitted = fit.fit(before, kIterations);
  const std::vector<double> last = fit.errors(fitted);
  print(format("# {} constants; mean error of each table before and after\n",
               fit.parameters().size()));
  for (std::size_t i = 0; i < fit.num_tables(); ++i) {
    print(
        format("# {:<32} {:5.1f} % {:5.1f} %\n", fit.table(i), 100.0 * first[i], 100.0 * last[i]));
  }
  print("\n" + fit.text(fitted));
  if (!options.leave_out && !options.sensitivity) {
    return;
  }
  const Fit::Linear linear = fit.linearize(fitted);
  if (options.leave_out) {
    print_leave_out(fit, linear);
  }
  if (options.sensitivity) {
    print_sensitivity(fit, linear);
  }
}

Options parse(std::span<char* const> arguments) {
  Options options;
  for (const char* const argument : arguments) {
    const std::string_view text = argument;
    options.leave_out = options.leave_out || text == "--leave-out";
    options.sensitivity = options.sensitivity || text == "--sensitivity";
    if (!text.starts_with("--")) {
      options.arguments.emplace_back(text);
    }
  }
  TESSERA_REQUIRE(options.arguments.size() >= 5,
                  ErrorCode::kInvalidArgument,
                  "usage: published_fit [--leave-out] [--sensitivity] DEFAULTS CLUSTERS STACKS "
                  "MICRO FILE.csv...");
  return options;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  tessera::run(tessera::parse(std::span(argv, static_cast<std::size_t>(argc)).subspan(1)));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
