#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tessera/report/metrics_table.h"
#include "tessera/resolve/compare_run.h"

namespace tessera {

struct CompareRunsOptions {
  std::optional<std::int64_t> step = {};  // none: the last one recorded that both have, or else the
                                          // last one of each
  BrokenLines broken = BrokenLines::kRefuse;
};

// Two run directories: whether their losses agree and from which step not, which keys of their
// configs differ, and the difference in time, by what their ranks did in a recorded step. Errors:
// kInvalidConfig where there is nothing to compare; those of the runs' files.
std::string compare_runs_text(const std::filesystem::path& a,
                              const std::filesystem::path& b,
                              const CompareRunsOptions& options,
                              const CompareRows& rows);

}  // namespace tessera
