#include "tessera/simulate/simulate.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/test_error.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/simulate/attribution.h"
#include "tessera/simulate/test_steps.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Piece send(std::uint32_t channel, std::uint32_t level, Ticks moving) {
  return {.kind = PieceKind::kSend, .partners = channel, .level = level, .moving = moving};
}

Piece receive(std::uint32_t channel, std::uint32_t level, Ticks moving) {
  return {.kind = PieceKind::kReceive, .partners = channel, .level = level, .moving = moving};
}

TestRanks one_rank(const TestStep& step) {
  TestRanks ranks({1}, {});
  ranks.add(step, 1);
  return ranks;
}

TEST(Simulate, RunsTheStepsOfAStreamOneAfterTheOther) {
  TestStep step;
  step.add(0, {kernel(3), kernel(4)});
  step.add(0, {});
  step.add(0, {kernel(5)});
  const StepTimeline timeline = one_rank(step).simulate();
  EXPECT_EQ(timeline.step, 12);
  EXPECT_THAT(timeline.classes[0].begin, ElementsAre(0, 7, 7));
  EXPECT_THAT(timeline.classes[0].end, ElementsAre(7, 7, 12));
}

// Another stream's step is issued when stream 0 has done all that stands before it.
TEST(Simulate, IssuesStreamsAsTheExecutorDoes) {
  TestStep step(3);
  const EventId a = step.add(0, {kernel(10, 0.5)});
  const EventId b = step.add(1, {kernel(20, 0.5)});
  step.add(2, {kernel(1, 0)}, {b});
  step.add(0, {kernel(2, 0.5)}, {a});
  step.add(0, {kernel(3, 0.5)}, {b});
  step.add(1, {kernel(4, 0.5)});
  const StepTimeline timeline = one_rank(step).simulate();
  EXPECT_THAT(timeline.classes[0].begin, ElementsAre(0, 10, 30, 10, 30, 33));
  EXPECT_EQ(timeline.step, 37);
}

TEST(Simulate, SharesTheDevice) {
  TestStep step(2);
  step.add(1, {kernel(30)});
  step.add(0, {kernel(10)});
  const StepTimeline timeline = one_rank(step).simulate();
  // Each at half of its speed until the short one has ended.
  EXPECT_THAT(timeline.classes[0].end, ElementsAre(40, 20));
  EXPECT_EQ(one_rank(step).simulate({.contention = false, .slow = {}}).step, 30);

  // One that reads memory beside one that computes, which needs some of it as well.
  TestStep mixed(2);
  mixed.add(1, {kernel(30, 0.0, 1.0)});
  mixed.add(0, {kernel(10, 1.0, 0.5)});
  // Two thirds of all speed: 10 take 15, and the other has done 10 of its 30 then. Ends are rounded
  // up to whole ticks.
  EXPECT_THAT(one_rank(mixed).simulate().classes[0].end, ElementsAre(35 + 1, 15 + 1));
}

TEST(Simulate, WaitsForTheHost) {
  TestStep step;
  step.add(0, {kernel(1)});
  step.add(0, {kernel(100)});
  step.add(0, {kernel(1)});
  const StepTimeline timeline = one_rank(step).simulate({.slow = {}, .issue = 10});
  EXPECT_THAT(timeline.classes[0].begin, ElementsAre(0, 10, 110));

  // It issues what talks to others later, and all that comes after that.
  TestRanks ranks({2}, {.data = 2});
  TestStep talking;
  talking.add(0, {collective(0, 0, 1, 0)});
  talking.add(0, {kernel(1)});
  ranks.add(talking, 2);
  EXPECT_THAT(ranks.simulate({.slow = {}, .issue = 10, .issue_leg = 30}).classes[0].begin,
              ElementsAre(30, 40));
}

