#include "tessera/train/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/median.h"
#include "tessera/base/print.h"
#include "tessera/base/units.h"
#include "tessera/config/config.h"
#include "tessera/launch/exit_record.h"
#include "tessera/train/run_facts.h"
#include "tessera/train/run_record.h"
#include "tessera/train/session_log.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// ---- how it ended ----

struct ExitRecord {
  std::int64_t rank = 0;
  std::string text;
};

std::vector<ExitRecord> read_exit_records(const fs::path& run_dir) {
  std::vector<ExitRecord> records;
  for (const fs::path& path : exit_records(run_dir)) {
    try {
      const auto json = nlohmann::json::parse(read_file(path));
      const std::int64_t rank = json.at("rank");
      const std::string step = json.contains("step")
                                   ? format(" after step {}", json.at("step").get<std::int64_t>())
                                   : "";
      records.push_back({.rank = rank,
                         .text = format("rank {} failed{} with exit code {} ({}): {}",
                                        rank,
                                        step,
                                        json.at("exit_code").get<int>(),
                                        json.at("error").get<std::string>(),
                                        json.at("message").get<std::string>())});
    } catch (const nlohmann::json::exception&) {
      records.push_back({.rank = 0, .text = format("{} cannot be read", path.string())});
    }
  }
  std::ranges::sort(records, {}, &ExitRecord::rank);
  return records;
}

Notice how_it_ended(const fs::path& run_dir,
                    const std::vector<ExitRecord>& failures,
                    const std::vector<Session>& sessions) {
  if (FileLock::is_held(run_dir / "lock")) {
    return {.tone = Tone::kGood, .text = "Training now"};
  }
  if (!failures.empty()) {
    return {.tone = Tone::kBad,
            .text = format("Failed: {}", format_plural(std::ssize(failures), "rank"))};
  }
  if (sessions.empty()) {
    return {.tone = Tone::kWarning, .text = "Not known how it ended"};
  }
  const std::optional<SessionEnd>& end = sessions.back().end;
  if (!end) {
    return {.tone = Tone::kBad, .text = "Ended without a word: killed, or the machine stopped"};
  }
  return end->stopped ? Notice{.tone = Tone::kWarning,
                               .text = format("Stopped after step {}", format_grouped(end->step))}
                      : Notice{.tone = Tone::kGood,
                               .text = format("Finished after step {}", format_grouped(end->step))};
}

// ---- notices ----

// Steps without a line: the file starts late, or has holes.
std::vector<std::string> gaps(std::span<const std::int64_t> steps) {
  std::vector<std::string> found;
  std::int64_t before = 0;
  for (const std::int64_t step : steps) {
    if (step == before + 2) {
      found.push_back(format("{}", before + 1));
    } else if (step > before + 2) {
      found.push_back(format("{} to {}", before + 1, step - 1));
    }
    before = step;
  }
  return found;
}

void add_notices(const MetricsTable& metrics,
                 const std::vector<ExitRecord>& failures,
                 std::vector<Notice>& notices) {
  for (std::size_t i = 0; i < std::min(failures.size(), kMaxListed); ++i) {
    notices.push_back({.tone = Tone::kBad, .text = failures[i].text});
  }
  if (metrics.num_skipped > 0) {
    notices.push_back({.text = format("{} of metrics.jsonl left out:",
                                      format_plural(metrics.num_skipped, "broken line"))});
    for (const std::string& problem : metrics.skipped) {
      notices.back().text += "\n" + problem;
    }
  }
  if (metrics.steps.empty()) {
    notices.push_back({.text = "No step has ended yet: there are no curves."});
  }
  if (const auto missing = gaps(metrics.steps); !missing.empty()) {
    notices.push_back({.text = format("metrics.jsonl has no lines of steps {}.", listed(missing))});
  }
  const std::span<const double> loss = metrics.column("loss");
  const std::span<const double> norm = metrics.column("grad_norm");
  std::vector<std::string> steps;
  for (std::size_t i = 0; i < metrics.steps.size(); ++i) {
    if (!std::isfinite(loss[i]) || !std::isfinite(norm[i])) {
      steps.push_back(format_grouped(metrics.steps[i]));
    }
  }
  if (!steps.empty()) {
    notices.push_back({.text = format("Loss or gradient norm not finite at {} {}: not applied.",
                                      steps.size() == 1 ? "step" : "steps",
                                      listed(steps))});
  }
}

