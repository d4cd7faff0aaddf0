// What real runs did, by their stamps, beside the simulation of the same programs: the same steps
// in the same order, and nothing before what it comes after there, on its own rank or on others.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/backend/test_forwarding_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/mesh/placement.h"
#include "tessera/ops/all_ops.h"
#include "tessera/program/issue_order.h"
#include "tessera/runtime/launcher.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/simulated_ranks.h"

namespace tessera {
namespace {

// Some instructions take longer than they would.
class DelayingBackend final : public ForwardingBackend {
 public:
  DelayingBackend(Backend& backend, std::uint64_t seed) : ForwardingBackend(backend), seed_(seed) {}

  void run(const Op& op, const Views& views, StreamId stream) override {
    constexpr double kShare = 0.1;
    constexpr double kMicroseconds = 400.0;
    const double drawn = uniform(seed_, count_++);
    if (drawn < kShare) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(static_cast<int>(drawn / kShare * kMicroseconds)));
    }
    ForwardingBackend::run(op, views, stream);
  }

 private:
  std::uint64_t seed_;
  std::atomic<std::uint64_t> count_ = 0;
};

// When the steps of a rank's order ran.
struct StepTimes {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;
};

// By rank, those of the second step. Executors had the order of the simulation, and their streams
// did each of its steps once, in order.
std::vector<StepTimes> measure(
    const RankRun& run,
    const SimulatedRanks& simulated,
    const std::function<std::unique_ptr<Backend>(Backend&)>& wrap,
    const std::function<void()>& before_stamped = [] {}) {
  std::vector<StepTimes> times(static_cast<std::size_t>(run.mesh.num_ranks()));
  launch_ranks(run.mesh.num_ranks(), {}, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const RankPrograms ranks = simulated.ranks();
    const TimedProgram& timed = ranks.programs[ranks.program_of[rank]];
    RankSteps steps(world, run, *timed.program, wrap);
    steps.step();
    before_stamped();
    Executor& executor = steps.executor();
    executor.stamp_steps();
    steps.step();
    StepTimes& own = times[rank];
    own.begin.assign(timed.order.steps.size(), 0);
    own.end.assign(timed.order.steps.size(), 0);
    std::vector<std::size_t> next(timed.program->streams.size(), 0);
    for (const IssueStep& step : timed.order.steps) {
      const std::span<const StepStamp> stamps = executor.stamps().of_stream(step.stream);
      ASSERT_LT(next[step.stream], stamps.size());
      const StepStamp& stamp = stamps[next[step.stream]++];
      const IssueStep& ran = executor.order().steps.at(stamp.step);
      ASSERT_EQ(ran.stream, step.stream);
      ASSERT_EQ(ran.call, step.call);
      ASSERT_EQ(ran.instruction, step.instruction);
      own.begin[timed.order.index_of(step)] = stamp.begin;
      own.end[timed.order.index_of(step)] = stamp.end;
    }
    for (std::size_t stream = 0; stream < next.size(); ++stream) {
      EXPECT_EQ(next[stream], executor.stamps().of_stream(stream).size());
    }
  });
  return times;
}

// Each step after those of its rank that it comes after. How many of these are of other streams.
std::int64_t expect_after_own(const TimedProgram& program, const StepTimes& times) {
  std::vector<std::optional<StepIndex>> last(program.program->streams.size());
  std::int64_t num_edges = 0;
  for (const IssueStep& step : program.order.steps) {
    const StepIndex index = program.order.index_of(step);
    const auto expect_after = [&](StepIndex before) {
      EXPECT_LE(times.end[before], times.begin[index])
          << place_text(*program.program, step) << " after "
          << place_text(*program.program, program.order.steps[before]);
    };
    EXPECT_LE(times.begin[index], times.end[index]);
    for (const std::size_t stream : {std::size_t{step.stream}, std::size_t{0}}) {
      if (const std::optional<StepIndex> before = last[stream]) {
        expect_after(*before);
      }
    }
    for (const StepIndex awaited : program.order.waits_of(step)) {
      expect_after(awaited);
      ++num_edges;
    }
    last[step.stream] = index;
  }
  return num_edges;
}

