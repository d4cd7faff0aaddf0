#include "tessera/simulate/compare_traces.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

struct TimeSpan {
  Ticks begin = 0;
  Ticks end = 0;
};

// Takes what the spans cover out of `open`, and adds it to their steps' times.
void cover(const TraceThread& thread, std::vector<TimeSpan>& open, std::vector<Ticks>& of_steps) {
  std::vector<TimeSpan> left;
  std::size_t i = 0;
  const auto keep = [&](Ticks begin, Ticks end) {
    if (begin < end) {
      left.push_back({.begin = begin, .end = end});
    }
  };
  Ticks done = 0;  // until when stamps are accounted for
  for (const TraceSpan& span : thread.spans) {
    Ticks begin = std::max(span.begin, done);
    done = std::max(done, span.end);
    while (i < open.size() && begin < span.end) {
      if (open[i].end <= begin) {
        keep(open[i].begin, open[i].end);
        ++i;
        continue;
      }
      const Ticks from = std::max(begin, open[i].begin);
      const Ticks to = std::min(span.end, open[i].end);
      if (from >= to) {
        break;  // the next gap comes later
      }
      keep(open[i].begin, from);
      of_steps[span.step] += to - from;
      open[i].begin = to;
      begin = to;
      i += open[i].begin == open[i].end ? 1 : 0;
    }
  }
  for (; i < open.size(); ++i) {
    keep(open[i].begin, open[i].end);
  }
  open = std::move(left);
}

// Of a process, by step.
std::vector<Ticks> exposed_times(const StepTrace& trace, const TraceProcess& process) {
  std::vector<Ticks> of_steps(trace.places[process.program].size(), 0);
  std::vector<TimeSpan> open = {{.begin = 0, .end = trace.step}};
  for (const TraceThread& thread : process.threads) {
    cover(thread, open, of_steps);
  }
  return of_steps;
}

// Of the kinds of an instruction's kernels and legs, that which names it.
int rank_of_kind(TraceKind kind) {
  switch (kind) {
    case TraceKind::kNothing:
      return 0;
    case TraceKind::kStream:
      return 1;
    case TraceKind::kProduct:
      return 2;
    case TraceKind::kAttention:
      return 3;
    case TraceKind::kCollective:
    case TraceKind::kSend:
    case TraceKind::kReceive:
      return 4;
  }
  return 0;
}

std::string_view text_of_kind(TraceKind kind) {
  switch (kind) {
    case TraceKind::kProduct:
      return "products";
    case TraceKind::kAttention:
      return "attention";
    case TraceKind::kStream:
      return "streaming";
    case TraceKind::kCollective:
      return "collectives";
    case TraceKind::kSend:
    case TraceKind::kReceive:
      return "transfers";
    case TraceKind::kNothing:
      return "waits alone";
  }
  return "?";
}

template <class Text>
PlaceTexts texts_of(const StepTrace& trace, const Text& text) {
  PlaceTexts texts;
  for (std::size_t program = 0; program < trace.places.size(); ++program) {
    texts.emplace_back();
    for (const TracePlace& place : trace.places[program]) {
      texts.back().push_back(text(program, place));
    }
  }
  return texts;
}

constexpr std::string_view kNothingRuns = "nothing runs";

// Adds a step's times, of "a" or of "b", to the rows with the texts of their places.
void add_shares(const TraceShares& shares,
                const PlaceTexts& texts,
                Ticks DifferenceRow::* side,
                std::int64_t DifferenceRow::* count_of_side,
                std::map<std::string_view, DifferenceRow>& rows) {
  for (std::size_t program = 0; program < texts.size(); ++program) {
    std::map<std::string_view, std::int64_t> own;
    for (std::size_t step = 0; step < texts[program].size(); ++step) {
      const std::string_view text = texts[program][step];
      rows[text].*side += shares.of_places[program][step];
      ++own[text];
    }
    for (const auto& [text, count] : own) {
      rows[text].*count_of_side = std::max(rows[text].*count_of_side, count);
    }
  }
  rows[kNothingRuns].*side += shares.nothing;
}

std::string seconds_cell(Ticks ticks) {
  return format("{:.4g}", to_seconds(ticks));
}

// "x12"; "x12, x24" where they differ.
std::string count_text(const DifferenceRow& row) {
  if (row.count_a == row.count_b) {
    return row.count_a > 0 ? format("x{}", format_grouped(row.count_a)) : "";
  }
  return format("x{}, x{}", format_grouped(row.count_a), format_grouped(row.count_b));
}

double magnitude(const DifferenceRow& row) {
  return std::abs(to_seconds(row.difference()));
}

}  // namespace

PlaceTexts texts_of_kinds(const StepTrace& trace) {
  std::vector<std::vector<TraceKind>> kinds;
  for (const std::vector<TracePlace>& places : trace.places) {
    kinds.emplace_back(places.size(), TraceKind::kNothing);
  }
  for (const TraceProcess& process : trace.processes) {
    for (const TraceThread& thread : process.threads) {
      for (const TraceSpan& span : thread.spans) {
        TraceKind& kind = kinds[process.program][span.step];
        kind = rank_of_kind(span.kind) > rank_of_kind(kind) ? span.kind : kind;
      }
    }
  }
  PlaceTexts texts;
  for (const std::vector<TraceKind>& own : kinds) {
    texts.emplace_back();
    for (const TraceKind kind : own) {
      texts.back().emplace_back(text_of_kind(kind));
    }
  }
  return texts;
}

PlaceTexts texts_of_ops(const StepTrace& trace) {
  return texts_of(trace, [&](std::size_t /*program*/, const TracePlace& place) {
    return format("{} {}", name(place.action), trace.names[place.op]);
  });
}