// ---- the numbers at the top ----

std::vector<double> finite(std::span<const double> values) {
  std::vector<double> result;
  std::ranges::copy_if(
      values, std::back_inserter(result), [](double value) { return std::isfinite(value); });
  return result;
}

// The place of the lowest finite value.
std::optional<std::size_t> lowest(std::span<const double> values) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i]) && (!best || values[i] < values[*best])) {
      best = i;
    }
  }
  return best;
}

void add_loss_tiles(const MetricsTable& metrics, std::vector<Tile>& tiles) {
  const std::span<const double> loss = metrics.column("loss");
  const auto add = [&](const char* label, double value, std::size_t place) {
    tiles.push_back({.label = label,
                     .value = format("{:.4f}", value),
                     .detail = format("step {}", format_grouped(metrics.steps[place]))});
  };
  if (const auto best = lowest(loss)) {
    std::size_t last = loss.size() - 1;
    while (!std::isfinite(loss[last])) {
      --last;
    }
    add("Last loss", loss[last], last);
    add("Lowest loss", loss[*best], *best);
  }
  const std::span<const double> validation = metrics.column("validation_loss");
  if (const auto best = lowest(validation)) {
    add("Lowest validation loss", validation[*best], *best);
  }
}

// ", predicted 1.2 s (constants of ..)"; "" where the last session predicted nothing.
std::string predicted_text(const std::vector<Session>& sessions) {
  if (sessions.empty() || !sessions.back().start.predicted_step) {
    return "";
  }
  const SessionStart& start = sessions.back().start;
  return format(", predicted {:.4g} s{}",
                *start.predicted_step,
                start.constants.empty() ? "" : format(" ({})", start.constants));
}

std::vector<Tile> make_tiles(const MetricsTable& metrics,
                             const std::optional<RunConfig>& config,
                             const std::string& predicted) {
  std::vector<Tile> tiles;
  add_loss_tiles(metrics, tiles);
  if (metrics.steps.empty()) {
    return tiles;
  }
  tiles.push_back({.label = "Steps",
                   .value = format_grouped(metrics.steps.back()),
                   .detail = config ? format("of {}", format_grouped(config->train.steps)) : ""});
  if (const auto tokens = finite(metrics.column("tokens")); !tokens.empty()) {
    tiles.push_back({.label = "Tokens",
                     .value = format_count(tokens.back()),
                     .detail = format_grouped(std::llround(tokens.back()))});
  }
  if (const auto rates = finite(metrics.column("tokens_per_second")); !rates.empty()) {
    tiles.push_back({.label = "Tokens a second",
                     .value = format_grouped(std::llround(median(rates))),
                     .detail = "median of all steps"});
  }
  if (const auto seconds = finite(metrics.column("step_seconds")); !seconds.empty()) {
    tiles.push_back({.label = "Time in steps",
                     .value = format_duration(std::accumulate(seconds.begin(), seconds.end(), 0.0)),
                     .detail = format("{} a step{}", format_duration(median(seconds)), predicted)});
  }
  if (const auto memory = finite(metrics.column("memory_bytes")); !memory.empty()) {
    tiles.push_back({.label = "Memory of a rank",
                     .value = format_bytes(std::llround(std::ranges::max(memory))),
                     .detail = "its arena"});
  }
  return tiles;
}

std::string subtitle(const std::optional<RunConfig>& config, const std::vector<Session>& sessions) {
  if (!config) {
    return "";
  }
  const ModelSection& model = config->model;
  std::string text = model.flavor.empty() ? model.name : model.name + " " + model.flavor;
  if (!sessions.empty()) {
    text += format(", {} parameters",
                   format_count(static_cast<double>(sessions.back().start.parameters)));
  }
  return text + format(" · {} on {}",
                       name(config->train.dtype),
                       format_plural(config->parallel.ranks.value_or(1), "rank"));
}

