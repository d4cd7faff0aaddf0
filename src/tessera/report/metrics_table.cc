#include "tessera/report/metrics_table.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/status_line.h"

namespace tessera {
namespace {

constexpr std::size_t kMaxNamedLines = 5;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<const char*, 7> kFields = {
    "loss", "grad_norm", "lr", "tokens", "step_seconds", "tokens_per_second", "memory_bytes"};

// A line's numbers by column; nothing in `problem`, or what was found and expected.
struct Line {
  std::int64_t step = 0;
  std::map<std::string, double> values = {};
  std::string problem = {};
};

Line broken(std::string_view text, std::string_view expected) {
  constexpr std::size_t kMaxShown = 80;
  return {.problem = format("found '{}'{}, expected {}",
                            text.substr(0, kMaxShown),
                            text.size() > kMaxShown ? " ..." : "",
                            expected)};
}

// All bytes of a level, or nothing where it is not what MetricsWriter writes.
std::optional<double> total(const nlohmann::json& level) {
  double sum = 0.0;
  for (const auto& [name, bytes] : level.items()) {
    if (!bytes.is_number()) {
      return std::nullopt;
    }
    sum += bytes.get<double>();
  }
  return level.is_object() ? std::optional(sum) : std::nullopt;
}

// A number, or NaN where it was not finite; nothing where it is something else.
std::optional<double> number(const nlohmann::json& value) {
  if (value.is_null()) {
    return kNone;
  }
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

// Adds the columns of one pipeline rank; false where it is not what MetricsWriter writes.
bool add_pipeline_rank(Line& line, std::size_t place, const nlohmann::json& rank) {
  if (!rank.is_object() || !rank.contains("memory_bytes") || !rank["memory_bytes"].is_number() ||
      !rank.contains("comm_bytes")) {
    return false;
  }
  double sent = 0.0;
  for (const auto& [level, bytes] : rank["comm_bytes"].items()) {
    const std::optional<double> sum = total(bytes);
    if (!sum) {
      return false;
    }
    sent += *sum;
  }
  line.values[format("pipeline_ranks/{}/memory_bytes", place)] = rank["memory_bytes"];
  line.values[format("pipeline_ranks/{}/comm_bytes", place)] = sent;
  return true;
}

// The same of all of them.
bool add_pipeline_ranks(Line& line, const nlohmann::json& ranks) {
  bool good = ranks.is_array();
  for (std::size_t place = 0; good && place < ranks.size(); ++place) {
    good = add_pipeline_rank(line, place, ranks[place]);
  }
  return good;
}

Line parse_line(std::string_view text, std::int64_t last_step) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
    return broken(text, "a JSON object with an integer 'step'");
  }
  Line line{.step = json["step"]};
  if (line.step <= last_step) {
    return broken(format("\"step\":{}", line.step), format("a step above {}", last_step));
  }
  for (const char* field : kFields) {
    const std::optional<double> value = json.contains(field) ? number(json[field]) : std::nullopt;
    if (!value) {
      return broken(text, format("a number or null as '{}'", field));
    }
    line.values[field] = *value;
  }
  if (json.contains("validation_loss")) {
    const std::optional<double> value = number(json["validation_loss"]);
    if (!value) {
      return broken(text, "a number or null as 'validation_loss'");
    }
    line.values["validation_loss"] = *value;
  }
  if (const auto traffic = json.find("comm_bytes"); traffic != json.end()) {
    for (const auto& [level, bytes] : traffic->items()) {
      const std::optional<double> sum = total(bytes);
      if (!sum) {
        return broken(text, "numbers of bytes by level and class as 'comm_bytes'");
      }
      line.values["comm_bytes/" + level] = *sum;
    }
  }
  if (json.contains("pipeline_ranks") && !add_pipeline_ranks(line, json["pipeline_ranks"])) {
    return broken(text, "'memory_bytes' and 'comm_bytes' of each in 'pipeline_ranks'");
  }
  return line;
}

class TableBuilder {
 public:
  TableBuilder() {
    for (const char* field : kFields) {
      table_.columns.push_back({.name = field, .values = {}});
    }
  }

  std::int64_t last_step() const { return table_.steps.empty() ? 0 : table_.steps.back(); }

  void add(const Line& line) {
    table_.steps.push_back(line.step);
    for (const auto& [name, value] : line.values) {
      values(name).push_back(value);
    }
    for (MetricsColumn& column : table_.columns) {
      column.values.resize(table_.steps.size(), kNone);
    }
  }

  void skip(const std::string& problem) {
    ++table_.num_skipped;
    if (table_.skipped.size() < kMaxNamedLines) {
      table_.skipped.push_back(problem);
    }
  }

  MetricsTable take() { return std::move(table_); }

 private:
  std::vector<double>& values(const std::string& name) {
    const auto found = std::ranges::find(table_.columns, name, &MetricsColumn::name);
    if (found != table_.columns.end()) {
      return found->values;
    }
    table_.columns.push_back(
        {.name = name, .values = std::vector<double>(table_.steps.size() - 1, kNone)});
    return table_.columns.back().values;
  }

  MetricsTable table_;
};

}  // namespace

std::span<const double> MetricsTable::column(std::string_view name) const {
  const auto found = std::ranges::find(columns, name, &MetricsColumn::name);
  return found == columns.end() ? std::span<const double>() : std::span(found->values);
}

MetricsTable read_metrics(const std::filesystem::path& path, BrokenLines broken) {
  const MappedFile file(path);
  std::string_view text = file.text();
  TableBuilder builder;
  WorkLine work(path.string(), static_cast<std::int64_t>(text.size()));
  std::int64_t number = 0;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    ++number;
    const Line line = parse_line(text.substr(0, end), builder.last_step());
    text.remove_prefix(end + 1);
    work.add(static_cast<std::int64_t>(end + 1));
    if (line.problem.empty()) {
      builder.add(line);
      continue;
    }
    const std::string problem = format("{}:{}: {}", path.string(), number, line.problem);
    TESSERA_REQUIRE(broken == BrokenLines::kSkip,
                    ErrorCode::kInvalidData,
                    "{}; mend the line, or leave out broken lines with --skip-broken",
                    problem);
    builder.skip(problem);
  }
  return builder.take();
}

}  // namespace tessera
