#pragma once

#include <compare>
#include <cstdint>
#include <optional>
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

// A one-way connection along axes: the places of its ends, of which the innermost axis is the
// fastest digit, and a number that tells those of the same ends apart.
struct ChannelPlaces {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t number = 0;

  friend auto operator<=>(const ChannelPlaces&, const ChannelPlaces&) = default;
};

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

// The name of the outermost axis on which the two ends differ: the slowest that is between them.
std::string_view crossed_axis(const AxisSizes& axes, const ChannelPlaces& places);

bool contains(const AxisSizes& axes, const AxisSize& axis);
bool contains_all(const AxisSizes& axes, const AxisSizes& others);

// Those of `finer` after the first, where it begins with `axes`; none where it does not.
std::optional<AxisSizes> axes_beyond(const AxisSizes& axes, const AxisSizes& finer);

// Product of the sizes.
std::int64_t num_ranks(const AxisSizes& axes);

}  // namespace tessera
