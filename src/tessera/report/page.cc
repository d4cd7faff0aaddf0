#include "tessera/report/page.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/base/svg.h"
#include "tessera/base/units.h"
#include "tessera/report/curve.h"
#include "tessera/report/page_assets.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kValidation = "validation_loss";
constexpr std::size_t kStretches = 1000;  // of a curve: two points for each pixel of a wide screen
constexpr std::size_t kTableRows = 25;

constexpr std::string_view kTraffic = "comm_bytes/";

std::string_view style_of(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return "good";
    case Tone::kWarning:
      return "warn";
    case Tone::kBad:
      return "bad";
  }
  return "";
}

// More digits than a screen shows are only weight.
double rounded(double value) {
  constexpr int kDigits = 7;
  if (value == 0.0) {
    return 0.0;
  }
  const double scale = std::pow(10.0, kDigits - std::ceil(std::log10(std::abs(value))));
  const double result = std::round(value * scale) / scale;
  return std::isfinite(result) ? result : value;
}

Json series(const std::string& name,
            std::span<const std::int64_t> steps,
            std::span<const double> values) {
  const Curve curve = make_curve(steps, values, kStretches);
  Json json = {{"name", name}, {"x", Json::array()}, {"y", Json::array()}};
  for (const CurvePoint& point : curve.points) {
    json["x"].push_back(point.step);
    json["y"].push_back(rounded(point.value));
  }
  for (const CurvePoint& point : curve.means) {
    json["mean_x"].push_back(point.step);
    json["mean_y"].push_back(rounded(point.value));
  }
  json["not_finite"] = curve.not_finite;
  json["num_not_finite"] = curve.num_not_finite;
  return json;
}

struct ChartKind {
  std::string_view column;
  std::string_view id;
  std::string_view title;
  std::string_view format;  // of page.js
};

constexpr ChartKind kCharts[] = {
    {.column = "loss", .id = "loss", .title = "Loss", .format = "number"},
    {.column = "grad_norm", .id = "grad-norm", .title = "Gradient norm", .format = "number"},
    {.column = "tokens_per_second", .id = "throughput", .title = "Throughput", .format = "rate"},
    {.column = "memory_bytes", .id = "memory", .title = "Memory of a rank", .format = "bytes"},
    {.column = "lr", .id = "lr", .title = "Learning rate", .format = "number"}};

Json chart(const ChartKind& kind, Json curves) {
  return {{"id", kind.id},
          {"title", kind.title},
          {"format", kind.format},
          {"series", std::move(curves)}};
}

// A curve of the steps that have a value: few, as of a validation.
Json sparse_series(const std::string& name, const MetricsTable& metrics, std::string_view column) {
  std::vector<std::int64_t> steps;
  std::vector<double> values;
  const std::span<const double> all = metrics.column(column);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::isfinite(all[i])) {
      steps.push_back(metrics.steps[i]);
      values.push_back(all[i]);
    }
  }
  return series(name, steps, values);
}

Json charts(const ReportPage& page, const MetricsTable& metrics) {
  Json all = Json::array();
  for (const ChartKind& kind : kCharts) {
    Json curves = Json::array();
    curves.push_back(series(std::string(kind.title), metrics.steps, metrics.column(kind.column)));
    if (kind.column == "loss" && !metrics.column(kValidation).empty()) {
      curves.push_back(sparse_series("Validation loss", metrics, kValidation));
    }
    all.push_back(chart(kind, std::move(curves)));
    if (kind.column == "grad_norm" && page.clip) {
      all.back()["reference"] = {{"value", *page.clip},
                                 {"label", format("clipped above {}", *page.clip)}};
    }
  }
  Json traffic = Json::array();
  for (const MetricsColumn& column : metrics.columns) {
    if (column.name.starts_with(kTraffic)) {
      traffic.push_back(series(column.name.substr(kTraffic.size()), metrics.steps, column.values));
    }
  }
  if (!traffic.empty()) {
    all.push_back(chart({.column = "",
                         .id = "traffic",
                         .title = "Sent by rank 0 in a step, by level",
                         .format = "bytes"},
                        std::move(traffic)));
  }
  return all;
}

// JSON inside <script>: a '<' could end the element.
std::string script_data(const ReportPage& page, const MetricsTable& metrics) {
  const Json data = {{"charts", charts(page, metrics)}, {"resumes", page.resumed_after}};
  std::string text;
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  }
  return text;
}

std::string notice_list(const std::vector<Notice>& notices) {
  if (notices.empty()) {
    return "";
  }
  std::string html = "<ul class=\"notices\">\n";
  for (const Notice& notice : notices) {
    html += format("<li class=\"{}\">{}</li>\n", style_of(notice.tone), escape_markup(notice.text));
  }
  return html + "</ul>\n";
}

std::string tile_list(const std::vector<Tile>& tiles) {
  std::string html = "<dl class=\"tiles\">\n";
  for (const Tile& tile : tiles) {
    html += format("<div><dt>{}</dt><dd><div class=\"value\">{}</div>",
                   escape_markup(tile.label),
                   escape_markup(tile.value));
    html += tile.detail.empty()
                ? ""
                : format("<div class=\"detail\">{}</div>", escape_markup(tile.detail));
    html += "</dd></div>\n";
  }
  return html + "</dl>\n";
}

