#include "tessera/simulate/memory_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/svg.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/program/lives.h"
#include "tessera/simulate/picture_rows.h"

namespace tessera {
namespace {

// Of the image, in its own units.
constexpr std::size_t kArenaTop = 34;  // below the names of colours and the actions
constexpr std::size_t kArenaHeight = 600;
constexpr std::size_t kFoot = 8;

constexpr std::size_t kNoCategory = kCategories.size();

constexpr std::array<std::string_view, kCategories.size()> kCategoryColours = [] {
  std::array<std::string_view, kCategories.size()> colours = {};
  const auto set = [&](Category category, std::string_view colour) {
    colours.at(static_cast<std::size_t>(category)) = colour;
  };
  set(Category::kParameter, "#2f6fb5");
  set(Category::kSecondary, "#6fa3d8");
  set(Category::kGradient, "#c2571a");
  set(Category::kOptimizer, "#7a4fb0");
  set(Category::kCache, "#b9770e");
  set(Category::kActivation, "#1e7f5c");
  set(Category::kWorkspace, "#8a8f98");
  set(Category::kInput, "#b3261e");
  return colours;
}();

// A buffer in a slot, from the first instruction at which it is there to behind the last one.
struct BufferLife {
  BufferSlot of = {};
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The lives of a step, with instructions numbered in the order of the calls.
struct ArenaLives {
  explicit ArenaLives(const Program& program) {
    std::vector<std::int64_t> first;  // by call
    for (const Call& call : program.calls) {
      first.push_back(length);
      length += std::ssize(program[call.segment].instructions);
    }
    std::int64_t used = 0;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
      if (program.buffers[i].persistent && program.buffers[i].space == Space::kDevice) {
        used += program.total_bytes(program.buffers[i]);
        for (std::size_t slot = 0; slot < program.buffers[i].offsets.size(); ++slot) {
          lives.push_back({.of = {.buffer = BufferId::of(i), .slot = static_cast<int>(slot)},
                           .begin = 0,
                           .end = length});
        }
      }
    }
    peak_bytes = used;
    std::vector<std::int64_t> begins(SlotNumbers(program).size(), 0);
    for_each_life_event(program, [&](const LifeEvent& event) {
      if (program[event.of.buffer].space != Space::kDevice) {
        return;
      }
      const std::int64_t at = first[static_cast<std::size_t>(event.at.call)] + event.at.instruction;
      const std::int64_t bytes = program[event.of.buffer].padded_bytes();
      used += event.is_end ? -bytes : bytes;
      if (event.is_end) {
        lives.push_back({.of = event.of, .begin = begins[event.number], .end = at + 1});
      } else {
        begins[event.number] = at;
      }
      if (used > peak_bytes) {
        peak_bytes = used;
        peak = at;
        peak_at = event.at;
      }
    });
  }

  std::vector<BufferLife> lives;
  std::int64_t length = 0;      // instructions of all calls
  std::int64_t peak = 0;        // at which most bytes are in use
  std::int64_t peak_bytes = 0;  // by then
  Instant peak_at = {};
};

// The cells of a picture, by the category of what was drawn there last.
class CellGrid {
 public:
  explicit CellGrid(std::size_t grain)
      : grain_(grain),
        columns_(kChartWidth / grain),
        rows_(kArenaHeight / grain),
        cells_(columns_ * rows_, kNoCategory) {}

  // A rectangle in units of the chart; at least a cell.
  void fill(double left, double top, double right, double bottom, std::size_t category) {
    const auto cells = [&](double from, double to, std::size_t count) {
      const auto grain = static_cast<double>(grain_);
      const auto first = std::min(static_cast<std::size_t>(from / grain), count - 1);
      const auto last = static_cast<std::size_t>(std::ceil(to / grain));
      return std::pair(first, std::clamp(last, first + 1, count));
    };
    const auto [x_begin, x_end] = cells(left, right, columns_);
    const auto [y_begin, y_end] = cells(top, bottom, rows_);
    for (std::size_t y = y_begin; y < y_end; ++y) {
      std::fill(cells_.begin() + static_cast<std::ptrdiff_t>(y * columns_ + x_begin),
                cells_.begin() + static_cast<std::ptrdiff_t>(y * columns_ + x_end),
                category);
    }
  }

  // A path for each category. Equal rows one above the other are one.
  std::string draw() const {
    std::array<std::string, kCategories.size()> paths;
    for (std::size_t y = 0; y < rows_;) {
      std::size_t end = y + 1;
      while (end < rows_ && std::equal(row(y), row(y + 1), row(end))) {
        ++end;
      }
      draw_rows(y, end, paths);
      y = end;
    }
    std::string svg;
    for (std::size_t category = 0; category < paths.size(); ++category) {
      if (!paths.at(category).empty()) {
        svg += format(
            "<path fill=\"{}\" d=\"{}\"/>\n", kCategoryColours.at(category), paths.at(category));
      }
    }
    return svg;
  }

 private:
  std::vector<std::size_t>::const_iterator row(std::size_t y) const {
    return cells_.begin() + static_cast<std::ptrdiff_t>(y * columns_);
  }

