#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// "1.50 GiB", "512 B": binary units, three significant digits.
std::string format_bytes(std::int64_t bytes);

// "1.23 G", "45.0 k": decimal units without the unit's own name, three significant digits.
std::string format_count(double count);

// "1.2 s", "3m05s", "2h07m".
std::string format_duration(double seconds);

// 1234567 -> "1,234,567".
std::string format_grouped(std::int64_t value);

// (1, "step") -> "1 step", (1234, "step") -> "1,234 steps".
std::string format_plural(std::int64_t count, std::string_view word);

// The number that text such as "200 GB/s", "64 GiB" or "2us" stands for, in `unit` ("B/s", "B",
// "s"): a decimal number, an optional space, a decimal prefix (n, u, m, k, M, G, T, P, E), a binary
// one (Ki, Mi, Gi, Ti, Pi) or none, and the unit. Nothing for other text.
std::optional<double> parse_quantity(std::string_view text, std::string_view unit);

// Text that parse_quantity() reads back to the same value, the shortest with a number from 1 to
// below 1000 where there is one: "12.5 GB/s", "0 s". Nothing for infinities and NaN.
std::optional<std::string> format_quantity(double value, std::string_view unit);

// Levenshtein distance, for "did you mean".
int edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `found`, as the tail of a message: `; did you mean "seed"?`. Empty when
// none is near.
std::string did_you_mean(std::string_view found, std::span<const std::string> candidates);

}  // namespace tessera