// A group talks when the last of its ranks has come, and ends together.
TEST(Simulate, MeetsInCollectives) {
  TestRanks ranks({4}, {.data = 2, .pipeline = 2});
  const auto step_of = [](Ticks before) {
    TestStep step;
    step.add(0, {kernel(before)});
    step.add(0, {collective(0, 0, 5, 7), kernel(1)});
    return step;
  };
  const TestStep first = step_of(10);
  const TestStep second = step_of(30);
  ranks.add(first, 1);
  ranks.add(second, 1);
  ranks.add(first, 2);
  const StepTimeline timeline = ranks.simulate();
  // Ranks 0 and 1 are a group, and 2 and 3; the latter are alike.
  EXPECT_THAT(timeline.class_of, ElementsAre(0, 1, 2, 2));
  EXPECT_EQ(timeline.of_rank(0).last(), 30 + 12 + 1);
  EXPECT_EQ(timeline.of_rank(1).last(), 43);
  EXPECT_EQ(timeline.of_rank(3).last(), 10 + 12 + 1);
  EXPECT_EQ(timeline.step, 43);
  const Attribution causes = attribute(ranks.ranks(), timeline, 0);
  ASSERT_EQ(causes.rows.size(), 2U);
  EXPECT_EQ(causes.rows[0], (CauseRow{.cause = Cause::kProduct, .ticks = 11}));
  EXPECT_EQ(causes.rows[1],
            (CauseRow{.cause = Cause::kCollective,
                      .where = 0,
                      .ticks = 32,
                      .latency = 5,
                      .moving = 7,
                      .away = 20}));
}

// 4 of a node send over its one link; alone, one has all of it.
TEST(Simulate, SharesTheLinkOfANode) {
  TestRanks ranks({4, 2}, {.data = 8});
  ranks.cluster.levels[1].shared = true;
  TestStep step;
  step.add(0, {collective(1, 1, 5, 100)});
  ranks.add(step, 8);
  EXPECT_EQ(ranks.mesh.axes[1].level, "node");
  EXPECT_EQ(ranks.simulate().classes.size(), 1U);
  EXPECT_EQ(ranks.simulate().step, 5 + 4 * 100);
  EXPECT_EQ(ranks.simulate({.contention = false, .slow = {}}).step, 105);
  ranks.cluster.levels[1].shared = false;
  EXPECT_EQ(ranks.simulate().step, 105);
}

// Two streams on one level have half of it each; on two levels nothing is shared.
TEST(Simulate, SharesALinkAmongStreams) {
  TestRanks ranks({2, 2}, {.data = 4});
  TestStep step(2);
  step.add(1, {collective(0, 0, 0, 100)});
  step.add(0, {collective(0, 0, 0, 40)});
  ranks.add(step, 4);
  EXPECT_THAT(ranks.simulate().classes[0].end, ElementsAre(140, 80));

  TestRanks apart({2, 2}, {.data = 4});
  TestStep two(2);
  two.add(1, {collective(0, 0, 0, 100)});
  two.add(0, {collective(1, 1, 0, 40)});
  apart.add(two, 4);
  EXPECT_THAT(apart.simulate().classes[0].end, ElementsAre(100, 40));
}

// A library's collective takes part of the device, also while it waits for others.
TEST(Simulate, GivesALibraryPartOfTheDevice) {
  TestRanks ranks({2}, {.data = 2});
  ranks.cluster.device.curve = DeviceCurve{.comm_share = 0.25};
  TestStep step(2);
  Piece leg = collective(0, 0, 0, 1000);
  leg.native = true;
  step.add(1, {leg});
  step.add(0, {kernel(300)});
  ranks.add(step, 2);
  EXPECT_THAT(ranks.simulate().classes[0].end, ElementsAre(1000, 400));
}

TestRanks pipeline_of_two(std::size_t num_data, bool shared) {
  TestRanks ranks({static_cast<std::int64_t>(num_data), 2},
                  {.data = static_cast<std::int64_t>(num_data), .pipeline = 2});
  ranks.cluster.levels[1].shared = shared;
  TestStep first;
  first.channel({"pipeline", 2}, 0, 1);
  first.add(0, {kernel(50), send(0, 1, 10)});
  TestStep second;
  second.channel({"pipeline", 2}, 0, 1);
  second.add(0, {receive(0, 1, 10), kernel(20)});
  ranks.add(first, num_data);
  ranks.add(second, num_data);
  return ranks;
}

