#include "tessera/simulate/trace_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/base/svg.h"
#include "tessera/base/units.h"
#include "tessera/simulate/picture_rows.h"

namespace tessera {
namespace {

constexpr std::size_t kMostRows = 160;
constexpr std::size_t kLongestName = 32;  // characters

// Of the image, in its own units.
constexpr std::size_t kHeadHeight = 40;
constexpr std::size_t kRowHeight = 20;
constexpr std::size_t kBarHeight = 16;
constexpr std::size_t kMemoryHeight = 120;

constexpr std::size_t kWaits = 5;

// Of what streams do.
constexpr std::array kLooks = {PictureLook{"products", "#2f6fb5"},
                               PictureLook{"attention", "#7a4fb0"},
                               PictureLook{"streaming", "#8a8f98"},
                               PictureLook{"collectives", "#c2571a"},
                               PictureLook{"transfers", "#b9770e"},
                               PictureLook{"waiting", "url(#waiting)"}};

std::size_t look_of(const TraceSpan& span) {
  if (span.part == SpanKind::kAway) {
    return kWaits;
  }
  switch (span.kind) {
    case TraceKind::kProduct:
      return 0;
    case TraceKind::kAttention:
      return 1;
    case TraceKind::kStream:
    case TraceKind::kNothing:
      return 2;
    case TraceKind::kCollective:
      return 3;
    case TraceKind::kSend:
    case TraceKind::kReceive:
      return 4;
  }
  return kWaits;
}

std::string seconds_text(Ticks ticks) {
  return format("{:.4g} s", to_seconds(ticks));
}

// From an action's first span to its last one.
struct ActionBlock {
  Action action = Action::kStart;
  std::int32_t microbatch = 0;
  Ticks begin = 0;
  Ticks end = 0;
};

std::vector<ActionBlock> blocks_of(const StepTrace& trace, const TraceProcess& process) {
  std::vector<ActionBlock> blocks;
  for (const TraceSpan& span : process.threads[0].spans) {
    if (span.begin == span.end) {
      continue;
    }
    const TracePlace& place = trace.place(process, span);
    if (blocks.empty() || blocks.back().action != place.action ||
        blocks.back().microbatch != place.microbatch) {
      blocks.push_back({.action = place.action,
                        .microbatch = place.microbatch,
                        .begin = span.begin,
                        .end = span.end});
    }
    blocks.back().end = span.end;
  }
  return blocks;
}

class TracePicture {
 public:
  TracePicture(const StepTrace& trace, std::int64_t memory_limit, std::size_t pixel_width)
      : trace_(trace), limit_(memory_limit), scale_({.length = trace.step, .width = pixel_width}) {}

  std::string draw() {
    std::string body;
    std::size_t num_rows = 0;
    std::size_t num_drawn = 0;
    for (const TraceProcess& process : trace_.processes) {
      num_rows += process.threads.size();
      if (num_rows > kMostRows) {
        break;
      }
      body += draw_process(process);
      ++num_drawn;
    }
    if (num_drawn < trace_.processes.size()) {
      y_ += kRowHeight;
      body += picture_text(
          0,
          static_cast<double>(y_) - 4.0,
          format("{} more kinds of ranks are not drawn", trace_.processes.size() - num_drawn));
    }
    body += draw_memory();
    return svg_begin(static_cast<double>(kNameWidth + kChartWidth), static_cast<double>(y_)) +
           head() + body + "</svg>\n";
  }

 private:
  std::string head() const {
    std::string svg =
        "<defs><pattern id=\"waiting\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
        "<path d=\"M0 6L6 0\" stroke=\"#8a8f98\"/></pattern></defs>\n";
    svg += picture_text(0, 11, format("step of {}", seconds_text(trace_.step)));
    auto x = static_cast<double>(kNameWidth);
    const auto add = [&](const PictureLook& look) { svg += picture_key(x, look); };
    std::ranges::for_each(kLooks, add);
    add(kActionLooks[1]);
    add(kActionLooks[2]);
    add(kActionLooks[3]);
    constexpr Ticks kMarks = 8;
    for (Ticks mark = 0; mark < kMarks; ++mark) {
      const Ticks at = trace_.step / kMarks * mark;
      svg += picture_text(static_cast<double>(kNameWidth) + scale_.x_of(at), 30, seconds_text(at));
    }
    return svg;
  }

  std::string draw_process(const TraceProcess& process) {
    std::string svg = draw_actions(process);
    for (std::size_t thread = 0; thread < process.threads.size(); ++thread) {
      const std::vector<TraceSpan>& spans = process.threads[thread].spans;
      PixelRow row(scale_);
      Ticks last = 0;
      for (const TraceSpan& span : spans) {
        if (thread == 0) {
          row.add(kWaits, last, span.begin);
        }
        row.add(look_of(span), span.begin, span.end);
        last = span.end;
      }
      if (thread == 0) {
        row.add(kWaits, last, trace_.step);
      }
      const std::string name =
          format("{}, {}", process.name, process.threads[thread].name).substr(0, kLongestName);
      svg += picture_text(0, static_cast<double>(y_) + 12.0, name);
      svg += group(row.draw(kLooks, kBarHeight));
      y_ += kRowHeight;
    }
    return svg;
  }

