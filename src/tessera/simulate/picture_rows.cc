#include "tessera/simulate/picture_rows.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/format.h"
#include "tessera/base/text.h"

namespace tessera {

double PictureScale::pixel_of(std::int64_t at) const {
  return length == 0 ? 0.0
                     : static_cast<double>(at) / static_cast<double>(length) *
                           static_cast<double>(num_pixels());
}

void PixelRow::add(std::size_t look, std::int64_t begin, std::int64_t end) {
  const double last = std::min(scale_.pixel_of(end), static_cast<double>(shares_.size()));
  double at = scale_.pixel_of(begin);
  while (at < last) {
    const double pixel = std::floor(at);
    const double next = std::min(last, pixel + 1.0);
    shares_[static_cast<std::size_t>(pixel)].at(look) += next - at;
    at = next;
  }
}

std::string PixelRow::draw(std::span<const PictureLook> looks, std::size_t height) const {
  std::vector<std::string> paths(looks.size());
  for (std::size_t begin = 0; begin < shares_.size();) {
    const std::size_t look = look_of_pixel(begin);
    std::size_t end = begin + 1;
    while (end < shares_.size() && look_of_pixel(end) == look) {
      ++end;
    }
    if (look < looks.size()) {
      const std::size_t width = (end - begin) * scale_.width;
      paths[look] += format("M{} 0h{}v{}h-{}z", begin * scale_.width, width, height, width);
    }
    begin = end;
  }
  std::string svg;
  for (std::size_t look = 0; look < looks.size(); ++look) {
    if (!paths[look].empty()) {
      svg += format("<path fill=\"{}\" d=\"{}\"/>", looks[look].colour, paths[look]);
    }
  }
  return svg;
}

// kMostLooks where it is idle for longer.
std::size_t PixelRow::look_of_pixel(std::size_t pixel) const {
  const std::array<double, kMostLooks>& shares = shares_[pixel];
  const auto most = std::ranges::max_element(shares);
  double idle = 1.0;
  for (const double share : shares) {
    idle -= share;
  }
  return *most > idle ? static_cast<std::size_t>(most - shares.begin()) : kMostLooks;
}

std::string picture_text(double x, double y, std::string_view text) {
  return format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"currentColor\">{}</text>\n",
                x,
                y,
                escape_markup(printable(text)));
}

std::string picture_key(double& x, const PictureLook& look) {
  std::string svg =
      format("<rect x=\"{:.1f}\" y=\"2\" width=\"12\" height=\"10\" fill=\"{}\"/>", x, look.colour);
  svg += picture_text(x + 16.0, 11, look.name);
  x += 34.0 + kDigitWidth * static_cast<double>(look.name.size());
  return svg;
}

}  // namespace tessera