TEST(Simulate, SendsFromRankToRank) {
  const TestRanks ranks = pipeline_of_two(4, false);
  const StepTimeline timeline = ranks.simulate();
  EXPECT_EQ(timeline.classes.size(), 2U);
  EXPECT_EQ(timeline.of_rank(0).last(), 60);
  EXPECT_EQ(timeline.of_rank(7).last(), 80);
  const Attribution causes = attribute(ranks.ranks(), timeline, 1);
  EXPECT_THAT(
      causes.rows,
      ElementsAre(CauseRow{.cause = Cause::kProduct, .ticks = 20},
                  CauseRow{.cause = Cause::kTransfer, .where = 1, .ticks = 10, .moving = 10},
                  CauseRow{.cause = Cause::kFill, .ticks = 50}));
  EXPECT_EQ(attribute(ranks.ranks(), timeline, 0).rows.back(),
            (CauseRow{.cause = Cause::kOthers, .ticks = 20}));
  // Four at a link of their node.
  EXPECT_EQ(pipeline_of_two(4, true).simulate().step, 50 + 40 + 20);
}

// What comes after a transfer is issued when that has ended: the host does not run ahead meanwhile.
TEST(Simulate, HostsWaitForTransfers) {
  const auto begins = [](std::size_t stream) {
    TestRanks ranks({1, 2}, {.data = 1, .pipeline = 2});
    TestStep first(2);
    first.channel({"pipeline", 2}, 0, 1);
    first.add(0, {kernel(50), send(0, 1, 10)});
    TestStep second(2);
    second.channel({"pipeline", 2}, 0, 1);
    const EventId received = second.add(stream, {receive(0, 1, 10)});
    second.add(0, {kernel(1)}, {received});
    second.add(0, {kernel(1)});
    ranks.add(first, 1);
    ranks.add(second, 1);
    return ranks.simulate({.slow = {}, .issue = 7}).of_rank(1).begin;
  };
  EXPECT_THAT(begins(0), ElementsAre(0, 60, 67));
  EXPECT_THAT(begins(1), ElementsAre(0, 60, 67));
}

// A slow rank, and those that it meets, are no longer like the others.
TEST(Simulate, SetsSlowRanksApart) {
  TestRanks ranks({4, 4}, {.data = 16});
  TestStep step;
  step.add(0, {kernel(100)});
  step.add(0, {collective(0, 0, 0, 1)});
  step.add(0, {collective(1, 1, 0, 1)});
  ranks.add(step, 16);
  const StepTimeline timeline = ranks.simulate({.slow = {{5, 1.5}}});
  // Itself, its node, its column, and the rest.
  EXPECT_EQ(timeline.classes.size(), 4U);
  EXPECT_EQ(timeline.step, 152);
  EXPECT_EQ(timeline.of_rank(5).end[0], 150);
  EXPECT_EQ(timeline.of_rank(4).end[1], 151);
  EXPECT_EQ(timeline.of_rank(0).end[1], 101);
  EXPECT_EQ(timeline.of_rank(0).end[2], 152);
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { ranks.simulate({.slow = {{16, 1.5}}}); }),
            "slow rank 16 (--slow): expected one of the ranks 0 to 15");
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { ranks.simulate({.slow = {{1, 0.005}}}); }),
            "slow rank 1 (--slow) takes 0.005 times as long: expected 0.01 to 1000000");
}

