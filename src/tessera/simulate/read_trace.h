#pragma once

#include <filesystem>
#include <string_view>

#include "tessera/simulate/trace.h"

namespace tessera {

// Whether a text begins as chrome_json() does.
bool is_trace(std::string_view text);

// The trace that chrome_json() has written as `text`, which it writes again, byte by byte. Programs
// with the same places are one. `name` is that of the file, for errors. Errors: kInvalidData naming
// file and line, what was found and what was expected: a text that others have written or changed,
// or that was cut; times of more than two hours, which JSON's numbers do not hold to the
// picosecond.
StepTrace parse_trace(std::string_view text, std::string_view name);

// The same of a file. Errors: as above and of read_file().
StepTrace load_trace(const std::filesystem::path& path);

// Adds what others did in the same step. Its times stay as they are, which count from when the
// first of its own ranks began.
void append_trace(StepTrace& trace, const StepTrace& others);

}  // namespace tessera
