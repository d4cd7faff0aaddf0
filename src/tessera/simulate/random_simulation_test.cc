// Steps at random: what holds for all of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/random.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/simulate/attribution.h"
#include "tessera/simulate/read_trace.h"
#include "tessera/simulate/simulate.h"
#include "tessera/simulate/test_steps.h"
#include "tessera/simulate/trace.h"

namespace tessera {
namespace {

constexpr double kCommShare = 0.25;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}

  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(uniform(seed_, drawn_++) * static_cast<double>(limit));
  }

  bool with(double probability) { return uniform(seed_, drawn_++) < probability; }

 private:
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
};

// Ranks that do the same with kernels of different lengths, by their places along an axis, and hand
// something on along it.
class RandomStep {
 public:
  explicit RandomStep(std::uint64_t seed) : draw_(seed), random_(random_mesh(seed)) {
    for (Level& level : random_.cluster.levels) {
      level.shared = draw_.with(0.4);
    }
    random_.cluster.device.memory_bandwidth = 1.0;
    random_.cluster.device.curve = DeviceCurve{.comm_share = kCommShare};
    if (draw_.with(0.3)) {
      random_.cluster.host = {.cores = 1 + draw_.below(8),
                              .memory_bandwidth = static_cast<double>(1 + draw_.below(3))};
    }
    const std::vector<MeshAxis>& axes = random_.mesh.axes;
    axis_ = axes.empty() ? 0 : static_cast<std::size_t>(draw_.below(std::ssize(axes)));
    num_kinds_ = axes.empty() || draw_.with(0.3) ? 1 : axes[axis_].size;
    num_streams_ = 1 + draw_.below(3);
    for (std::int64_t kind = 0; kind < num_kinds_; ++kind) {
      steps_.emplace_back(static_cast<std::size_t>(num_streams_));
      const AxisSize axis =
          axes.empty() ? AxisSize{} : AxisSize{axes[axis_].name, axes[axis_].size};
      if (kind > 0) {
        steps_.back().channel(axis, kind - 1, kind);
      }
      if (kind + 1 < num_kinds_) {
        steps_.back().channel(axis, kind, kind + 1);
      }
    }
    const std::int64_t count = 3 + draw_.below(20);
    for (std::int64_t i = 0; i < count; ++i) {
      add_instruction(i);
    }
    for (const TestStep& step : steps_) {
      programs_.push_back(step.timed());
    }
    for (std::int64_t rank = 0; rank < random_.mesh.num_ranks(); ++rank) {
      program_of_.push_back(
          num_kinds_ > 1 ? static_cast<std::size_t>(rank / axes[axis_].stride % axes[axis_].size)
                         : 0);
    }
    draw_options();
  }

  RankPrograms ranks() const {
    return {.mesh = random_.mesh,
            .cluster = random_.cluster,
            .programs = programs_,
            .program_of = program_of_};
  }

  const SimulationOptions& options() const { return options_; }

  std::size_t num_ranks() const { return program_of_.size(); }

  // The step with every rank a class of its own.
  StepTimeline simulate_apart() const {
    std::vector<TimedProgram> programs;
    std::vector<std::size_t> program_of(num_ranks());
    std::iota(program_of.begin(), program_of.end(), std::size_t{0});
    for (const std::size_t program : program_of_) {
      programs.push_back(programs_[program]);
    }
    return simulate({.mesh = random_.mesh,
                     .cluster = random_.cluster,
                     .programs = programs,
                     .program_of = program_of},
                    options_);
  }

  // With links of a level twice as fast.
  StepTimeline simulate_faster(std::uint32_t level, const SimulationOptions& options) {
    std::vector<TimedProgram> programs = programs_;
    for (TimedProgram& program : programs) {
      for (Piece& piece : program.pieces) {
        piece.moving /= piece.level == level ? 2 : 1;
      }
    }
    return simulate({.mesh = random_.mesh,
                     .cluster = random_.cluster,
                     .programs = programs,
                     .program_of = program_of_},
                    options);
  }

