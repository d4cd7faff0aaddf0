#include "tessera/cost/collective_time.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/generators.h"
#include "tessera/base/random.h"
#include "tessera/base/test_error.h"
#include "tessera/cost/constants.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/collective_legs.h"
#include "tessera/plan/compile.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/operand_types.h"
#include "tessera/program/step_traffic.h"
#include "tessera/state/test_training.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr auto kOwn = CollectiveStyle::kOwn;
constexpr auto kNative = CollectiveStyle::kNative;

TensorType floats(std::int64_t count) {
  return {.dtype = DType::kF32, .dims = {{.name = "n", .bound = count}}};
}

CollectiveUse use_of(const OpRef& op, const TensorType& operand) {
  return collectives(*op, TensorTypes{operand}).at(0);
}

// 8 bytes/s, a second to start.
Level plain_level() {
  return {.name = "plain", .size = 64, .bandwidth = 8.0, .latency = 1.0};
}

LegWork gather(std::int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  return {.axis = "data",
          .kind = CollectiveKind::kAllGather,
          .ranks = ranks,
          .bytes = bytes,
          .sent = (n - 1.0) / n * bytes};
}

LegWork all_reduce(std::int64_t ranks, double bytes) {
  LegWork work = gather(ranks, bytes);
  work.kind = CollectiveKind::kAllReduce;
  work.sent *= 2.0;
  return work;
}

double seconds(const LegTime& time) {
  return time.latency + time.moving;
}

double seconds(const Level& level, const LegWork& work, CollectiveStyle style) {
  return seconds(leg_time(level, work, style));
}

// 1024 floats: halves of them between the ranks of a, then each half between those of b.
TEST(LegWorks, OfAnAllReduceGoOutAndBack) {
  const CollectiveUse use =
      use_of(make_op(AllReduceAttrs{.axes = {{"a", 2}, {"one", 1}, {"b", 4}}}), floats(1024));
  const LegWork outwards = {
      .axis = "a", .kind = CollectiveKind::kReduceScatter, .ranks = 2, .bytes = 4096, .sent = 2048};
  const LegWork outmost = {
      .axis = "b", .kind = CollectiveKind::kReduceScatter, .ranks = 4, .bytes = 2048, .sent = 1536};
  LegWork back = outmost;
  LegWork inwards = outwards;
  back.kind = inwards.kind = CollectiveKind::kAllGather;
  EXPECT_THAT(leg_works(use), ElementsAre(outwards, outmost, back, inwards));
}

TEST(LegWorks, OfAnAllReduceAlongOneAxisAreOne) {
  EXPECT_THAT(leg_works(use_of(make_op(AllReduceAttrs{.axes = {{"data", 8}}}), floats(1024))),
              ElementsAre(all_reduce(8, 4096)));
  // One float, in parts of whole cache lines.
  LegWork loss = all_reduce(8, 8 * 64);
  loss.bytes = 4;
  EXPECT_THAT(leg_works(use_of(make_op(AllReduceAttrs{.axes = {{"data", 8}}}), floats(1))),
              ElementsAre(loss));
}

TEST(LegWorks, OfAGatherGoInwards) {
  GatherSlicesAttrs attrs = {.axes = {{"pair", 2}, {"node", 4}}, .type = floats(2048)};
  LegWork node = gather(4, 4096);
  LegWork pair = gather(2, 8192);
  node.axis = "node";
  pair.axis = "pair";
  EXPECT_THAT(leg_works(use_of(make_op(attrs), floats(256))), ElementsAre(node, pair));

  // A byte for each element between nodes, and a float for 256 of them.
  attrs.wire = {WireFormat::kF32, WireFormat::kInt8};
  node.bytes = 4 * (256 + 4);
  node.sent = 3 * (256 + 4);
  EXPECT_THAT(leg_works(use_of(make_op(attrs), floats(256))), ElementsAre(node, pair));
}

TEST(LegWorks, OfATransferAreAlikeAtBothEnds) {
  const AxisSizes axes = {{"pipeline", 4}};
  const LegWork sends =
      leg_works(use_of(make_op(SendAttrs{.axes = axes, .from = 1, .to = 2}), floats(64))).at(0);
  const LegWork receives =
      leg_works(
          collectives(*make_op(ReceiveAttrs{.axes = axes, .from = 1, .to = 2, .type = floats(64)}),
                      TensorTypes{})
              .at(0))
          .at(0);
  EXPECT_EQ(sends.bytes, 256);
  EXPECT_EQ(sends.sent, 256);
  EXPECT_EQ(receives.sent, 0);
  for (const CollectiveStyle style : {kOwn, kNative}) {
    EXPECT_EQ(leg_time(plain_level(), sends, style), (LegTime{.latency = 1.0, .moving = 32.0}));
    EXPECT_EQ(leg_time(plain_level(), receives, style), leg_time(plain_level(), sends, style));
  }
}

