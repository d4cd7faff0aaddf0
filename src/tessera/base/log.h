#pragma once

#include <string_view>

namespace tessera {

// Human-readable lines on stderr; results go to stdout. Thread-safe.
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

}  // namespace tessera