  // All that all ranks do, one after the other, and what their hosts take to issue it.
  double serialized() const {
    double sum = 0.0;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      const auto slow = options_.slow.find(static_cast<std::int64_t>(rank));
      const double factor = slow == options_.slow.end() ? 1.0 : slow->second;
      for (const Piece& piece : programs_[program_of_[rank]].pieces) {
        // A tick more for each, since ends are rounded up.
        sum += static_cast<double>(piece.ticks) * (piece.is_leg() ? 1.0 : factor) +
               static_cast<double>(piece.moving) + 2.0;
      }
    }
    return sum / (1.0 - kCommShare) +
           static_cast<double>((options_.issue + options_.issue_leg) * num_kinds_ *
                               static_cast<Ticks>(programs_[0].pieces.size() + 99));
  }

 private:
  void add_instruction(std::int64_t number) {
    auto stream = static_cast<std::size_t>(draw_.below(num_streams_));
    std::vector<EventId> waits;
    while (number > 0 && draw_.with(0.3)) {
      waits.push_back(EventId::of(static_cast<std::size_t>(draw_.below(number))));
    }
    const std::int64_t what = draw_.below(10);
    const Ticks latency = draw_.below(5);
    const Ticks moving = draw_.below(50);
    Piece leg;
    if (what >= 6 && !random_.mesh.axes.empty()) {
      const auto axis = static_cast<std::size_t>(draw_.below(std::ssize(random_.mesh.axes)));
      leg = collective(static_cast<std::uint32_t>(axis), level_of(axis), latency, moving);
      leg.native = draw_.with(0.2);
    }
    for (std::int64_t kind = 0; kind < num_kinds_; ++kind) {
      std::vector<Piece> pieces;
      if (what < 4 || random_.mesh.axes.empty()) {
        pieces.push_back(kernel(draw_.below(100), share(), share()));
      } else if (what < 6) {
        stream = 0;  // a channel is used on one
        pieces = transfers(kind, latency, moving);
      } else {
        pieces = {kernel(draw_.below(20)), leg};
      }
      steps_[static_cast<std::size_t>(kind)].add(stream, pieces, waits);
    }
  }

  double share() { return static_cast<double>(draw_.below(3)) / 2.0; }

  std::vector<Piece> transfers(std::int64_t kind, Ticks latency, Ticks moving) const {
    std::vector<Piece> pieces;
    Piece piece = collective(0, level_of(axis_), latency, moving);
    if (kind > 0) {
      piece.kind = PieceKind::kReceive;
      pieces.push_back(piece);
      ++piece.partners;
    }
    if (kind + 1 < num_kinds_) {
      piece.kind = PieceKind::kSend;
      pieces.push_back(piece);
    }
    return pieces;
  }

  std::uint32_t level_of(std::size_t axis) const {
    const auto found =
        std::ranges::find(random_.cluster.levels, random_.mesh.axes[axis].level, &Level::name);
    return static_cast<std::uint32_t>(found - random_.cluster.levels.begin());
  }

  void draw_options() {
    if (draw_.with(0.3)) {
      options_.slow[draw_.below(random_.mesh.num_ranks())] = 1.5;
    }
    options_.issue = draw_.with(0.2) ? 7 : 0;
    options_.issue_leg = draw_.with(0.2) ? 11 : 0;
  }

  Draw draw_;
  RandomMesh random_;
  std::size_t axis_ = 0;
  std::int64_t num_kinds_ = 1;
  std::int64_t num_streams_ = 1;
  std::vector<TestStep> steps_;
  std::vector<TimedProgram> programs_;
  std::vector<std::size_t> program_of_;
  SimulationOptions options_;
};

SimulationOptions without_contention(SimulationOptions options) {
  options.contention = false;
  return options;
}

