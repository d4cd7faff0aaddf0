#pragma once

#include <cstdint>
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

// Levenshtein distance, for "did you mean".
int edit_distance(std::string_view a, std::string_view b);

}  // namespace tessera
