#include "tessera/resolve/compare_simulations.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Seconds give fewer than 2^51 ticks back exactly.
constexpr int kExactBits = 51;

// Reads the members of one file.
class SummaryReader {
 public:
  explicit SummaryReader(const std::string& file) : file_(file) {}

  const Json& member(const Json& object, const char* key) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    TESSERA_REQUIRE(found != object.end(),
                    ErrorCode::kInvalidData,
                    "{}: found no \"{}\", expected what tessera simulate --json prints of one run",
                    file_,
                    key);
    return *found;
  }

  std::string text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    require(value.is_string(), key, value, "a text");
    return value.get<std::string>();
  }

  Ticks ticks(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    const double most = to_seconds(kMostTicks);
    require(value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= most,
            key,
            value,
            format("0 to {:.0f} seconds", most));
    return to_ticks(value.get<double>());
  }

  // "collectives along data.node, on level node".
  std::string cause(const Json& row) const {
    std::string what = text(row, "cause");
    if (row.contains("level")) {
      const bool is_along_axis = !member(row, "axis").is_null();
      what += (is_along_axis ? format(" along {}, on level ", text(row, "axis")) : " on level ") +
              text(row, "level");
    }
    return what;
  }

  const Json& critical_class(const Json& json) const {
    const Json& classes = member(json, "classes");
    const Json& which = member(json, "critical_class");
    require(classes.is_array(), "classes", classes, "an array");
    require(which.is_number_unsigned() && which.get<std::size_t>() < classes.size(),
            "critical_class",
            which,
            "one of the classes");
    return classes[which.get<std::size_t>()];
  }

  void require(bool is_good,
               const char* key,
               const Json& value,
               const std::string& expected) const {
    constexpr std::size_t kShown = 40;
    TESSERA_REQUIRE(is_good,
                    ErrorCode::kInvalidData,
                    "{}: found \"{}\": {}, expected {}",
                    file_,
                    key,
                    value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, kShown),
                    expected);
  }

 private:
  const std::string& file_;
};

std::string fact_text(const Json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "data.node 8 x data.cluster 4".
std::string axes_text(const Json& axes, const SummaryReader& reader) {
  std::string text;
  for (const Json& axis : axes) {
    text += format("{}{} {}",
                   text.empty() ? "" : " x ",
                   reader.text(axis, "name"),
                   fact_text(reader.member(axis, "ranks")));
  }
  return text.empty() ? "one rank" : text;
}

std::string value_of(const SimulationSummary& summary, const std::string& fact) {
  const auto found =
      std::ranges::find(summary.facts, fact, &std::pair<std::string, std::string>::first);
  return found != summary.facts.end() ? found->second : "not said";
}

}  // namespace

SimulationSummary parse_simulation(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, {.name = file, .unique_keys = false});
  const SummaryReader reader(file);
  SimulationSummary summary;
  for (const char* const key :
       {"model", "program", "ranks", "cluster", "constants", "memory_bytes"}) {
    if (json.contains(key)) {
      summary.facts.emplace_back(key, fact_text(json.at(key)));
    }
  }
  const Json& axes = reader.member(json, "axes");
  reader.require(axes.is_array(), "axes", axes, "an array");
  summary.facts.emplace_back("mesh", axes_text(axes, reader));
  if (json.contains("keys")) {
    const Json& keys = json.at("keys");
    reader.require(keys.is_object(), "keys", keys, "an object");
    for (const auto& [key, value] : keys.items()) {
      summary.facts.emplace_back(key, fact_text(value));
    }
  }
  summary.step = reader.ticks(json, "step_seconds");
  const Json& causes = reader.member(reader.critical_class(json), "causes");
  reader.require(causes.is_array(), "causes", causes, "an array");
  const Ticks rounding = (summary.step >> kExactBits) * (std::ssize(causes) + 1);
  Ticks sum = 0;
  for (const Json& row : causes) {
    summary.causes.emplace_back(reader.cause(row), reader.ticks(row, "seconds"));
    sum = std::min(sum + summary.causes.back().second, kMostTicks);  // wrong enough
  }
  TESSERA_REQUIRE(std::abs(sum - summary.step) <= rounding,
                  ErrorCode::kInvalidData,
                  "{}: its causes add up to {} s, expected its step, {} s",
                  file,
                  to_seconds(sum),
                  to_seconds(summary.step));
  summary.step = sum;
  return summary;
}

Differences cause_differences(const SimulationSummary& a, const SimulationSummary& b) {
  Differences differences = {.a = a.step, .b = b.step, .rows = {}};
  std::map<std::string, DifferenceRow> by_text;
  for (const auto& [what, ticks] : a.causes) {
    by_text[what].a += ticks;
  }
  for (const auto& [what, ticks] : b.causes) {
    by_text[what].b += ticks;
  }
  for (auto& [what, row] : by_text) {
    row.what = what;
    differences.rows.push_back(row);
  }
  sort_rows(differences);
  return differences;
}

std::string compare_simulations_text(const SimulationSummary& a,
                                     const SimulationSummary& b,
                                     const CompareRows& rows) {
  std::string text = "losses: simulations have none\n";
  std::vector<std::string> names;
  for (const SimulationSummary* each : {&a, &b}) {
    for (const auto& [name, value] : each->facts) {
      if (std::ranges::find(names, name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  std::string changes;
  for (const std::string& name : names) {
    if (value_of(a, name) != value_of(b, name)) {
      changes += format("  {}: A {}, B {}\n", name, value_of(a, name), value_of(b, name));
    }
  }
  text += changes.empty() ? "both are of the same model, keys, mesh and cluster\n" : changes;
  return text +
         format("step {:.4g} s in A, {:.4g} s in B: B takes {}\n\n",
                to_seconds(a.step),
                to_seconds(b.step),
                percent_text(to_seconds(a.step), to_seconds(b.step))) +
         differences_text(
             cause_differences(a, b), {.what = "by cause", .a = "A", .b = "B"}, rows.most);
}

}  // namespace tessera