// A leg of a rank, with when it was in it after it had come to it.
struct RankLeg {
  std::size_t rank = 0;
  StepIndex step = 0;
  Ticks begin = 0;
  Ticks end = 0;
};

// By what the legs have in common, those of each rank that meets there, in order.
using Meetings = std::map<std::string, std::map<std::size_t, std::vector<RankLeg>>>;

std::string name_of(const Mesh& mesh,
                    const TimedProgram& program,
                    std::size_t stream,
                    const Piece& piece,
                    std::size_t rank) {
  if (!piece.is_transfer()) {
    const MeshAxis& axis = mesh.axes[piece.partners];
    const auto place = static_cast<std::int64_t>(rank) / axis.stride % axis.size;
    return format("stream {} along {} of rank {}",
                  stream,
                  axis.name,
                  static_cast<std::int64_t>(rank) - place * axis.stride);
  }
  const auto& [axes, places] = program.channels[piece.partners];
  EXPECT_EQ(axes.size(), 1U);
  const auto axis = std::ranges::find(mesh.axes, axes[0].name, &MeshAxis::name);
  const bool sends = piece.kind == PieceKind::kSend;
  const std::int64_t sender =
      static_cast<std::int64_t>(rank) - (sends ? 0 : (places.to - places.from) * axis->stride);
  return format(
      "channel {} to {} number {} of rank {}", places.from, places.to, places.number, sender);
}

Meetings meetings_of(const RankPrograms& ranks, const StepTimeline& timeline) {
  Meetings meetings;
  for (std::size_t rank = 0; rank < ranks.program_of.size(); ++rank) {
    const TimedProgram& program = ranks.programs[ranks.program_of[rank]];
    const ClassTimeline& own = timeline.of_rank(rank);
    for (std::size_t stream = 0; stream < own.streams.size(); ++stream) {
      std::optional<std::pair<StepIndex, std::uint32_t>> last;
      for (const Span& span : own.streams[stream]) {
        const Piece& piece = program.pieces[span.piece];
        if (!piece.is_leg() || span.kind == SpanKind::kAway) {
          continue;
        }
        std::vector<RankLeg>& legs =
            meetings[name_of(ranks.mesh, program, stream, piece, rank)][rank];
        if (last == std::pair(span.step, span.piece)) {
          legs.back().end = span.end;
        } else {
          legs.push_back({.rank = rank, .step = span.step, .begin = span.begin, .end = span.end});
        }
        last = std::pair(span.step, span.piece);
      }
    }
  }
  return meetings;
}

// Those of a group are in a leg together in the simulation, and none had left it in the run before
// all had come to it. How many meetings there are.
std::int64_t expect_meetings(const Meetings& meetings, std::span<const StepTimes> measured) {
  std::int64_t num_meetings = 0;
  for (const auto& [name, members] : meetings) {
    const std::vector<RankLeg>& first = members.begin()->second;
    EXPECT_GT(members.size(), 1U) << name;
    for (std::size_t i = 0; i < first.size(); ++i, ++num_meetings) {
      std::int64_t last_begin = 0;
      std::int64_t first_end = measured[first[i].rank].end[first[i].step];
      for (const auto& [rank, legs] : members) {
        if (legs.size() != first.size()) {
          ADD_FAILURE() << name << ", rank " << rank << ": " << legs.size() << " legs";
          return num_meetings;
        }
        EXPECT_EQ(legs[i].begin, first[i].begin) << name << ", rank " << rank;
        EXPECT_EQ(legs[i].end, first[i].end) << name << ", rank " << rank;
        last_begin = std::max(last_begin, measured[rank].begin[legs[i].step]);
        first_end = std::min(first_end, measured[rank].end[legs[i].step]);
      }
      EXPECT_LE(last_begin, first_end) << name << ", number " << i;
    }
  }
  return num_meetings;
}

SimulatedRanks simulated_ranks(const RankRun& run) {
  return {run.mesh, cluster_of(run.mesh), rank_programs(run)};
}