  void draw_rows(std::size_t y,
                 std::size_t end,
                 std::array<std::string, kCategories.size()>& paths) const {
    for (std::size_t x = 0; x < columns_;) {
      const std::size_t category = *(row(y) + static_cast<std::ptrdiff_t>(x));
      std::size_t last = x + 1;
      while (last < columns_ && *(row(y) + static_cast<std::ptrdiff_t>(last)) == category) {
        ++last;
      }
      if (category != kNoCategory) {
        const std::size_t width = (last - x) * grain_;
        paths.at(category) +=
            format("M{} {}h{}v{}h-{}z", x * grain_, y * grain_, width, (end - y) * grain_, width);
      }
      x = last;
    }
  }

  std::size_t grain_;
  std::size_t columns_;
  std::size_t rows_;
  std::vector<std::size_t> cells_;
};

class MemoryPicture {
 public:
  // Cells are `grain` wide and high, and what has a title is a few of them.
  MemoryPicture(const Program& program, const ArenaLives& lives, std::size_t grain)
      : program_(program),
        lives_(lives),
        grain_(grain),
        scale_({.length = lives.length, .width = 1}) {}

  std::string draw() const {
    std::string svg = svg_begin(static_cast<double>(kNameWidth + kChartWidth),
                                static_cast<double>(kArenaTop + kArenaHeight + kFoot));
    svg += head();
    svg += format("<g transform=\"translate({} {})\">{}</g>\n",
                  kNameWidth,
                  kArenaTop - kStripHeight - 2,
                  actions());
    svg += format("<g transform=\"translate({} {})\">\n{}{}</g>\n",
                  kNameWidth,
                  kArenaTop,
                  arena(),
                  peak_line());
    return svg + "</svg>\n";
  }

 private:
  double y_of(std::int64_t offset) const {
    const auto bytes = static_cast<double>(std::max<std::int64_t>(program_.arena_bytes, 1));
    return static_cast<double>(kArenaHeight) * (1.0 - static_cast<double>(offset) / bytes);
  }

  std::string head() const {
    std::string svg = picture_text(0, 11, format("arena {}", format_bytes(program_.arena_bytes)));
    auto x = static_cast<double>(kNameWidth);
    for (const MemoryRow& row : memory_by_category(program_)) {
      if (row.peak_bytes > 0) {
        const std::string text = format("{} {}", name(row.category), format_bytes(row.peak_bytes));
        svg += picture_key(
            x,
            {.name = text, .colour = kCategoryColours.at(static_cast<std::size_t>(row.category))});
      }
    }
    const Call& call = program_.calls[static_cast<std::size_t>(lives_.peak_at.call)];
    const std::array lines = {
        format("peak {}", format_bytes(lives_.peak_bytes)),
        format("{}, microbatch {},", program_[call.segment].name, call.microbatch),
        format("instruction {}", lives_.peak_at.instruction)};
    double y = static_cast<double>(kArenaTop) + 12.0;
    for (const std::string& line : lines) {
      svg += picture_text(0, y, line);
      y += 16.0;
    }
    return svg;
  }

  std::string actions() const {
    PixelRow row(scale_);
    std::int64_t at = 0;
    for (const Call& call : program_.calls) {
      const Segment& segment = program_[call.segment];
      const std::int64_t end = at + std::ssize(segment.instructions);
      row.add(static_cast<std::size_t>(segment.code.action), at, end);
      at = end;
    }
    return row.draw(kActionLooks, kStripHeight);
  }

  std::string arena() const {
    CellGrid small(grain_);
    std::string named;
    for (const BufferLife& life : lives_.lives) {
      const Buffer& buffer = program_[life.of.buffer];
      const std::int64_t offset = buffer.offsets[static_cast<std::size_t>(life.of.slot)];
      const double left = scale_.x_of(life.begin);
      const double right = scale_.x_of(life.end);
      const double top = y_of(offset + buffer.padded_bytes());
      const double bottom = y_of(offset);
      constexpr double kCells = 3.0;
      const double least = kCells * static_cast<double>(grain_);
      if (std::min(right - left, bottom - top) < least) {
        small.fill(left, top, right, bottom, static_cast<std::size_t>(buffer.category));
        continue;
      }
      named += format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
          "stroke=\"#ffffff\" stroke-width=\"0.4\"><title>{}: {} {} at {}</title></rect>\n",
          left,
          top,
          right - left,
          bottom - top,
          kCategoryColours.at(static_cast<std::size_t>(buffer.category)),
          escape_markup(printable(buffer.name)),
          name(buffer.category),
          format_bytes(buffer.bytes),
          format_grouped(offset));
    }
    return small.draw() + named;
  }

  std::string peak_line() const {
    const double x = scale_.x_of(lives_.peak) + (scale_.x_of(1) - scale_.x_of(0)) / 2.0;
    return format("<path stroke=\"#b3261e\" stroke-dasharray=\"6 4\" d=\"M{:.1f} 0V{}\"/>\n",
                  x,
                  kArenaHeight);
  }

  const Program& program_;
  const ArenaLives& lives_;
  std::size_t grain_;
  PictureScale scale_;
};

}  // namespace

std::string draw_memory(const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    TESSERA_CHECK(!buffer.offsets.empty(), "buffer \"{}\" has no place in the arena", buffer.name);
  }
  const ArenaLives lives(program);
  std::string svg;
  for (const std::size_t grain : {1, 2, 4, 8, 12, 20}) {
    svg = MemoryPicture(program, lives, grain).draw();
    if (svg.size() <= kMostPictureBytes) {
      break;
    }
  }
  return svg;
}

}  // namespace tessera
