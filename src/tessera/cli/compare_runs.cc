#include "tessera/cli/compare_runs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/median.h"
#include "tessera/base/units.h"
#include "tessera/cli/run_directory_files.h"
#include "tessera/config/config.h"
#include "tessera/resolve/changed_keys.h"
#include "tessera/train/run_record.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The lines of the same step, in A and in B.
using LinePairs = std::vector<std::pair<std::size_t, std::size_t>>;

struct ComparedRun {
  ComparedRun(const fs::path& directory, BrokenLines broken)
      : path(directory), metrics(metrics_of(directory, broken)) {}

  // A run that has ended no step has none.
  static MetricsTable metrics_of(const fs::path& directory, BrokenLines broken) {
    std::error_code error;
    const fs::path file = metrics_file(directory);
    return fs::exists(file, error) ? read_metrics(file, broken) : MetricsTable();
  }

  // "steps 1 to 20".
  std::string steps_text() const {
    return metrics.steps.empty()
               ? "no step"
               : format("steps {} to {}", metrics.steps.front(), metrics.steps.back());
  }

  RunConfig config() const {
    const fs::path file = path / "config.toml";
    return parse_run_config(read_file(file), file.string());
  }

  fs::path path;
  MetricsTable metrics;
};

LinePairs common_steps(const ComparedRun& a, const ComparedRun& b) {
  LinePairs pairs;
  std::size_t j = 0;
  for (std::size_t i = 0; i < a.metrics.steps.size(); ++i) {
    while (j < b.metrics.steps.size() && b.metrics.steps[j] < a.metrics.steps[i]) {
      ++j;
    }
    if (j < b.metrics.steps.size() && b.metrics.steps[j] == a.metrics.steps[i]) {
      pairs.emplace_back(i, j);
    }
  }
  return pairs;
}

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// With all digits.
std::string loss_text(double loss) {
  return std::isfinite(loss) ? format("{}", loss) : "not finite";
}

std::string losses_text(const ComparedRun& a, const ComparedRun& b, const LinePairs& pairs) {
  if (pairs.empty()) {
    return format(
        "losses: no step is in both, A has {} and B {}\n", a.steps_text(), b.steps_text());
  }
  const std::span<const double> loss_a = a.metrics.column("loss");
  const std::span<const double> loss_b = b.metrics.column("loss");
  const auto differs = std::ranges::find_if(
      pairs, [&](const auto& pair) { return !same_bits(loss_a[pair.first], loss_b[pair.second]); });
  const auto first = static_cast<std::int64_t>(a.metrics.steps[pairs.front().first]);
  if (differs == pairs.end()) {
    return format("losses: agree, bit by bit, in all {} that both have ({} to {})\n",
                  format_plural(std::ssize(pairs), "step"),
                  first,
                  a.metrics.steps[pairs.back().first]);
  }
  const double of_a = loss_a[differs->first];
  const double of_b = loss_b[differs->second];
  return format("losses: differ from step {} on: {} in A, {} in B{}; {}\n",
                a.metrics.steps[differs->first],
                loss_text(of_a),
                loss_text(of_b),
                std::isfinite(of_a - of_b) ? format(", {:.2g} apart", std::abs(of_a - of_b)) : "",
                differs == pairs.begin() ? "it is the first that both have"
                                         : format("before that they agree, bit by bit, in {}",
                                                  format_plural(differs - pairs.begin(), "step")));
}

std::string configs_text(const ComparedRun& a, const ComparedRun& b) {
  std::vector<ChangedKey> keys = differing_keys(a.config(), b.config());
  std::erase_if(keys, [](const ChangedKey& key) { return key.key == "run.dir"; });
  std::string text = keys.empty() ? "config: the same\n"
                                  : format("config: {} of another value\n",
                                           format_plural(std::ssize(keys), "key"));
  for (const ChangedKey& key : keys) {
    text += format("  {}: {} in A, {} in B\n", key.key, key.before, key.now);
  }
  return text;
}

std::string times_text(const ComparedRun& a, const ComparedRun& b, const LinePairs& pairs) {
  std::vector<double> of_a;
  std::vector<double> of_b;
  for (const auto& [i, j] : pairs) {
    of_a.push_back(a.metrics.column("step_seconds")[i]);
    of_b.push_back(b.metrics.column("step_seconds")[j]);
  }
  if (pairs.empty()) {
    return "";
  }
  const double median_a = median(std::move(of_a));
  const double median_b = median(std::move(of_b));
  return format("time: {:.4g} s a step in A, {:.4g} s in B, medians of these {}: B takes {}\n",
                median_a,
                median_b,
                format_plural(std::ssize(pairs), "step"),
                percent_text(median_a, median_b));
}

// The last that both have recorded, or else the last of each.
std::pair<std::int64_t, std::int64_t> steps_to_compare(const TraceFiles& a, const TraceFiles& b) {
  for (auto step = a.rbegin(); step != a.rend(); ++step) {
    if (b.contains(step->first)) {
      return {step->first, step->first};
    }
  }
  return {a.rbegin()->first, b.rbegin()->first};
}

}  // namespace

std::string compare_runs_text(const fs::path& a,
                              const fs::path& b,
                              const CompareRunsOptions& options,
                              const CompareRows& rows) {
  const std::optional<std::int64_t>& step = options.step;
  const ComparedRun run_a(a, options.broken);
  const ComparedRun run_b(b, options.broken);
  const LinePairs pairs = common_steps(run_a, run_b);
  const TraceFiles traces_a = trace_files(a);
  const TraceFiles traces_b = trace_files(b);
  const bool has_traces = !traces_a.empty() && !traces_b.empty();
  TESSERA_REQUIRE(!pairs.empty() || has_traces,
                  ErrorCode::kInvalidConfig,
                  "{} and {} have nothing to compare: the first has {}, the second {}, and not "
                  "both have a trace",
                  a.string(),
                  b.string(),
                  run_a.steps_text(),
                  run_b.steps_text());
  std::string text = losses_text(run_a, run_b, pairs) + configs_text(run_a, run_b) +
                     times_text(run_a, run_b, pairs);
  if (!has_traces && !step) {
    return text + format(
                      "  what makes the difference is not known: {} has no trace of a step "
                      "(tessera train --trace-step=N records one)\n",
                      traces_a.empty() ? "A" : "B");
  }
  const auto [step_a, step_b] =
      step ? std::pair(*step, *step) : steps_to_compare(traces_a, traces_b);
  const RecordedStep recorded_a = recorded_step(a, step_a);
  const RecordedStep recorded_b = recorded_step(b, step_b);
  return text +
         format("\ntraces: step {} of A ({}), step {} of B ({})\n",
                step_a,
                recorded_a.sources.front(),
                step_b,
                recorded_b.sources.front()) +
         compare_traces_text(recorded_a.trace, recorded_b.trace, rows);
}

}  // namespace tessera