// Of what each class's device does at full speed, none has more than the time there is.
void expect_capacities(const RandomStep& step, const StepTimeline& timeline) {
  for (const ClassTimeline& own : timeline.classes) {
    std::int64_t compute = 0;
    std::int64_t memory = 0;
    for (const IssueStep& each : step.ranks().programs[own.program].order.steps) {
      for (const Piece& piece : step.ranks().programs[own.program].pieces_of(each)) {
        compute += piece.ticks * piece.compute;
        memory += piece.ticks * piece.memory;
      }
    }
    EXPECT_LE(std::max(compute, memory), own.last() * Piece::kWhole);
  }
}

constexpr std::uint64_t kSeeds = 10'000;

TEST(RandomSimulation, LiesBetweenItsBounds) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    const RandomStep step(seed);
    const StepTimeline timeline = simulate(step.ranks(), step.options());
    const StepTimeline alone = simulate(step.ranks(), without_contention(step.options()));
    ASSERT_EQ(timeline.class_of, alone.class_of);
    for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
      for (std::size_t i = 0; i < timeline.classes[c].end.size(); ++i) {
        ASSERT_LE(alone.classes[c].begin[i], timeline.classes[c].begin[i]);
        ASSERT_LE(alone.classes[c].end[i], timeline.classes[c].end[i]);
      }
      // attribute() checks that causes add up to the step.
      EXPECT_EQ(attribute(step.ranks(), timeline, c).total(), timeline.step);
    }
    if (step.ranks().cluster.host.cores == 0) {
      EXPECT_LE(static_cast<double>(timeline.step), step.serialized());
    }
    expect_capacities(step, timeline);
  }
}

TEST(RandomSimulation, NeverTakesLongerWithFasterLinks) {
  for (std::uint64_t seed = 0; seed < kSeeds / 4; ++seed) {
    SCOPED_TRACE(seed);
    RandomStep step(seed);
    const SimulationOptions options = without_contention(step.options());
    const Ticks before = simulate(step.ranks(), options).step;
    for (std::uint32_t level = 0; level < step.ranks().cluster.levels.size(); ++level) {
      EXPECT_LE(step.simulate_faster(level, options).step, before);
    }
  }
}

// A class stands for its ranks, bit by bit.
TEST(RandomSimulation, OfClassesIsThatOfAllRanks) {
  constexpr std::size_t kMostRanks = 64;
  std::size_t num_folded = 0;
  for (std::uint64_t seed = 0; seed < kSeeds / 8; ++seed) {
    SCOPED_TRACE(seed);
    const RandomStep step(seed);
    if (step.num_ranks() > kMostRanks) {
      continue;
    }
    const StepTimeline timeline = simulate(step.ranks(), step.options());
    const StepTimeline apart = step.simulate_apart();
    ASSERT_EQ(apart.classes.size(), step.num_ranks());
    num_folded += timeline.classes.size() < step.num_ranks() ? 1 : 0;
    for (std::size_t rank = 0; rank < step.num_ranks(); ++rank) {
      ASSERT_EQ(timeline.of_rank(rank).begin, apart.of_rank(rank).begin);
      ASSERT_EQ(timeline.of_rank(rank).end, apart.of_rank(rank).end);
      ASSERT_EQ(timeline.of_rank(rank).streams, apart.of_rank(rank).streams);
    }
  }
  EXPECT_GT(num_folded, kSeeds / 16);
}

// Whether all of `spans` but those of no length are the timeline's, in order.
void expect_spans(const TraceThread& thread, const std::vector<Span>& expected) {
  std::size_t next = 0;
  Ticks last = 0;
  for (const TraceSpan& span : thread.spans) {
    ASSERT_LE(last, span.begin);
    last = span.end;
    if (span.begin < span.end) {
      ASSERT_LT(next, expected.size());
      const Span& of = expected[next++];
      ASSERT_EQ(std::tuple(span.begin, span.end, span.step, span.part),
                std::tuple(of.begin, of.end, of.step, of.kind));
    }
  }
  EXPECT_EQ(next, expected.size());
}

