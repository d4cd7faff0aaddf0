#pragma once

#include <array>
#include <span>
#include <string>

#include "tessera/base/format.h"

namespace tessera {

// A constant that is fitted, and the most that it may be.
struct Constant {
  double* value = nullptr;
  double most = 1.0;
};

// Moves each constant up and down by ever smaller factors as long as error() falls, which depends
// on them. Then it rounds them to three digits.
template <class Error>
void descend(std::span<const Constant> constants, const Error& error) {
  constexpr std::array kFactors = {
      1.3, 1.1, 1.03, 1.01, 1.003, 1.001, 1.0003, 1.0001, 1.00003, 1.00001};
  double least = error();
  const auto move = [&](const Constant& constant, double factor) {
    const double before = *constant.value;
    *constant.value = before * factor;
    if (*constant.value <= constant.most) {
      const double now = error();
      if (now < least) {
        least = now;
        return true;
      }
    }
    *constant.value = before;
    return false;
  };
  for (const double factor : kFactors) {
    for (bool moved = true; moved;) {
      moved = false;
      for (const Constant& constant : constants) {
        moved = move(constant, factor) || move(constant, 1.0 / factor) || moved;
      }
    }
  }
  for (const Constant& constant : constants) {
    *constant.value = std::stod(format("{:.3g}", *constant.value));
  }
}

}  // namespace tessera