std::string fact_list(const std::vector<FactGroup>& groups) {
  std::string html = "<div class=\"facts\">\n";
  for (const FactGroup& group : groups) {
    html += format("<section><h3>{}</h3>\n<dl>\n", escape_markup(group.title));
    for (const Fact& fact : group.facts) {
      html +=
          format("<dt>{}</dt><dd>{}</dd>\n", escape_markup(fact.label), escape_markup(fact.value));
    }
    html += "</dl></section>\n";
  }
  return html + "</div>\n";
}

std::string cell(double value, std::string_view column) {
  if (!std::isfinite(value)) {
    return "not finite";
  }
  if (column == "memory_bytes") {
    return format_bytes(static_cast<std::int64_t>(value));
  }
  if (column == "tokens" || column == "tokens_per_second") {
    return format_grouped(std::llround(value));
  }
  return format("{:.5g}", value);
}

// Rows at equal distances, the first step and the last among them.
std::vector<std::size_t> table_rows(std::size_t num_steps) {
  std::vector<std::size_t> rows;
  const std::size_t count = std::min(num_steps, kTableRows);
  for (std::size_t i = 0; i < count; ++i) {
    rows.push_back(count == 1 ? 0 : i * (num_steps - 1) / (count - 1));
  }
  return rows;
}

std::string number_table(const MetricsTable& metrics) {
  constexpr std::pair<const char*, const char*> kColumns[] = {{"loss", "Loss"},
                                                              {"grad_norm", "Gradient norm"},
                                                              {"lr", "Learning rate"},
                                                              {"tokens", "Tokens"},
                                                              {"step_seconds", "Seconds"},
                                                              {"tokens_per_second", "Tokens/s"},
                                                              {"memory_bytes", "Memory"}};
  const std::vector<std::size_t> rows = table_rows(metrics.steps.size());
  std::string html = format(
      "<details id=\"numbers\"><summary>The numbers as a table</summary>\n"
      "<div class=\"scroll\" role=\"region\" aria-label=\"The numbers as a table\" tabindex=\"0\">"
      "<table>\n<caption>{} of {} steps; metrics.jsonl has all</caption>\n"
      "<thead><tr><th scope=\"col\">Step</th>",
      format_grouped(static_cast<std::int64_t>(rows.size())),
      format_grouped(static_cast<std::int64_t>(metrics.steps.size())));
  for (const auto& [name, title] : kColumns) {
    html += format("<th scope=\"col\">{}</th>", title);
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const std::size_t row : rows) {
    html += format("<tr><th scope=\"row\">{}</th>", format_grouped(metrics.steps[row]));
    for (const auto& [name, title] : kColumns) {
      html += format("<td>{}</td>", cell(metrics.column(name)[row], name));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div></details>\n";
}

constexpr std::string_view kControls =
    "<div class=\"curves-head\"><h2 id=\"curves-title\">Curves</h2>\n"
    "<div class=\"controls\">\n"
    "<label for=\"smoothing\">Smoothing <input id=\"smoothing\" type=\"range\" min=\"0\" "
    "max=\"0.99\" step=\"0.01\" value=\"0.6\" autocomplete=\"off\">"
    "<output id=\"smoothing-value\" for=\"smoothing\">0.60</output></label>\n"
    "<label><input id=\"log-scale\" type=\"checkbox\" autocomplete=\"off\"> Log scale</label>\n"
    "</div></div>\n"
    "<noscript><p>The curves are drawn by the page's own script, which is switched off; the table "
    "below has their numbers.</p></noscript>\n"
    "<div id=\"charts\" class=\"charts\"></div>\n";

// Nothing may be loaded from anywhere.
constexpr std::string_view kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'";

}  // namespace

std::string render_page(const ReportPage& page, const MetricsTable& metrics) {
  std::string html = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  html += format("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n", kPolicy);
  html +=
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n";
  html += format("<title>{} · Tessera</title>\n<style>\n{}</style>\n</head>\n<body>\n",
                 escape_markup(page.title),
                 kPageStyle);
  html += format("<header class=\"top\">\n<h1>{}</h1>\n", escape_markup(page.title));
  html += page.subtitle.empty()
              ? ""
              : format("<p class=\"under\">{}</p>\n", escape_markup(page.subtitle));
  html += format("<p id=\"status\" class=\"status {}\">{}</p>\n",
                 style_of(page.status.tone),
                 escape_markup(page.status.text));
  html += notice_list(page.notices) + tile_list(page.tiles) + "</header>\n<main>\n";
  if (!metrics.steps.empty()) {
    html += format("<section aria-labelledby=\"curves-title\">\n{}</section>\n", kControls);
    html += number_table(metrics);
  }
  html += "<section aria-labelledby=\"facts-title\">\n<h2 id=\"facts-title\">The run</h2>\n" +
          fact_list(page.facts) + "</section>\n";
  if (!page.config.empty()) {
    html += format(
        "<details id=\"config\"><summary>The resolved config</summary>\n"
        "<pre tabindex=\"0\">{}</pre></details>\n",
        escape_markup(page.config));
  }
  html += format("</main>\n<footer>{}</footer>\n", escape_markup(page.footer));
  if (!metrics.steps.empty()) {
    html +=
        format("<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}</script>\n",
               script_data(page, metrics),
               kPageScript);
  }
  return html + "</body>\n</html>\n";
}

}  // namespace tessera