// How many waits of streams for others, and how many meetings there are.
std::pair<std::int64_t, std::int64_t> expect_alike(const RankRun& run, std::uint64_t seed) {
  const SimulatedRanks simulated = simulated_ranks(run);
  const StepTimeline timeline = simulated.simulate();
  const std::vector<StepTimes> measured = measure(run, simulated, [seed](Backend& backend) {
    return std::make_unique<DelayingBackend>(backend, seed);
  });
  const RankPrograms ranks = simulated.ranks();
  std::int64_t num_waits = 0;
  for (std::size_t rank = 0; rank < measured.size(); ++rank) {
    const TimedProgram& program = ranks.programs[ranks.program_of[rank]];
    const ClassTimeline& own = timeline.of_rank(rank);
    expect_after_own(program, {.begin = own.begin, .end = own.end});
    num_waits += expect_after_own(program, measured[rank]);
  }
  return {num_waits, expect_meetings(meetings_of(ranks, timeline), measured)};
}

RankRun stamped_run(const MeshDegrees& degrees) {
  return {.model = odd_llama(4),
          .mesh = local_mesh(degrees),
          .microbatches = 4,
          .global_batch = 8,
          .sequence_length = 13};
}

TEST(SimulatedStamps, OfDataRanksComeAfterWhatTheSimulationSays) {
  RankRun run = stamped_run({.data = 2});
  run.placement = preset("fsdp", run.mesh).placement;
  run.overlap = true;
  for (const std::int64_t layers : {1, 2}) {
    run.overlap_layers = layers;
    const auto [num_waits, num_meetings] = expect_alike(run, 1);
    EXPECT_GT(num_waits, 100);
    EXPECT_GT(num_meetings, 50);
  }
}

TEST(SimulatedStamps, OfTensorRanksComeAfterWhatTheSimulationSays) {
  RankRun run = stamped_run({.tensor = 2});
  run.model.kv_heads = run.model.heads;
  run.sequence_parallel = true;
  EXPECT_GT(expect_alike(run, 2).second, 100);
}

TEST(SimulatedStamps, OfPipelinesComeAfterWhatTheSimulationSays) {
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZbV}) {
    for (const std::int64_t data : {1, 2}) {
      SCOPED_TRACE(format("{}, {} data ranks", name(schedule), data));
      RankRun run = stamped_run({.data = data, .pipeline = 2});
      const std::int64_t stages = 2 * default_chunks(schedule);
      run.pipeline.layers.assign(static_cast<std::size_t>(stages), 4 / stages);
      run.pipeline.schedule = schedule;
      run.placement = preset(data > 1 ? "fsdp" : "ddp", run.mesh).placement;
      run.overlap = data > 1;
      const auto [num_waits, num_meetings] = expect_alike(run, 3);
      EXPECT_GE(num_waits, 20);
      EXPECT_GE(num_meetings, 4 * 2 + 2);
    }
  }
}

// A wait that a program's text has no more, and what it was for.
struct DeletedWait {
  Program program;
  StepIndex waiter = 0;   // the first that comes to its place
  StepIndex awaited = 0;  // likewise
};

// The simulation of data ranks of which one step takes for ever.
StepTimeline simulate_slow(const RankRun& run, const Program& program, std::uint32_t slow_place) {
  SimulatedRanks simulated(run.mesh, cluster_of(run.mesh), {program});
  std::uint32_t place = 0;
  simulated.change_pieces(
      [&](std::size_t, const Segment&, std::size_t, std::span<const Piece> own) {
        std::vector<Piece> pieces(own.begin(), own.end());
        if (place++ == slow_place) {
          pieces.at(0).ticks = to_ticks(100.0);
        }
        return pieces;
      });
  return simulated.simulate();
}

bool begins_before_end(const StepTimeline& timeline, StepIndex waiter, StepIndex awaited) {
  return timeline.classes[0].begin[waiter] < timeline.classes[0].end[awaited];
}