// By axis.
std::map<std::string, double> sent_in(const CollectiveUse& use) {
  std::map<std::string, double> sent;
  for (const LegWork& work : leg_works(use)) {
    sent[work.axis] += work.sent;
  }
  return sent;
}

TEST(LegWorks, SendWhatTheUseSends) {
  std::uint64_t drawn = 0;
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int64_t>(uniform(24, drawn++) * static_cast<double>(below));
  };
  for (int i = 0; i < 1000; ++i) {
    AxisSizes axes;
    for (const char* name : {"pair", "node", "cluster"}) {
      axes.push_back({.name = name, .size = 1 + draw(6)});
    }
    axes.resize(static_cast<std::size_t>(1 + draw(3)));
    const std::int64_t count = 1 + draw(100'000);
    const std::int64_t slice = padded_elements(count, num_ranks(axes)) / num_ranks(axes);
    const WireFormats wire(draw(2) == 0 ? 0 : 1, WireFormat::kInt4);
    for (const CollectiveUse& use :
         {use_of(make_op(AllReduceAttrs{.axes = axes}), floats(count)),
          use_of(make_op(AllReduceSlicesAttrs{.axes = axes, .wire = wire}), floats(count)),
          use_of(make_op(GatherSlicesAttrs{.axes = axes, .type = floats(count), .wire = wire}),
                 floats(slice)),
          use_of(make_op(ReduceSlicesAttrs{.axes = axes, .slice = slice, .wire = wire}),
                 floats(count))}) {
      const std::map<std::string, double> sent = sent_in(use);
      for (const AxisSize& axis : axes) {
        const auto found = sent.find(axis.name);
        EXPECT_EQ(found == sent.end() ? 0.0 : found->second,
                  static_cast<double>(sent_along(use, axis)));
      }
      for (const LegWork& work : leg_works(use)) {
        EXPECT_GT(work.bytes, 0.0);
        EXPECT_LE(work.bytes, static_cast<double>(use.bytes + num_ranks(axes) * 64));
      }
    }
  }
}

// What all collectives of a step send along an axis, and how often its ranks meet there.
void expect_legs_of(const Program& program) {
  const IssueOrder order = issue_order(program);
  std::vector<std::string> met;
  std::map<std::string, double> sent;
  for (const IssueStep& step : order.steps) {
    if (!step.works) {
      continue;
    }
    const Instruction& instruction = instruction_of(program, step);
    for (const CollectiveUse& use : collectives(*instruction.op, operand_types(instruction))) {
      for (const LegWork& work : leg_works(use)) {
        met.push_back(work.axis);
        const std::string axis =
            use.channel ? std::string(crossed_axis(use.axes, *use.channel)) : work.axis;
        sent[axis] += work.sent * static_cast<double>(work.count);
      }
    }
  }
  std::vector<std::string> called;
  for (const CollectiveCall& call : collective_calls(program).calls) {
    called.push_back(call.axis);
  }
  EXPECT_FALSE(met.empty());
  EXPECT_EQ(met, called);
  for (const auto& [axis, bytes] : step_traffic(program)) {
    EXPECT_EQ(sent[axis], static_cast<double>(bytes[0] + bytes[1] + bytes[2])) << axis;
  }
}

TEST(LegWorks, OfProgramsAreTheirCalls) {
  Plan plan = {.model = tiny_llama(), .sequence_length = 6, .num_microbatches = 2};
  for (const std::string_view placement : {"ddp", "fsdp", "zeropp", "topo"}) {
    plan.layout.mesh = make_mesh(test_cluster({2, 2, 2}), {.data = 4, .tensor = 2});
    const PlacementPreset scheme = preset(placement, plan.layout.mesh);
    plan.layout.placement = scheme.placement;
    plan.layout.wires = scheme.wires;
    expect_legs_of(compile(plan, cpu_target()).step);
  }
  plan.layout = {.mesh = make_mesh(test_cluster({2, 2}), {.data = 2, .pipeline = 2})};
  plan.pipeline = PipelinePlan{.table = one_f_one_b(2, 2), .layers = {1, 1}};
  for (const Programs& programs : compile_run(plan, cpu_target())) {
    expect_legs_of(programs.step);
  }
}

