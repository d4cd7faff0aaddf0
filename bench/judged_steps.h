#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/median.h"

namespace tessera {

// A program, what is said of its step, in seconds, and what it took, by round.
struct JudgedStep {
  std::string what;
  double simulated = 0.0;
  std::vector<double> measured = {};

  double error() const { return simulated / median(measured) - 1.0; }

  bool counts() const {
    constexpr double kMostSpread = 0.02;
    return middle_spread(measured) <= kMostSpread;
  }
};

// Measures all programs in turn, several times over, by measure(index), and those whose own spread
// is above 2 % once more as often: what is then still above is listed as not judged.
inline void measure_in_rounds(std::span<JudgedStep> programs,
                              std::int64_t rounds,
                              const std::function<double(std::size_t)>& measure) {
  const auto run_rounds = [&](const std::vector<bool>& wanted) {
    for (std::int64_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < programs.size(); ++i) {
        if (wanted[i]) {
          programs[i].measured.push_back(measure(i));
        }
      }
    }
  };
  run_rounds(std::vector<bool>(programs.size(), true));
  std::vector<bool> again;
  for (const JudgedStep& each : programs) {
    again.push_back(!each.counts());
  }
  run_rounds(again);
}

inline void print_judged(std::span<const JudgedStep> programs, const char* target) {
  std::printf("  %-58s %9s %9s %9s %8s\n",
              "milliseconds of a step",
              "simulated",
              "measured",
              "error",
              "spread");
  double sum = 0.0;
  double largest = 0.0;
  std::size_t num_judged = 0;
  for (const JudgedStep& each : programs) {
    std::printf("  %-58s %9.1f %9.1f %+7.2f %% %6.2f %%%s\n",
                each.what.c_str(),
                each.simulated * 1e3,
                median(each.measured) * 1e3,
                each.error() * 100,
                middle_spread(each.measured) * 100,
                each.counts() ? "" : "  not judged");
    if (each.counts()) {
      sum += std::abs(each.error());
      largest = std::max(largest, std::abs(each.error()));
      ++num_judged;
    }
  }
  const std::size_t num_left_out = programs.size() - num_judged;
  constexpr std::size_t kMostLeftOut = 3;
  std::printf("%zu programs: mean %.2f %%, largest %.2f %% (target %s); %zu not judged%s\n",
              num_judged,
              100 * sum / static_cast<double>(std::max<std::size_t>(1, num_judged)),
              100 * largest,
              target,
              num_left_out,
              num_left_out > kMostLeftOut ? ": the machine is too noisy" : "");
}

}  // namespace tessera
