#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/svg.h"

namespace tessera {

// What pictures of a step share: a chart in which it goes from left to right.

inline constexpr std::size_t kMostPictureBytes = 200'000;

// Of the image, in its own units: left of the chart are names.
inline constexpr std::size_t kNameWidth = 190;
inline constexpr std::size_t kChartWidth = 1200;
inline constexpr std::size_t kStripHeight = 12;  // of the row of actions

struct PictureLook {
  std::string_view name;
  std::string_view colour;
};

// Of actions, in their order.
inline constexpr std::array kActionLooks = {PictureLook{"start", "#6b7280"},
                                            PictureLook{"forward", kForwardColour},
                                            PictureLook{"backward", kBackwardColour},
                                            PictureLook{"weight gradients", kWeightGradientColour},
                                            PictureLook{"update", "#6b7280"}};

// Where what comes at `at` of `length` lies in the chart: a pixel is `width` wide, of which as many
// as fit are beside others.
struct PictureScale {
  std::int64_t length = 0;
  std::size_t width = 1;

  std::size_t num_pixels() const { return kChartWidth / width; }

  double pixel_of(std::int64_t at) const;

  double x_of(std::int64_t at) const { return pixel_of(at) * static_cast<double>(width); }
};

// A row of pixels, each of which looks like what most of its time goes by with.
class PixelRow {
 public:
  explicit PixelRow(const PictureScale& scale) : scale_(scale), shares_(scale.num_pixels()) {}

  void add(std::size_t look, std::int64_t begin, std::int64_t end);

  // A path for each look that there is.
  std::string draw(std::span<const PictureLook> looks, std::size_t height) const;

 private:
  static constexpr std::size_t kMostLooks = 6;

  std::size_t look_of_pixel(std::size_t pixel) const;

  PictureScale scale_;
  std::vector<std::array<double, kMostLooks>> shares_;
};

std::string picture_text(double x, double y, std::string_view text);

// A square of the colour and the name behind it, for a line of those; the width that they take is
// added to `x`.
std::string picture_key(double& x, const PictureLook& look);

}  // namespace tessera
