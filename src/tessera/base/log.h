#pragma once

#include <string_view>

namespace tessera {

// Human-readable lines on stderr; results go to stdout. Thread-safe.
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

// From now on this process says nothing but warnings and errors: another one speaks for all.
void silence_info();
bool is_info_silenced();

// Nor errors: another one has said why this process ends.
void silence_errors();

}  // namespace tessera
