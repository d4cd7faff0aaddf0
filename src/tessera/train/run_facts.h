#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/report/metrics_table.h"
#include "tessera/report/page.h"
#include "tessera/train/session_log.h"

namespace tessera {

// The facts of a run that stand on its report, a group each.

constexpr std::size_t kMaxListed = 6;  // of files, gaps and checkpoints

// "a, b, c and 4 more"
std::string listed(const std::vector<std::string>& names);

FactGroup model_facts(const RunConfig& config, const std::vector<Session>& sessions);
FactGroup layout_facts(const RunConfig& config);
FactGroup data_facts(const RunConfig& config);
FactGroup optimizer_facts(const RunConfig& config);
FactGroup session_facts(const std::vector<Session>& sessions);
FactGroup checkpoint_facts(const std::filesystem::path& run_dir);

// What a rank of each pipeline rank took and sent in the last step, and how long it waited in those
// of the last session, where that ended; nothing where there is one.
std::optional<FactGroup> pipeline_facts(const MetricsTable& metrics,
                                        const std::vector<Session>& sessions);

}  // namespace tessera
