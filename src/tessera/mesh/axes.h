#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A mesh axis as collectives name it: with its size, so that an instruction says all about itself.
struct AxisSize {
  std::string name;
  std::int64_t size = 1;

  friend auto operator<=>(const AxisSize&, const AxisSize&) = default;
};

using AxisSizes = std::vector<AxisSize>;  // innermost first

// "data.pair=2 data.node=4"; "" for none.
std::string to_string(const AxisSizes& axes);

class TextScanner;

// The next "name=size". Errors: kInvalidArgument with the place.
AxisSize parse_axis(TextScanner& scanner);

// Errors: kInvalidArgument quoting the text.
AxisSizes parse_axes(std::string_view text);

inline void parse_text(std::string_view text, AxisSizes& axes) {
  axes = parse_axes(text);
}

bool contains(const AxisSizes& axes, const AxisSize& axis);
bool contains_all(const AxisSizes& axes, const AxisSizes& others);

// Product of the sizes.
std::int64_t num_ranks(const AxisSizes& axes);

}  // namespace tessera
