#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// One field of metrics.jsonl over the steps.
struct MetricsColumn {
  // As in the file; "comm_bytes/<level>": all classes of traffic; "pipeline_ranks/<place>/..":
  // memory_bytes, and comm_bytes on all levels.
  std::string name;
  std::vector<double> values;  // a step each; NaN: not finite, or not there
};

// metrics.jsonl as columns.
struct MetricsTable {
  std::vector<std::int64_t> steps;  // rising
  // loss, grad_norm, ..., then validation_loss and traffic by level, where a line has them.
  std::vector<MetricsColumn> columns;
  std::vector<std::string> skipped;  // what is wrong with lines that were left out, the first few
  std::int64_t num_skipped = 0;

  // The values of a field; empty where no line has it.
  std::span<const double> column(std::string_view name) const;
};

// What to do with a line that is not ours: refuse the file, or leave the line out and count it.
enum class BrokenLines { kRefuse, kSkip };

// Reads a file of MetricsWriter. A last line without its end, as a run under way or a kill leaves
// it, is passed over. Errors: kInvalidData naming file and line, found and expected: a line that is
// no JSON object with the fields and types of metrics.jsonl, or whose step is not above the one
// before it; or naming the file where it cannot be read.
MetricsTable read_metrics(const std::filesystem::path& path,
                          BrokenLines broken = BrokenLines::kRefuse);

}  // namespace tessera