TEST(LegTime, OfOwnLegsIsThatOfWhatIsSent) {
  Level level = plain_level();
  EXPECT_EQ(leg_time(level, gather(4, 32), kOwn), (LegTime{.latency = 2.0, .moving = 3.0}));
  EXPECT_EQ(leg_time(level, all_reduce(4, 32), kOwn), (LegTime{.latency = 4.0, .moving = 6.0}));
  LegWork often = gather(4, 32);
  often.count = 5;
  EXPECT_EQ(leg_time(level, often, kOwn), (LegTime{.latency = 10.0, .moving = 15.0}));
  often.count = 0;
  EXPECT_EQ(leg_time(level, often, kOwn), LegTime{});

  level.efficiency = 0.5;
  EXPECT_DOUBLE_EQ(leg_time(level, gather(4, 32), kOwn).moving, 6.0);
  level.half = 32;
  EXPECT_DOUBLE_EQ(leg_time(level, gather(4, 32), kOwn).moving, 12.0);
  EXPECT_DOUBLE_EQ(leg_time(level, gather(4, 64), kOwn).moving,
                   12.0 * (1.0 + std::pow(0.5, kHalfExponent)));
}

TEST(LegTime, IsThatOfTheLatencyWhereNothingMoves) {
  Level level = plain_level();
  level.half = 10;
  for (const CollectiveStyle style : {kOwn, kNative}) {
    EXPECT_EQ(leg_time(level, gather(2, 0), style), LegTime{.latency = 1.0});
  }
  level.bandwidth = 0.0;
  for (const CollectiveStyle style : {kOwn, kNative}) {
    EXPECT_EQ(leg_time(level, gather(2, 32), style), LegTime{.latency = 1.0});
    EXPECT_EQ(leg_time(level, all_reduce(2, 32), style), LegTime{.latency = 2.0});
  }
}

// Of large ones, a rank sends (n - 1) / n of all bytes; of sums and their gather, twice as much.
TEST(LegTime, OfARingIsExact) {
  Level level = plain_level();
  level.latency = 0.0;
  for (std::int64_t ranks = 2; ranks <= 64; ++ranks) {
    const auto n = static_cast<double>(ranks);
    const double bytes = 8.0 * n * n;
    EXPECT_EQ(leg_time(level, gather(ranks, bytes), kNative).moving, n * (n - 1.0));
    EXPECT_EQ(leg_time(level, all_reduce(ranks, bytes), kNative).moving, 2.0 * n * (n - 1.0));
  }
}

// What a few bytes take is hops: to the root of a tree and back, or round a ring.
TEST(LegTime, OfSmallOnesIsThatOfHops) {
  const Level level = plain_level();
  EXPECT_DOUBLE_EQ(leg_time(level, all_reduce(16, 1e-9), kNative).latency, 8.0);
  EXPECT_DOUBLE_EQ(leg_time(level, gather(4, 1e-9), kNative).latency, 2.0);
  EXPECT_DOUBLE_EQ(leg_time(level, gather(36, 1e-9), kNative).latency, 15.0);
  // Through a tree until a ring of 16 is faster, which sends less.
  EXPECT_DOUBLE_EQ(leg_time(level, all_reduce(16, 1e6), kNative).latency, 2 * kRingStep * 15);
  // Some bytes are flags; with few bytes that is soon made up for.
  Level slow_start = level;
  slow_start.half = 1e6;
  EXPECT_DOUBLE_EQ(leg_time(slow_start, all_reduce(4, 1000), kNative).moving,
                   2 * 1000 * kSmallBytes / 8 * (1 + std::pow(kSmallHalf * 1000, kHalfExponent)));
}

TEST(LegTime, OfSwitchesThatAddUpIsThatOfFewerBytes) {
  Level level = plain_level();
  level.switch_reduces = true;
  Level plain = plain_level();
  for (const std::int64_t ranks : {2, 3, 4, 5, 8, 64}) {
    const auto n = static_cast<double>(ranks);
    const LegTime time = leg_time(level, all_reduce(ranks, 8e6), kNative);
    if (ranks < kSwitchRanks) {
      EXPECT_EQ(time, leg_time(plain, all_reduce(ranks, 8e6), kNative));
    } else {
      EXPECT_DOUBLE_EQ(time.moving, (n + 1) / n * 1e6 / kSwitchShare);
      EXPECT_EQ(time.latency, 2 * std::log2(n));
    }
    EXPECT_EQ(leg_time(level, gather(ranks, 8e6), kNative),
              leg_time(plain, gather(ranks, 8e6), kNative));
    EXPECT_EQ(leg_time(level, all_reduce(ranks, 8e6), kOwn),
              leg_time(plain, all_reduce(ranks, 8e6), kOwn));
  }
}