PlaceTexts texts_of_places(const StepTrace& trace) {
  std::vector<std::string> ranks(trace.places.size());
  for (const TraceProcess& process : trace.processes) {
    if (trace.places.size() > 1 && ranks[process.program].empty()) {
      ranks[process.program] = format("rank {}: ", process.first_rank);
    }
  }
  return texts_of(trace, [&](std::size_t program, const TracePlace& place) {
    return ranks[program] + place_text(trace, place);
  });
}

TraceShares::TraceShares(const StepTrace& trace, std::span<const std::size_t> weights)
    : step(trace.step), nothing(trace.step) {
  std::vector<std::size_t> of_processes(weights.begin(), weights.end());
  if (weights.empty()) {
    for (const TraceProcess& process : trace.processes) {
      of_processes.push_back(process.num_ranks);
    }
  }
  Ticks num_ranks = 0;
  for (const std::size_t weight : of_processes) {
    num_ranks += static_cast<Ticks>(weight);
  }
  for (const std::vector<TracePlace>& places : trace.places) {
    of_places.emplace_back(places.size(), 0);
  }
  // Divided one by one, since sums over thousands of ranks have no room; what that leaves is under
  // a picosecond a row, and counts as nothing.
  for (std::size_t p = 0; p < trace.processes.size(); ++p) {
    const auto weight = static_cast<Ticks>(of_processes[p]);
    const std::vector<Ticks> times = exposed_times(trace, trace.processes[p]);
    for (std::size_t i = 0; i < times.size() && weight > 0; ++i) {
      const Ticks share = times[i] / num_ranks * weight + times[i] % num_ranks * weight / num_ranks;
      of_places[trace.processes[p].program][i] += share;
      nothing -= share;
    }
  }
}

Differences compare(const TraceShares& a,
                    const PlaceTexts& texts_a,
                    const TraceShares& b,
                    const PlaceTexts& texts_b) {
  std::map<std::string_view, DifferenceRow> rows;
  add_shares(a, texts_a, &DifferenceRow::a, &DifferenceRow::count_a, rows);
  add_shares(b, texts_b, &DifferenceRow::b, &DifferenceRow::count_b, rows);
  Differences differences = {.a = a.step, .b = b.step, .rows = {}};
  for (auto& [text, row] : rows) {
    row.what = text;
    if (row.a != 0 || row.b != 0) {
      differences.rows.push_back(std::move(row));
    }
  }
  sort_rows(differences);
  return differences;
}

void sort_rows(Differences& differences) {
  std::ranges::stable_sort(differences.rows, [](const DifferenceRow& x, const DifferenceRow& y) {
    return std::abs(x.difference()) > std::abs(y.difference());
  });
}

std::string differences_text(const Differences& differences,
                             const DifferenceHeads& heads,
                             std::size_t num_rows) {
  const std::vector<DifferenceRow>& rows = differences.rows;
  // A single row stands for itself.
  const std::size_t rest_rows = rows.size() - std::min(rows.size(), num_rows);
  const std::size_t shown = rest_rows > 1 ? num_rows : rows.size();
  double all = 0.0;
  for (const DifferenceRow& row : rows) {
    all += magnitude(row);
  }
  constexpr std::size_t kUsualWidth = 48;
  std::size_t width = kUsualWidth;
  for (std::size_t i = 0; i < shown; ++i) {
    width = std::max(width, rows[i].what.size());
  }
  std::string text = format("{:<{}} {:>10} {:>11} {:>11} {:>11} {:>7}\n",
                            heads.what,
                            width + 2,
                            "",
                            format("{} s", heads.a),
                            format("{} s", heads.b),
                            "difference",
                            "of all");
  const auto add = [&](const DifferenceRow& row, double share) {
    text += format("  {:<{}} {:>10} {:>11} {:>11} {:>11} {:>7}\n",
                   row.what,
                   width,
                   count_text(row),
                   seconds_cell(row.a),
                   seconds_cell(row.b),
                   format("{:+.4g}", to_seconds(row.difference())),
                   all > 0.0 ? format("{:.1f} %", 100.0 * share / all) : "");
  };
  DifferenceRow rest;
  double rest_share = 0.0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i < shown) {
      add(rows[i], magnitude(rows[i]));
    } else {
      rest.a += rows[i].a;
      rest.b += rows[i].b;
      rest_share += magnitude(rows[i]);
    }
  }
  if (rows.size() > shown) {
    rest.what =
        format("{} more rows", format_grouped(static_cast<std::int64_t>(rows.size() - shown)));
    add(rest, rest_share);
  }
  add({.what = "the step", .a = differences.a, .b = differences.b}, all);
  return text;
}

std::string first_other_place(const StepTrace& a,
                              std::size_t program_a,
                              const StepTrace& b,
                              std::size_t program_b) {
  const std::vector<TracePlace>& of_a = a.places[program_a];
  const std::vector<TracePlace>& of_b = b.places[program_b];
  const auto text = [](const StepTrace& trace,
                       const std::vector<TracePlace>& places,
                       std::size_t step) -> std::string {
    return step < places.size()
               ? format("call {} ({})", places[step].call, place_text(trace, places[step]))
               : "its end";
  };
  for (std::size_t step = 0; step < std::max(of_a.size(), of_b.size()); ++step) {
    const std::string first = text(a, of_a, step);
    const std::string second = text(b, of_b, step);
    if (first != second) {
      return format("found {}, expected {}", first, second);
    }
  }
  return "";
}

}  // namespace tessera