// Ranks as threads of one machine have its cores.
TEST(Simulate, SharesTheHost) {
  TestRanks ranks({4}, {.data = 4});
  ranks.cluster.device.memory_bandwidth = 10.0;
  ranks.cluster.host = {.cores = 2, .memory_bandwidth = 20.0};
  TestStep step;
  step.add(0, {kernel(100)});
  ranks.add(step, 4);
  EXPECT_EQ(ranks.simulate().step, 200);
  EXPECT_EQ(ranks.simulate({.slow = {}, .threads = 2}).step, 400);
  ranks.cluster.host.cores = 8;
  EXPECT_EQ(ranks.simulate().step, 100);
  TestRanks streaming({4}, {.data = 4});
  streaming.cluster = ranks.cluster;
  TestStep reading;
  reading.add(0, {kernel(100, 0.0, 1.0)});
  streaming.add(reading, 4);
  EXPECT_EQ(streaming.simulate().step, 200);
}

TEST(Simulate, SaysWhoWaitsForEver) {
  TestRanks ranks({2}, {.data = 2});
  TestStep talks;
  talks.add(0, {kernel(1)});
  talks.add(0, {collective(0, 0, 0, 1)});
  TestStep silent;
  silent.add(0, {kernel(1)});
  ranks.add(talks, 1);
  ranks.add(silent, 1);
  EXPECT_EQ(error_of(ErrorCode::kInternal, [&] { ranks.simulate(); }),
            "ranks wait for each other for ever: rank 0 on stream stream at segment step, "
            "microbatch 0, instruction 1: fence");

  TestRanks unequal({2}, {.data = 2});
  TestStep longer;
  longer.add(0, {kernel(1)});
  longer.add(0, {collective(0, 0, 0, 2)});
  unequal.add(talks, 1);
  unequal.add(longer, 1);
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { unequal.simulate(); }),
              HasSubstr("collectives of the ranks do not match: found rank "));

  // One that takes as long, and is another one.
  TestRanks others({2}, {.data = 2});
  TestStep other;
  other.add(0, {kernel(1)});
  Piece leg = collective(0, 0, 0, 1);
  leg.what = 1;
  other.add(0, {leg});
  others.add(talks, 1);
  others.add(other, 1);
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { others.simulate(); }),
              HasSubstr("collectives of the ranks do not match: found rank "));
}

// While stream 0 waits, what it waits for says why.
TEST(Attribute, FollowsTheWaits) {
  TestRanks ranks({2}, {.data = 2});
  TestStep step(3);
  const EventId gathered = step.add(1, {collective(0, 0, 3, 40)});
  const EventId folded = step.add(2, {kernel(6, 0.0, 0.5)}, {gathered});
  step.add(0, {kernel(10)});
  step.add(0, {kernel(5)}, {folded});
  ranks.add(step, 2);
  const StepTimeline timeline = ranks.simulate();
  EXPECT_EQ(timeline.step, 43 + 6 + 5);
  const Attribution causes = attribute(ranks.ranks(), timeline, 0);
  EXPECT_THAT(
      causes.rows,
      ElementsAre(CauseRow{.cause = Cause::kProduct, .ticks = 15 + 6},
                  CauseRow{.cause = Cause::kCollective, .ticks = 33, .latency = 0, .moving = 33}));
  EXPECT_THAT(causes.links, ElementsAre(LinkRow{.busy = 43}));
  EXPECT_EQ(causes.total(), timeline.step);
}

// Ranks of a pipeline that come early to what all of them do after the last microbatch are idle.
TEST(Attribute, DrainsWhereAPipelineMeets) {
  TestRanks ranks({2}, {.pipeline = 2});
  const auto step_of = [](Ticks before) {
    TestStep step;
    step.add(0, {kernel(before)});
    step.add(0, {collective(0, 0, 5, 7)});
    return step;
  };
  ranks.add(step_of(10), 1);
  ranks.add(step_of(30), 1);
  EXPECT_THAT(
      attribute(ranks.ranks(), ranks.simulate(), 0).rows,
      ElementsAre(CauseRow{.cause = Cause::kProduct, .ticks = 10},
                  CauseRow{.cause = Cause::kCollective, .ticks = 12, .latency = 5, .moving = 7},
                  CauseRow{.cause = Cause::kDrain, .ticks = 20}));
}

}  // namespace
}  // namespace tessera
