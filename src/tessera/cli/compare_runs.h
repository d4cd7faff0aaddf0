#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/resolve/compare_run.h"

namespace tessera {

// Two run directories: whether their losses agree and from which step not, which keys of their
// configs differ, and the difference in time, by what their ranks did in the recorded `step`; none:
// in the last one that both have recorded, or else in the last one of each. Errors: kInvalidConfig
// where there is nothing to compare; those of the runs' files.
std::string compare_runs_text(const std::filesystem::path& a,
                              const std::filesystem::path& b,
                              std::optional<std::int64_t> step,
                              const CompareRows& rows);

}  // namespace tessera
