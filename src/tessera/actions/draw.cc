#include "tessera/actions/draw.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "tessera/actions/as_index.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/svg.h"

namespace tessera {
namespace {

constexpr std::size_t kLeastWidth = 20;

void require_same_shape(const ActionTable& table, const Timeline& timeline) {
  bool same = table.rows.size() == timeline.rows.size();
  for (std::size_t rank = 0; same && rank < table.rows.size(); ++rank) {
    same = table.rows[rank].size() == timeline.rows[rank].size();
  }
  TESSERA_REQUIRE(same, ErrorCode::kInvalidArgument, "a table with the timeline of another table");
}

// Columns per tick: the name of the shortest action fits, unless it is far shorter than the mean.
double columns_per_tick(const ActionTable& table, const Timeline& timeline) {
  double shortest = std::numeric_limits<double>::infinity();
  double sum = 0.0;
  std::size_t count = 0;
  std::size_t longest_name = 0;
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
      longest_name = std::max(longest_name, to_string(table.rows[rank][i]).size());
      const TimeSpan& span = timeline.rows[rank][i];
      if (span.end > span.start) {
        shortest = std::min(shortest, span.end - span.start);
        sum += span.end - span.start;
        ++count;
      }
    }
  }
  if (count == 0) {
    return 1.0;
  }
  constexpr double kLeastShareOfMean = 0.4;
  const double unit = std::max(shortest, kLeastShareOfMean * sum / static_cast<double>(count));
  return static_cast<double>(longest_name + 1) / unit;
}

std::size_t column_of(double tick, double columns_per_tick) {
  // What is drawn is cut at some hundred columns.
  constexpr double kMaxColumn = 1e6;
  return static_cast<std::size_t>(std::lround(std::min(tick * columns_per_tick, kMaxColumn)));
}

std::string draw_row(const std::vector<StageAction>& actions,
                     const std::vector<TimeSpan>& spans,
                     double scale,
                     std::size_t columns) {
  std::string line(columns, '.');
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::size_t begin = column_of(spans[i].start, scale);
    const std::size_t end = column_of(spans[i].end, scale);
    if (begin >= std::min(end, columns)) {
      continue;
    }
    std::string text = to_string(actions[i]);
    text.resize(end - begin - 1, '-');
    text += ' ';
    text.resize(std::min(text.size(), columns - begin));
    std::ranges::copy(text, line.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return line;
}

std::string_view colour_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return kForwardColour;
    case ActionKind::kBackward:
      return kBackwardColour;
    case ActionKind::kInputGradient:
      return kInputGradientColour;
    case ActionKind::kWeightGradient:
      return kWeightGradientColour;
  }
  fail(ErrorCode::kInternal, "unknown kind of action {}", static_cast<int>(kind));
}

// Of the image, in its own units.
constexpr double kNameWidth = 60.0;
constexpr double kChartWidth = 1200.0;
constexpr double kRowHeight = 24.0;
constexpr double kBarHeight = 20.0;

struct Bar {
  StageAction action;
  TimeSpan span;
  double x = 0.0;
  double y = 0.0;
  double width = 0.0;
  double opacity = 1.0;
};

void add_bar(const Bar& bar, std::string& svg) {
  svg += format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
      "fill-opacity=\"{:.2f}\" stroke=\"#ffffff\" stroke-width=\"0.5\"><title>{}: {:.6g} to "
      "{:.6g}</title></rect>\n",
      bar.x,
      bar.y,
      bar.width,
      kBarHeight,
      colour_of(bar.action.kind),
      bar.opacity,
      to_string(bar.action),
      bar.span.start,
      bar.span.end);
  const std::string text = to_string(bar.action);
  const std::string label = text.substr(text.find(letter(bar.action.kind)) + 1);
  if (bar.width >= kDigitWidth * static_cast<double>(label.size())) {
    svg += format(
        "<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"middle\" fill=\"#ffffff\" "
        "pointer-events=\"none\">{}</text>\n",
        bar.x + bar.width / 2,
        bar.y + 14.0,
        label);
  }
}

// The later a stage comes on its rank, the lighter.
double opacity_of(const std::vector<std::int64_t>& stages, std::int64_t stage) {
  const auto chunk = std::ranges::find(stages, stage) - stages.begin();
  return 1.0 - 0.5 * static_cast<double>(chunk) / static_cast<double>(stages.size());
}

}  // namespace

std::string draw_table(const ActionTable& table, const Timeline& timeline, std::size_t width) {
  require_same_shape(table, timeline);
  const std::size_t name_width = format("rank {}  ", table.ranks - 1).size();
  const std::size_t room = std::max(width, kLeastWidth + name_width) - name_width;
  const double scale = columns_per_tick(table, timeline);
  const std::size_t needed = column_of(timeline.makespan, scale);
  const std::size_t columns = std::min(needed, room);
  std::string text;
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    std::string line = format("rank {}", rank);
    line.resize(name_width, ' ');
    line += draw_row(table.rows[rank], timeline.rows[rank], scale, columns);
    while (line.ends_with(' ')) {
      line.pop_back();
    }
    text += line + "\n";
  }
  if (columns < needed) {
    const double share = static_cast<double>(columns) / scale / timeline.makespan;
    text += format("(the first {:.1f} % of the step: a line has {} columns)\n",
                   std::floor(1000.0 * share) / 10.0,
                   name_width + columns);
  }
  return text;
}

std::string draw_gantt(const ActionTable& table, const Timeline& timeline) {
  require_same_shape(table, timeline);
  const double height = kRowHeight * static_cast<double>(table.rows.size());
  std::string svg = svg_begin(kNameWidth + kChartWidth, height);
  const double scale = timeline.makespan > 0.0 ? kChartWidth / timeline.makespan : 0.0;
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    const double y = kRowHeight * static_cast<double>(rank);
    svg +=
        format("<text x=\"0\" y=\"{:.2f}\" fill=\"currentColor\">rank {}</text>\n", y + 14.0, rank);
    const std::vector<std::int64_t> stages = stages_of_rank(table, static_cast<std::int64_t>(rank));
    for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
      const StageAction& action = table.rows[rank][i];
      const TimeSpan& span = timeline.rows[rank][i];
      add_bar({.action = action,
               .span = span,
               .x = kNameWidth + span.start * scale,
               .y = y,
               .width = (span.end - span.start) * scale,
               .opacity = opacity_of(stages, action.stage)},
              svg);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace tessera