// Two nodes of four devices, of which each has a link to the other node.
TEST(FlatTime, IsThatOfTheSlowestLevel) {
  std::vector<Level> levels = {plain_level(), plain_level()};
  levels[1].bandwidth = 1.0;
  CollectiveUse use = {
      .axes = {{"node", 4}, {"cluster", 2}}, .kind = CollectiveKind::kAllGather, .bytes = 6400};
  // Of the hops of a ring, 6 are inside a node.
  EXPECT_EQ(flat_time(levels, use),
            (LegTime{.latency = kRingStep * 6 + 1, .moving = 6400 * 7.0 / 8 / 4}));
  levels[1].bandwidth = 4.0;
  EXPECT_EQ(flat_time(levels, use).moving, 6400 * 7.0 / 8 / 8);
  levels[1].shared = true;
  EXPECT_EQ(flat_time(levels, use).moving, 6400 * 7.0 / 8 / 4);
  use.kind = CollectiveKind::kAllReduce;
  EXPECT_EQ(flat_time(levels, use).moving, 2 * 6400 * 7.0 / 8 / 4);
  use.count = 3;
  EXPECT_EQ(flat_time(levels, use).moving, 3 * 2 * 6400 * 7.0 / 8 / 4);
  use.bytes = 0;
  EXPECT_EQ(flat_time(levels, use), (LegTime{.latency = 3 * 2 * 3.0}));
}

TEST(FlatTime, OfOneLevelIsThatOfItsLeg) {
  Level level = plain_level();
  level.switch_reduces = true;
  for (const double bytes : {1.0, 1e3, 1e6}) {
    const CollectiveUse use = {.axes = {{"one", 1}, {"data", 8}, {"none", 1}},
                               .kind = CollectiveKind::kAllReduce,
                               .bytes = static_cast<std::int64_t>(bytes)};
    // 8 ranks with nothing inside or outside them.
    EXPECT_EQ(flat_time(std::vector<Level>(3, level), use),
              leg_time(level, all_reduce(8, bytes), kNative));
  }
  const CollectiveUse alone = {.axes = {{"one", 1}}, .bytes = 8};
  EXPECT_EQ(flat_time(std::vector<Level>(1, level), alone), LegTime{});
}

TEST(FlatTime, RefusesWhatNoRingDoes) {
  const std::vector<Level> levels = {plain_level(), plain_level()};
  CollectiveUse use = {.axes = {{"a", 2}, {"b", 2}}, .kind = CollectiveKind::kAllToAll};
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { flat_time(levels, use); }),
            "all_to_all over all levels at once, expected a gather or a reduction");
  use.kind = CollectiveKind::kAllGather;
  use.axes.pop_back();
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { flat_time(levels, use); }),
            "2 levels for 1 axes, expected one for each");
}

// More bytes never take less time, nor does a slower level; a collective is no faster as several.
TEST(LegTime, GrowsWithItsBytesAndFallsWithTheBandwidth) {
  std::uint64_t drawn = 0;
  const auto draw = [&](double most) { return uniform(7, drawn++) * most; };
  for (int i = 0; i < 2000; ++i) {
    Level level = {.name = "any",
                   .size = 64,
                   .bandwidth = std::exp2(draw(40.0)),
                   .latency = std::exp2(-draw(30.0)),
                   .half = std::exp2(draw(30.0)),
                   .efficiency = 0.1 + draw(0.9),
                   .switch_reduces = draw(1.0) < 0.5};
    const auto ranks = static_cast<std::int64_t>(2.0 + draw(62.0));
    const double bytes = std::exp2(draw(40.0));
    const double more = bytes * (1.0 + draw(3.0));
    const auto make = draw(1.0) < 0.5 ? gather : all_reduce;
    for (const CollectiveStyle style : {kOwn, kNative}) {
      const double before = seconds(level, make(ranks, bytes), style);
      EXPECT_LE(before, seconds(level, make(ranks, more), style));
      LegWork parts = make(ranks, bytes / 4.0);
      parts.count = 4;
      EXPECT_LE(before, seconds(level, parts, style) * (1.0 + 1e-12));
      Level faster = level;
      faster.bandwidth *= 1.0 + draw(3.0);
      EXPECT_LE(seconds(faster, make(ranks, bytes), style), before);
      Level better = level;
      better.efficiency += draw(1.0 - level.efficiency);
      EXPECT_LE(seconds(better, make(ranks, bytes), style), before);
    }
  }
}

}  // namespace
}  // namespace tessera
