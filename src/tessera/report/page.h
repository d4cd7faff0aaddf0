#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/report/metrics_table.h"

namespace tessera {

// What a report says of a run besides its curves. All text is shown as it stands: nothing in it is
// taken for HTML.

struct Fact {
  std::string label;
  std::string value;
};

struct FactGroup {
  std::string title;
  std::vector<Fact> facts;
};

// A number at the top of the page.
struct Tile {
  std::string label;
  std::string value;
  std::string detail = {};
};

enum class Tone { kGood, kWarning, kBad };

struct Notice {
  Tone tone = Tone::kWarning;
  std::string text;
};

struct ReportPage {
  std::string title;  // the run's name
  std::string subtitle = {};
  Notice status = {};  // how the run ended
  std::vector<Notice> notices = {};
  std::vector<Tile> tiles = {};
  std::vector<FactGroup> facts = {};
  std::vector<std::int64_t> resumed_after = {};  // steps
  std::optional<double> clip = {};               // of the gradient norm, drawn into its chart
  std::string config = {};                       // the resolved config as text
  std::string footer = {};
};

// One HTML page that needs no other file and no network: the curves of `metrics` with what `page`
// says, in light and dark, for phones and for paper. Any number of steps gives a page of at most
// some hundred KB of curves.
std::string render_page(const ReportPage& page, const MetricsTable& metrics);

}  // namespace tessera