// The steps of the first instruction that waits less in `changed`, if nothing else orders them.
std::optional<DeletedWait> freed_by(const RankRun& run, const Program& program, Program changed) {
  const IssueOrder before = issue_order(program);
  const IssueOrder after = issue_order(changed);
  std::vector<bool> seen(before.steps.size(), false);  // by place
  for (const IssueStep& step : before.steps) {
    const bool is_first = !seen[step.place];
    seen[step.place] = true;
    const StepIndex waiter = before.index_of(step);
    if (!is_first || step.stream != 0 ||
        std::ranges::equal(before.waits_of(step), after.waits_of(after.steps[waiter])) ||
        instruction_of(program, step).op->get_if<FenceAttrs>() != nullptr) {
      continue;
    }
    for (const StepIndex awaited : before.waits_of(step)) {
      const IssueStep& other = before.steps[awaited];
      const bool is_first_there = std::ranges::none_of(
          std::span(before.steps).first(awaited),
          [&](const IssueStep& earlier) { return earlier.place == other.place; });
      if (is_first_there && step.works && other.works &&
          begins_before_end(simulate_slow(run, changed, other.place), waiter, awaited)) {
        EXPECT_FALSE(begins_before_end(simulate_slow(run, program, other.place), waiter, awaited));
        return DeletedWait{.program = std::move(changed), .waiter = waiter, .awaited = awaited};
      }
    }
  }
  return std::nullopt;
}

// The first in the text that something needs.
DeletedWait delete_wait(const RankRun& run, const Program& program) {
  const std::string text = to_string(program);
  for (std::size_t at = text.find(" wait "); at != std::string::npos;
       at = text.find(" wait ", at + 1)) {
    const std::size_t end = text.find_first_of(" \n", at + 6);
    std::string shorter = text;
    shorter.erase(at, end - at);
    if (std::optional<DeletedWait> found = freed_by(run, program, parse_program(shorter))) {
      return *std::move(found);
    }
  }
  fail(ErrorCode::kInternal, "no wait of {} is needed", program.name);
}

// Holds an op up until another one has begun, once; or for a while.
class HoldingBackend final : public ForwardingBackend {
 public:
  struct Hold {
    const Op* held = nullptr;
    const Op* until = nullptr;  // null: for a while
    std::atomic<bool> is_on = false;
  };

  HoldingBackend(Backend& backend, const Hold& hold) : ForwardingBackend(backend), hold_(hold) {}

  void run(const Op& op, const Views& views, StreamId stream) override {
    constexpr std::chrono::seconds kLongest(30);
    if (hold_.is_on && &op == hold_.held && hold_.until == nullptr) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } else if (hold_.is_on && &op == hold_.held) {
      std::unique_lock lock(mutex_);
      begun_.wait_for(lock, kLongest, [this] { return has_begun_; });
    } else if (hold_.is_on && &op == hold_.until) {
      const std::scoped_lock lock(mutex_);
      has_begun_ = true;
      begun_.notify_all();
    }
    ForwardingBackend::run(op, views, stream);
  }

 private:
  const Hold& hold_;
  std::mutex mutex_;
  std::condition_variable begun_;
  bool has_begun_ = false;
};

TEST(SimulatedStamps, AWaitThatATextLacksIsNoneInBoth) {
  RankRun run = stamped_run({.data = 2});
  run.placement = preset("fsdp", run.mesh).placement;
  run.overlap = true;
  std::vector<Program> programs = rank_programs(run);
  const DeletedWait deleted = delete_wait(run, programs.at(0));
  for (const bool is_deleted : {false, true}) {
    SCOPED_TRACE(is_deleted);
    const SimulatedRanks simulated(
        run.mesh, cluster_of(run.mesh), {is_deleted ? deleted.program : programs[0]});
    const TimedProgram& timed = simulated.ranks().programs[0];
    const auto op_of = [&](StepIndex step) {
      return instruction_of(*timed.program, timed.order.steps[step]).op.get();
    };
    HoldingBackend::Hold hold;
    hold.held = op_of(deleted.awaited);
    hold.until = is_deleted ? op_of(deleted.waiter) : nullptr;
    const std::vector<StepTimes> measured = measure(
        run,
        simulated,
        [&](Backend& backend) { return std::make_unique<HoldingBackend>(backend, hold); },
        [&] { hold.is_on = true; });
    for (const StepTimes& rank : measured) {
      EXPECT_EQ(rank.begin[deleted.waiter] < rank.end[deleted.awaited], is_deleted);
    }
  }
}

}  // namespace
}  // namespace tessera
