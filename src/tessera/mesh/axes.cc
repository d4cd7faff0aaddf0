#include "tessera/mesh/axes.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"

namespace tessera {

std::string to_string(const AxisSizes& axes) {
  std::string text;
  for (const AxisSize& axis : axes) {
    text += format("{}{}={}", text.empty() ? "" : " ", axis.name, axis.size);
  }
  return text;
}

AxisSize parse_axis(TextScanner& scanner) {
  AxisSize axis{.name = scanner.word(), .size = 1};
  scanner.expect("=");
  axis.size = scanner.integer();
  TESSERA_REQUIRE(axis.size > 0,
                  ErrorCode::kInvalidArgument,
                  "axis {} has {} ranks, expected at least 1",
                  axis.name,
                  axis.size);
  return axis;
}

AxisSizes parse_axes(std::string_view text) {
  return with_context([&] { return format("in the axes \"{}\"", text); },
                      [&] {
                        AxisSizes axes;
                        TextScanner scanner(text);
                        while (!scanner.at_end()) {
                          axes.push_back(parse_axis(scanner));
                        }
                        return axes;
                      });
}

bool contains(const AxisSizes& axes, const AxisSize& axis) {
  return std::ranges::find(axes, axis) != axes.end();
}

bool contains_all(const AxisSizes& axes, const AxisSizes& others) {
  return std::ranges::all_of(others, [&](const AxisSize& axis) { return contains(axes, axis); });
}

std::optional<AxisSizes> axes_beyond(const AxisSizes& axes, const AxisSizes& finer) {
  const auto [end, rest] = std::ranges::mismatch(axes, finer);
  return end == axes.end() ? std::optional(AxisSizes(rest, finer.end())) : std::nullopt;
}

std::int64_t num_ranks(const AxisSizes& axes) {
  std::int64_t product = 1;
  for (const AxisSize& axis : axes) {
    product *= axis.size;
  }
  return product;
}

std::string_view crossed_axis(const AxisSizes& axes, const ChannelPlaces& places) {
  std::string_view crossed;
  std::int64_t from = places.from;
  std::int64_t to = places.to;
  for (const AxisSize& axis : axes) {
    crossed = from % axis.size != to % axis.size ? axis.name : crossed;
    from /= axis.size;
    to /= axis.size;
  }
  return crossed;
}

}  // namespace tessera