  // What is drawn from 0 on as it stands at the row's begin.
  std::string group(std::string_view svg) const {
    return format("<g transform=\"translate({} {})\">{}</g>\n", kNameWidth, y_, svg);
  }

  std::string draw_actions(const TraceProcess& process) {
    PixelRow row(scale_);
    std::string labels;
    for (const ActionBlock& block : blocks_of(trace_, process)) {
      row.add(static_cast<std::size_t>(block.action), block.begin, block.end);
      const std::string text = format("{}", block.microbatch);
      const double width = scale_.x_of(block.end) - scale_.x_of(block.begin);
      const bool is_of_microbatch = is_of_microbatches(block.action);
      if (is_of_microbatch && width >= static_cast<double>(scale_.width) &&
          width >= kDigitWidth * static_cast<double>(text.size())) {
        labels += format(
            "<text x=\"{:.1f}\" y=\"10\">{}</text>", scale_.x_of(block.begin) + width / 2, text);
      }
    }
    std::string svg = group(row.draw(kActionLooks, kStripHeight) +
                            format("<g fill=\"#ffffff\" text-anchor=\"middle\">{}</g>", labels));
    y_ += kStripHeight + 1;
    return svg;
  }

  // The value of a counter at most, pixel by pixel.
  std::vector<double> most_by_pixel(const TraceCounter& counter) const {
    std::vector<double> most(scale_.num_pixels(), 0.0);
    double value = 0.0;
    auto next = counter.points.begin();
    for (std::size_t pixel = 0; pixel < most.size(); ++pixel) {
      most[pixel] = value;
      const bool is_last = pixel + 1 == most.size();
      while (next != counter.points.end() &&
             (is_last || scale_.pixel_of(next->at) < static_cast<double>(pixel + 1))) {
        value = next->value;
        most[pixel] = std::max(most[pixel], value);
        ++next;
      }
    }
    return most;
  }

  static double peak(const TraceProcess& process) {
    double most = 0.0;
    for (const TracePoint& point : process.counters[0].points) {
      most = std::max(most, point.value);
    }
    return most;
  }

  std::string draw_memory() {
    const auto process = std::ranges::max_element(trace_.processes, {}, peak);
    if (process == trace_.processes.end() || peak(*process) == 0.0) {
      return "";
    }
    const auto limit = static_cast<double>(limit_);
    const double highest = std::max(peak(*process), limit);
    const auto height_of = [&](double bytes) {
      return static_cast<double>(kMemoryHeight) * (1.0 - bytes / highest);
    };
    y_ += kRowHeight;
    std::string path = format("M0 {}", kMemoryHeight);
    double last = -1.0;
    const std::vector<double> most = most_by_pixel(process->counters[0]);
    for (std::size_t pixel = 0; pixel < most.size(); ++pixel) {
      if (most[pixel] != last) {
        path += format("H{}V{:.1f}", pixel * scale_.width, height_of(most[pixel]));
        last = most[pixel];
      }
    }
    path += format("H{}V{}z", most.size() * scale_.width, kMemoryHeight);
    std::string curve =
        format("<path fill=\"{}\" fill-opacity=\"0.35\" d=\"{}\"/>", kActionLooks[1].colour, path);
    const auto top = static_cast<double>(y_);
    std::string svg = picture_text(0, top + 12.0, format("memory of {}", process->name));
    svg += picture_text(
        0, top + 28.0, format("at most {}", format_bytes(std::llround(peak(*process)))));
    if (limit_ > 0) {
      curve += format("<path stroke=\"#b3261e\" stroke-dasharray=\"6 4\" d=\"M0 {0:.1f}H{1}\"/>",
                      height_of(limit),
                      kChartWidth);
      svg += picture_text(0, top + 44.0, format("limit {}", format_bytes(limit_)));
    }
    svg += group(curve);
    y_ += kMemoryHeight + 4;
    return svg;
  }

  const StepTrace& trace_;
  std::int64_t limit_;
  PictureScale scale_;
  std::size_t y_ = kHeadHeight;  // where the next row begins
};

}  // namespace

std::string draw_trace(const StepTrace& trace, std::int64_t memory_limit) {
  std::string svg;
  for (const std::size_t width : {1, 2, 4, 8, 12, 20, 40, 100}) {
    svg = TracePicture(trace, memory_limit, width).draw();
    if (svg.size() <= kMostPictureBytes) {
      break;
    }
  }
  return svg;
}

}  // namespace tessera
