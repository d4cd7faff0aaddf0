#include "tessera/base/units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/base/format.h"

namespace tessera {
namespace {

// Three significant digits, no exponent for values below 1000.
std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  const int decimals = magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2;
  return format("{:.{}f}", value, decimals);
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? format("{} B", bytes) : format("{} {}", three_digits(value), kUnits[unit]);
}

std::string format_count(double count) {
  constexpr std::array<std::string_view, 7> kUnits = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t unit = 0;
  while (std::abs(count) >= 1000.0 && unit + 1 < kUnits.size()) {
    count /= 1000.0;
    ++unit;
  }
  if (unit == 0 && count == std::floor(count)) {
    return format("{:.0f} ", count);
  }
  return format("{} {}", three_digits(count), kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 59.95) {
    return format("{:.1f} s", seconds);
  }
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  if (total < 3600) {
    return format("{}m{:02}s", total / 60, total % 60);
  }
  return format("{}h{:02}m", total / 3600, total / 60 % 60);
}

std::string format_grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3; i -= 3) {
    digits.insert(i - 3, ",");
  }
  return digits;
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const int substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace tessera