// Those that wait for others have an arrow from the last of them, if they then talk for a while.
void expect_arrows(const RandomStep& step, const StepTimeline& timeline, const StepTrace& trace) {
  std::map<std::tuple<std::size_t, std::size_t, Ticks>, int> arrows;  // of collectives
  for (const TraceArrow& arrow : trace.arrows) {
    ASSERT_LE(arrow.from.at, arrow.to.at);
    for (const TraceEnd& end : {arrow.from, arrow.to}) {
      const std::vector<TraceSpan>& spans = trace.processes[end.process].threads[end.thread].spans;
      ASSERT_TRUE(std::ranges::any_of(spans, [&](const TraceSpan& span) {
        return span.begin <= end.at && end.at < span.end && span.kind >= TraceKind::kCollective;
      }));
    }
    ++arrows[{arrow.to.process, arrow.to.thread, arrow.to.at}];
  }
  for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
    const TimedProgram& program = step.ranks().programs[timeline.classes[c].program];
    for (std::size_t stream = 0; stream < timeline.classes[c].streams.size(); ++stream) {
      const std::vector<Span>& spans = timeline.classes[c].streams[stream];
      for (std::size_t i = 0; i + 1 < spans.size(); ++i) {
        if (spans[i].kind == SpanKind::kAway && spans[i + 1].piece == spans[i].piece &&
            spans[i + 1].step == spans[i].step && !program.pieces[spans[i].piece].is_transfer()) {
          ASSERT_EQ((arrows[{c, stream, spans[i].end}]), 1);
        }
      }
    }
  }
}

TEST(RandomSimulation, IsInItsTrace) {
  std::size_t num_arrows = 0;
  for (std::uint64_t seed = 0; seed < kSeeds / 4; ++seed) {
    SCOPED_TRACE(seed);
    const RandomStep step(seed);
    const StepTimeline timeline = simulate(step.ranks(), step.options());
    const StepTrace trace = trace_of(step.ranks(), timeline);
    for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
      for (std::size_t stream = 0; stream < timeline.classes[c].streams.size(); ++stream) {
        expect_spans(trace.processes[c].threads[stream], timeline.classes[c].streams[stream]);
      }
      for (const TraceCounter& counter : trace.processes[c].counters) {
        for (const TracePoint& point : counter.points) {
          ASSERT_TRUE(counter.unit != "use" || (point.value >= 0.0 && point.value <= 1.0));
        }
        EXPECT_EQ(counter.points.back().value, 0.0);
      }
    }
    expect_arrows(step, timeline, trace);
    if (seed % 8 == 0) {
      const std::string text = chrome_json(trace);
      EXPECT_EQ(chrome_json(parse_trace(text, "step.json")), text);
    }
    num_arrows += trace.arrows.size();
  }
  EXPECT_GT(num_arrows, kSeeds);
}

// Which of the equal ranks of a group is slow makes no difference.
TEST(RandomSimulation, KnowsNoFirstRank) {
  for (std::uint64_t seed = 0; seed < kSeeds / 8; ++seed) {
    SCOPED_TRACE(seed);
    const RandomStep step(seed);
    SimulationOptions options = step.options();
    if (step.num_ranks() == 1) {
      continue;
    }
    options.slow = {};
    const StepTimeline even = simulate(step.ranks(), options);
    std::vector<Ticks> steps;
    for (std::size_t rank = 0; rank < step.num_ranks(); ++rank) {
      if (even.class_of[rank] == 0 && steps.size() < 3) {
        options.slow = {{static_cast<std::int64_t>(rank), 2.0}};
        steps.push_back(simulate(step.ranks(), options).step);
      }
    }
    EXPECT_EQ(std::ranges::count(steps, steps[0]), std::ssize(steps));
  }
}

}  // namespace
}  // namespace tessera
