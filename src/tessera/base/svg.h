#pragma once

#include <string>
#include <string_view>

namespace tessera {

// What pictures of time share: SVG images with a row for each that does something.

// Of actions.
inline constexpr std::string_view kForwardColour = "#2f6fb5";
inline constexpr std::string_view kBackwardColour = "#1e7f5c";
inline constexpr std::string_view kInputGradientColour = "#3f9d5a";
inline constexpr std::string_view kWeightGradientColour = "#b9770e";

// Of text in an image.
inline constexpr double kDigitWidth = 7.0;

// The front of an image of that size in its own units; "</svg>\n" ends it.
std::string svg_begin(double width, double height);

// Text as XML and HTML have it.
std::string escape_markup(std::string_view text);

}  // namespace tessera
