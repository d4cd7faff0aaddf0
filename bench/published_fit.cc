// Fits the constants of chips and of software stacks to training steps and kernels that others
// published, all at once.
//
// usage: published_fit [--leave-out] [--sensitivity] [--random] DEFAULTS CLUSTERS STACKS MICRO
//        FILE.csv...
//
// DEFAULTS, CLUSTERS and STACKS are as of published_bench; MICRO is a directory of attention.csv,
// norms.csv and gemm_peaks.csv (curve_fit). Chips of a family (DEFAULTS) have one curve. What is
// made least is the sum of squared logarithms of predicted over measured times, each table counted
// once, with a weak pull towards the constants that the files have. The best products of many
// shapes are not fitted to: they say what short bursts reach. Prints the constants, and each
// table's score before and after. --leave-out: and when it is left out of the fit. --sensitivity:
// and the mean of all scores with each constant 10 % up and down. --random: and with constants
// drawn between half and twice of those that fit, which a table that asks for them does not
// survive.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/published_constants.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/print.h"

namespace tessera {
namespace {

struct Options {
  bool leave_out = false;
  bool sensitivity = false;
  bool random = false;
  std::vector<std::string> arguments;
};

void print_leave_out(Fit& fit, const Fit::Linear& linear) {
  print("\n# each table's mean error when it is left out of the fit\n");
  for (std::size_t i = 0; i < fit.num_tables(); ++i) {
    const std::vector<double> values = fit.linear_fit(linear, i);
    print(format("# {:<32} {:5.1f} %\n", fit.table(i), 100.0 * fit.errors(values)[i]));
  }
}

void print_random(Fit& fit, const std::vector<double>& values) {
  constexpr std::uint32_t kDraws = 5;
  std::vector<double> sums(fit.num_tables(), 0.0);
  for (std::uint32_t seed = 0; seed < kDraws; ++seed) {
    const std::vector<double> errors = fit.errors_of_random(values, seed);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += errors[i] / kDraws;
    }
  }
  print(format("\n# each table's mean error with constants at random, mean of {} draws\n", kDraws));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    print(format("# {:<32} {:5.1f} %\n", fit.table(i), 100.0 * sums[i]));
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
  Fit fit(options.arguments);
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
  if (options.random) {
    print_random(fit, fitted);
  }
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
    options.random = options.random || text == "--random";
    if (!text.starts_with("--")) {
      options.arguments.emplace_back(text);
    }
  }
  TESSERA_REQUIRE(options.arguments.size() >= 5,
                  ErrorCode::kInvalidArgument,
                  "usage: published_fit [--leave-out] [--sensitivity] [--random] DEFAULTS CLUSTERS "
                  "STACKS MICRO FILE.csv...");
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