// The directory's own name, also of "." and "runs/a/".
std::string run_name(const fs::path& run_dir) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(run_dir, error);
  const std::string name = place.filename().empty() ? place.parent_path().filename().string()
                                                    : place.filename().string();
  return name.empty() ? run_dir.string() : name;
}

// Where the curves of one session end and those of the next begin.
std::vector<std::int64_t> resumes(const std::vector<Session>& sessions) {
  std::vector<std::int64_t> steps;
  for (const Session& session : sessions) {
    // A session that goes on from an earlier step takes the place of later ones.
    while (!steps.empty() && steps.back() >= session.start.step) {
      steps.pop_back();
    }
    if (session.start.step > 0) {
      steps.push_back(session.start.step);
    }
  }
  return steps;
}

}  // namespace

ReportPage describe_run(const fs::path& run_dir, const MetricsTable& metrics) {
  const std::vector<Session> sessions = read_sessions(run_dir);
  const std::vector<ExitRecord> failures = read_exit_records(run_dir);
  ReportPage page{.title = run_name(run_dir)};
  std::optional<RunConfig> config;
  try {
    page.config = read_file(run_dir / "config.toml");
    config = parse_run_config(page.config, (run_dir / "config.toml").string());
  } catch (const Error& error) {
    page.notices.push_back({.text = format("The run's config is not shown: {}", error.what())});
  }
  page.subtitle = subtitle(config, sessions);
  page.status = how_it_ended(run_dir, failures, sessions);
  add_notices(metrics, failures, page.notices);
  page.tiles = make_tiles(metrics, config, predicted_text(sessions));
  if (config) {
    page.clip = config->optimizer.clip > 0 ? std::optional(config->optimizer.clip) : std::nullopt;
    page.facts = {model_facts(*config, sessions),
                  layout_facts(*config),
                  data_facts(*config),
                  optimizer_facts(*config)};
  }
  if (std::optional<FactGroup> pipeline = pipeline_facts(metrics, sessions)) {
    page.facts.push_back(std::move(*pipeline));
  }
  page.facts.push_back(session_facts(sessions));
  page.facts.push_back(checkpoint_facts(run_dir));
  page.resumed_after = resumes(sessions);
  page.footer = format("Made by tessera report from {}.", run_dir.string());
  return page;
}

namespace {

// A slip in the name would replace what a run cannot be without.
void require_report_or_new(const fs::path& output) {
  std::error_code error;
  TESSERA_REQUIRE(!fs::is_regular_file(output, error) || fs::file_size(output, error) == 0 ||
                      MappedFile(output).text().starts_with("<!doctype html"),
                  ErrorCode::kInvalidConfig,
                  "{} exists and is no report: choose another --output",
                  output.string());
}

}  // namespace

void report_command(const ReportOptions& options) {
  const fs::path& run_dir = options.run_dir;
  std::error_code error;
  TESSERA_REQUIRE(fs::is_directory(run_dir, error),
                  ErrorCode::kInvalidConfig,
                  "{} is no directory, expected the directory of a run (run.dir)",
                  run_dir.string());
  require_report_or_new(options.output);
  const fs::path path = metrics_file(run_dir);
  // A run that failed before its first step has no metrics, but something to say.
  const bool failed_early = !fs::exists(path, error) && !exit_records(run_dir).empty();
  const MetricsTable metrics = failed_early ? MetricsTable() : read_metrics(path, options.broken);
  for (const std::string& problem : metrics.skipped) {
    log_warning(format("left out {}", problem));
  }
  write_file_atomic(options.output, render_page(describe_run(run_dir, metrics), metrics));
  const std::string line = format("{}: {} of {}\n",
                                  options.output.string(),
                                  format_plural(std::ssize(metrics.steps), "step"),
                                  run_dir.string());
  print(line);
}

}  // namespace tessera
