#include "tessera/base/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <system_error>
#include <utility>
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

// Divisors beside factors: both are exact, so that a quantity is rounded once.
struct Prefix {
  std::string_view name;
  double factor = 1;
  double divisor = 1;
};

constexpr std::array<Prefix, 15> kPrefixes = {{{"", 1, 1},
                                               {"n", 1, 1e9},
                                               {"u", 1, 1e6},
                                               {"m", 1, 1e3},
                                               {"k", 1e3, 1},
                                               {"M", 1e6, 1},
                                               {"G", 1e9, 1},
                                               {"T", 1e12, 1},
                                               {"P", 1e15, 1},
                                               {"E", 1e18, 1},
                                               {"Ki", 1024.0, 1},
                                               {"Mi", 1048576.0, 1},
                                               {"Gi", 1073741824.0, 1},
                                               {"Ti", 1099511627776.0, 1},
                                               {"Pi", 1125899906842624.0, 1}}};

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

std::string format_plural(std::int64_t count, std::string_view word) {
  return format("{} {}{}", format_grouped(count), word, count == 1 ? "" : "s");
}

std::optional<double> parse_quantity(std::string_view text, std::string_view unit) {
  double number = 0;
  const char* begin = text.data();
  const char* end_of_text = begin + text.size();
  const auto [end, error] = std::from_chars(begin, end_of_text, number);
  if (error != std::errc{} || !std::isfinite(number)) {
    return std::nullopt;
  }
  std::string_view rest(end, static_cast<std::size_t>(end_of_text - end));
  if (rest.starts_with(' ')) {
    rest.remove_prefix(1);
  }
  if (!rest.ends_with(unit)) {
    return std::nullopt;
  }
  rest.remove_suffix(unit.size());
  const auto prefix = std::ranges::find(kPrefixes, rest, &Prefix::name);
  if (prefix == kPrefixes.end()) {
    return std::nullopt;
  }
  return number * prefix->factor / prefix->divisor;
}

std::optional<std::string> format_quantity(double value, std::string_view unit) {
  std::optional<std::string> best;
  std::pair<bool, std::size_t> best_rank;
  for (const Prefix& prefix : kPrefixes) {
    const double number = value * prefix.divisor / prefix.factor;
    std::string text = format("{} {}{}", number, prefix.name, unit);
    const bool unusual = std::abs(number) < 1 || std::abs(number) >= 1000;
    const std::pair rank = {unusual, text.size()};
    if (parse_quantity(text, unit) == value && (!best || rank < best_rank)) {
      best = std::move(text);
      best_rank = rank;
    }
  }
  return best;
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

std::string did_you_mean(std::string_view found, std::span<const std::string> candidates) {
  const auto distance = [&](const std::string& candidate) {
    return edit_distance(found, candidate);
  };
  const auto nearest = std::ranges::min_element(candidates, {}, distance);
  const int allowed = std::max(2, static_cast<int>(found.size()) / 3);
  if (nearest == candidates.end() || distance(*nearest) > allowed) {
    return "";
  }
  return format("; did you mean \"{}\"?", *nearest);
}

}  // namespace tessera
