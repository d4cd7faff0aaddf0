#include "tessera/simulate/trace_counters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/program/lives.h"
#include "tessera/simulate/class_links.h"

namespace tessera {
namespace {

// A counter whose changes come in order. Of those at one time the largest value and the last
// remain.
class Counting {
 public:
  Counting(std::string name, std::string unit)
      : counter_({.name = std::move(name), .unit = std::move(unit), .points = {}}) {}

  void set(Ticks at, double value) {
    if (at != at_) {
      settle();
      at_ = at;
      most_ = value;
    }
    most_ = std::max(most_, value);
    last_ = value;
  }

  TraceCounter take() {
    settle();
    return std::move(counter_);
  }

 private:
  void settle() {
    if (at_ < 0) {
      return;
    }
    if (counter_.points.empty() || most_ > counter_.points.back().value) {
      add(most_);
    }
    add(last_);
  }

  void add(double value) {
    std::vector<TracePoint>& points = counter_.points;
    if (points.empty() || points.back().value != value) {
      points.push_back({.at = at_, .value = value});
    }
  }

  TraceCounter counter_;
  Ticks at_ = -1;
  double most_ = 0.0;
  double last_ = 0.0;
};

// When stream 0, which issues all others' steps, has come to each step of the order, and past it.
class OrderClock {
 public:
  OrderClock(const IssueOrder& order, std::span<const Ticks> begin, std::span<const Ticks> end) {
    Ticks now = 0;
    std::uint32_t call = 0;
    for (const IssueStep& step : order.steps) {
      const StepIndex index = order.index_of(step);
      for (; call <= step.call; ++call) {
        first_step_.push_back(index);
      }
      if (step.stream == 0) {
        came_.push_back(std::max(now, begin[index]));
        now = std::max(now, end[index]);
      } else {
        came_.push_back(now);
      }
      left_.push_back(now);
    }
  }

  Ticks at(const LifeEvent& event) const {
    const std::size_t step = first_step_[static_cast<std::size_t>(event.at.call)] +
                             static_cast<std::size_t>(event.at.instruction);
    return event.is_end ? left_[step] : came_[step];
  }

 private:
  std::vector<Ticks> came_;              // by step
  std::vector<Ticks> left_;              // likewise
  std::vector<std::size_t> first_step_;  // by call
};

struct Use {
  std::int64_t out = 0;
  std::int64_t in = 0;
};

constexpr std::int64_t kWholeLink = std::int64_t{1} << 20;

// How the use of a link changes with the time, by time.
using UseChanges = std::map<Ticks, Use>;

// Adds what `num_ranks` of a class do on a level.
void add_use(const TimedProgram& program,
             std::span<const TraceLeg> legs,
             std::uint32_t level,
             std::int64_t num_ranks,
             UseChanges& changes) {
  for (const TraceLeg& leg : legs) {
    const Piece& piece = program.pieces[leg.piece];
    if (piece.level != level || leg.moves >= leg.left) {
      continue;
    }
    const double rate =
        static_cast<double>(piece.moving) / static_cast<double>(leg.left - leg.moves);
    const std::int64_t use = num_ranks * std::llround(rate * static_cast<double>(kWholeLink));
    const std::int64_t out = piece.kind == PieceKind::kReceive ? 0 : use;
    const std::int64_t in = piece.kind == PieceKind::kSend ? 0 : use;
    Use& begin = changes[leg.moves];
    begin.out += out;
    begin.in += in;
    Use& end = changes[leg.left];
    end.out -= out;
    end.in -= in;
  }
}

}  // namespace

std::vector<TraceCounter> memory_counters(const Program& program,
                                          const IssueOrder& order,
                                          std::span<const Ticks> begin,
                                          std::span<const Ticks> end) {
  std::array<std::int64_t, kCategories.size()> alive = {};
  std::array<bool, kCategories.size()> is_used = {};
  std::int64_t all = 0;
  std::vector<Counting> counters;
  counters.emplace_back("memory", "bytes");
  for (const Category category : kCategories) {
    counters.emplace_back(format("memory: {}", name(category)), "bytes");
  }
  const auto count = [&](Category category, std::int64_t bytes, Ticks at) {
    const auto row = static_cast<std::size_t>(category);
    alive.at(row) += bytes;
    all += bytes;
    is_used.at(row) = is_used.at(row) || bytes > 0;
    counters[0].set(at, static_cast<double>(all));
    counters[row + 1].set(at, static_cast<double>(alive.at(row)));
  };
  // Together, before anything counts: they are not there one after the other.
  std::array<std::int64_t, kCategories.size()> persistent = {};
  for (const Buffer& buffer : program.buffers) {
    persistent.at(static_cast<std::size_t>(buffer.category)) +=
        buffer.persistent && buffer.space == Space::kDevice ? program.total_bytes(buffer) : 0;
  }
  for (const Category category : kCategories) {
    count(category, persistent.at(static_cast<std::size_t>(category)), 0);
  }
  const OrderClock clock(order, begin, end);
  for_each_life_event(program, [&](const LifeEvent& event) {
    const Buffer& buffer = program[event.of.buffer];
    if (buffer.space != Space::kDevice) {
      return;
    }
    const std::int64_t bytes = buffer.padded_bytes();
    count(buffer.category, event.is_end ? -bytes : bytes, clock.at(event));
  });
  std::vector<TraceCounter> result = {counters[0].take()};
  for (std::size_t row = 0; row < kCategories.size(); ++row) {
    if (is_used.at(row)) {
      result.push_back(counters[row + 1].take());
    }
  }
  return result;
}

std::vector<TraceCounter> link_counters(const RankPrograms& ranks,
                                        const StepTimeline& timeline,
                                        std::size_t of_class,
                                        std::span<const std::vector<TraceLeg>> legs) {
  const auto program_of = [&](std::size_t c) -> const TimedProgram& {
    return ranks.programs[timeline.classes[c].program];
  };
  std::set<std::uint32_t> levels;
  for (const TraceLeg& leg : legs[of_class]) {
    levels.insert(program_of(of_class).pieces[leg.piece].level);
  }
  std::vector<TraceCounter> result;
  for (const std::uint32_t level : levels) {
    const RankGroups groups = link_groups(ranks, level);
    const std::size_t first = groups.first_of(timeline.classes[of_class].first_rank);
    std::map<std::size_t, std::int64_t> sharers;
    for (std::size_t place = 0; place < groups.size; ++place) {
      ++sharers[timeline.class_of[first + place * groups.stride]];
    }
    UseChanges changes;
    for (const auto& [c, num_ranks] : sharers) {
      add_use(program_of(c), legs[c], level, num_ranks, changes);
    }
    Counting counter(format("link: {}", ranks.cluster.levels[level].name), "use");
    counter.set(0, 0.0);
    Use use;
    for (const auto& [at, change] : changes) {
      use.out += change.out;
      use.in += change.in;
      const std::int64_t most = std::min(kWholeLink, std::max(use.out, use.in));
      counter.set(at, static_cast<double>(most) / static_cast<double>(kWholeLink));
    }
    result.push_back(counter.take());
  }
  return result;
}

}  // namespace tessera
