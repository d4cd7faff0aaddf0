#include "tessera/resolve/simulation_sweep.h"

#include <charconv>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

[[noreturn]] void refuse_sweep(std::string_view text) {
  fail(ErrorCode::kInvalidConfig,
       "--sweep={}: expected a key and its values, as in --sweep=parallel.ranks=8..64, which "
       "doubles from 8 to 64, or --sweep=train.microbatch=1,2,4",
       text);
}

// Of "8..64"; none for other text.
std::vector<std::string> doubled_values(std::string_view values, std::string_view text) {
  const std::size_t dots = values.find("..");
  if (dots == std::string_view::npos) {
    return {};
  }
  const auto number = [&](std::string_view digits) {
    std::int64_t value = 0;
    const char* const begin = digits.data();
    const char* const end = begin + digits.size();
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error != std::errc() || stop != end || value < 1) {
      refuse_sweep(text);
    }
    return value;
  };
  const std::int64_t last = number(values.substr(dots + 2));
  std::int64_t value = number(values.substr(0, dots));
  if (value > last) {
    refuse_sweep(text);
  }
  std::vector<std::string> found = {format("{}", value)};
  while (value <= last / 2) {
    value *= 2;
    found.push_back(format("{}", value));
  }
  return found;
}

double speed_of_rank(const SweepRow& row) {
  return row.tokens_per_second / static_cast<double>(row.ranks);
}

}  // namespace

double efficiency(const std::vector<SweepRow>& rows, const SweepRow& row) {
  for (const SweepRow& first : rows) {
    if (first.problem.empty()) {
      return speed_of_rank(row) / speed_of_rank(first);
    }
  }
  return 0.0;
}

Sweep parse_sweep(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos || equals + 1 == text.size()) {
    refuse_sweep(text);
  }
  const std::string_view values = text.substr(equals + 1);
  Sweep sweep = {.key = std::string(text.substr(0, equals)),
                 .values = doubled_values(values, text)};
  if (!sweep.values.empty()) {
    return sweep;
  }
  for (std::size_t begin = 0; begin <= values.size();) {
    const std::size_t comma = std::min(values.find(',', begin), values.size());
    if (comma == begin) {
      refuse_sweep(text);
    }
    sweep.values.emplace_back(values.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return sweep;
}

SweepRow sweep_row(std::string value, const std::function<SweepRow()>& row) {
  SweepRow found;
  try {
    found = row();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidConfig && error.code() != ErrorCode::kInvalidArgument &&
        error.code() != ErrorCode::kOutOfMemory) {
      throw;
    }
    found.problem = error.what();
    found.lacks_memory = error.code() == ErrorCode::kOutOfMemory;
  }
  found.value = std::move(value);
  return found;
}

void require_some_run(std::string_view option,
                      std::string_view what,
                      const std::vector<SweepRow>& rows) {
  if (std::ranges::any_of(rows, [](const SweepRow& row) { return row.problem.empty(); })) {
    return;
  }
  fail(std::ranges::all_of(rows, &SweepRow::lacks_memory) ? ErrorCode::kOutOfMemory
                                                          : ErrorCode::kInvalidConfig,
       "--sweep={}: {}: {}",
       option,
       what,
       rows.front().problem);
}

SweepRow sweep_row(const SimulationReport& report) {
  const MemoryFit& fit = report.run.facts()->fit;
  SweepRow row = {.value = "",
                  .ranks = report.run.mesh().num_ranks(),
                  .seconds = report.seconds(),
                  .tokens_per_second = report.tokens_per_second(),
                  .memory_bytes = fit.needed,
                  .fits = fit.of == MemoryFit::Limit::kNone || fit.needed <= fit.limit,
                  .constants = constants_text(report.run.cluster()),
                  .is_estimate = !report.run.cluster().device.curve};
  for (const CauseRow& cause : report.causes[report.critical()].rows) {
    row.exposed += to_seconds(cause.latency + cause.moving + cause.shared);
  }
  return row;
}

std::string sweep_text(const Sweep& sweep,
                       const std::vector<SweepRow>& rows,
                       std::string_view more) {
  std::string text = format("{:<20} {:>10} {:>14} {:>11} {:>12} {:>16}{}\n",
                            sweep.key,
                            "step s",
                            "tokens/s",
                            "efficiency",
                            "memory",
                            "exposed traffic",
                            more);
  for (const SweepRow& row : rows) {
    if (!row.problem.empty()) {
      text += format("{:<20} {}\n", row.value, row.problem);
      continue;
    }
    text += format("{:<20} {:>10.4g} {:>14} {:>9.1f} % {:>12} {:>14.1f} %{}{}\n",
                   row.value,
                   row.seconds,
                   format_grouped(static_cast<std::int64_t>(row.tokens_per_second)),
                   100.0 * efficiency(rows, row),
                   format_bytes(row.memory_bytes),
                   100.0 * row.exposed / row.seconds,
                   row.fits ? "" : "  does not fit",
                   row.more);
  }
  std::set<std::string> constants;
  for (const SweepRow& row : rows) {
    if (row.problem.empty() && constants.insert(row.constants).second) {
      text += format("constants: {}\n", row.constants);
    }
  }
  return text;
}

std::string sweep_json(const Sweep& sweep, const std::vector<SweepRow>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const SweepRow& row : rows) {
    if (!row.problem.empty()) {
      list.push_back({{"value", row.value}, {"problem", row.problem}});
      continue;
    }
    list.push_back({{"value", row.value},
                    {"ranks", row.ranks},
                    {"step_seconds", row.seconds},
                    {"tokens_per_second", row.tokens_per_second},
                    {"efficiency", efficiency(rows, row)},
                    {"exposed_seconds", row.exposed},
                    {"memory_bytes", row.memory_bytes},
                    {"fits", row.fits},
                    {"constants", row.constants},
                    {"is_estimate", row.is_estimate}});
  }
  const nlohmann::ordered_json json = {{"key", sweep.key}, {"rows", list}};
  return json.dump(2) + "\n";
}

}  // namespace tessera
