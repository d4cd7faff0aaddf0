#include "tessera/simulate/trace.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/test_error.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/simulate/test_steps.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Ticks ticks_of(const json& micros) {
  return std::llround(micros.get<double>() * 1e6);
}

StepTrace traced(const TestRanks& ranks) {
  return trace_of(ranks.ranks(), ranks.simulate());
}

// Ranks 0 and 1 are a group, of which rank 1 is late; 2 and 3 are alike.
TestRanks late_rank() {
  TestRanks ranks({4}, {.data = 2, .pipeline = 2});
  const auto step_of = [](Ticks before) {
    TestStep step(2);
    const EventId done = step.add(1, {kernel(before)});
    step.add(0, {collective(0, 0, 5, 7), kernel(1)}, {done});
    return step;
  };
  ranks.add(step_of(10), 1);
  ranks.add(step_of(30), 1);
  ranks.add(step_of(10), 2);
  return ranks;
}

TEST(Trace, HasAProcessForEachClassAndASpanForEachStep) {
  const StepTrace trace = traced(late_rank());
  EXPECT_EQ(trace.step, 43);
  ASSERT_EQ(trace.processes.size(), 3U);
  EXPECT_EQ(trace.processes[0].name, "rank 0");
  EXPECT_EQ(trace.processes[2].name, "rank 2 x2");
  const std::vector<TraceThread>& threads = trace.processes[0].threads;
  ASSERT_EQ(threads.size(), 2U);
  const auto leg = [](Ticks begin, Ticks end, SpanKind part) {
    return TraceSpan{
        .begin = begin, .end = end, .step = 1, .kind = TraceKind::kCollective, .part = part};
  };
  EXPECT_THAT(
      threads[0].spans,
      ElementsAre(leg(10, 30, SpanKind::kAway),
                  leg(30, 35, SpanKind::kLatency),
                  leg(35, 42, SpanKind::kMoving),
                  TraceSpan{.begin = 42, .end = 43, .step = 1, .kind = TraceKind::kProduct}));
  EXPECT_THAT(
      threads[1].spans,
      ElementsAre(TraceSpan{.begin = 0, .end = 10, .step = 0, .kind = TraceKind::kProduct}));
}

TEST(Trace, NamesPlacesAsProgramsDo) {
  const TestRanks ranks = late_rank();
  const StepTrace trace = traced(ranks);
  for (const TraceProcess& process : trace.processes) {
    const TimedProgram& program = ranks.programs[process.program];
    for (const TraceThread& thread : process.threads) {
      for (const TraceSpan& span : thread.spans) {
        const IssueStep& step = program.order.steps[span.step];
        EXPECT_EQ(place_text(trace, trace.place(process, span)),
                  place_text(*program.program, step));
      }
    }
  }
}

TEST(Trace, PointsFromTheLastToThoseThatWait) {
  EXPECT_THAT(traced(late_rank()).arrows,
              ElementsAre(TraceArrow{.from = {.process = 1, .thread = 0, .at = 30},
                                     .to = {.process = 0, .thread = 0, .at = 30}}));
}

TEST(Trace, PointsFromSendersToReceivers) {
  TestRanks ranks({1, 2}, {.pipeline = 2});
  TestStep first;
  first.channel({"pipeline", 2}, 0, 1);
  first.add(0,
            {kernel(50),
             {.kind = PieceKind::kSend, .partners = 0, .level = 1, .moving = 10},
             {.kind = PieceKind::kSend, .partners = 0, .level = 1, .moving = 20}});
  TestStep second;
  second.channel({"pipeline", 2}, 0, 1);
  second.add(0,
             {{.kind = PieceKind::kReceive, .partners = 0, .level = 1, .moving = 10},
              kernel(5),
              {.kind = PieceKind::kReceive, .partners = 0, .level = 1, .moving = 20}});
  ranks.add(first, 1);
  ranks.add(second, 1);
  EXPECT_THAT(traced(ranks).arrows,
              ElementsAre(TraceArrow{.from = {.process = 0, .thread = 0, .at = 50},
                                     .to = {.process = 1, .thread = 0, .at = 50}},
                          TraceArrow{.from = {.process = 0, .thread = 0, .at = 60},
                                     .to = {.process = 1, .thread = 0, .at = 65}}));
}

// Four ranks share the link of their node, of which each has a quarter; on two streams of one rank
// both legs together have all of it, as long as both move.
TEST(Trace, CountsTheUseOfLinks) {
  TestRanks ranks({4, 2}, {.data = 8});
  ranks.cluster.levels[1].shared = true;
  TestStep step;
  step.add(0, {kernel(3), collective(1, 1, 5, 100), kernel(2)});
  ranks.add(step, 8);
  const StepTrace trace = traced(ranks);
  ASSERT_EQ(trace.processes.size(), 1U);
  const TraceCounter& link = trace.processes[0].counters.back();
  EXPECT_EQ(link.name, "link: node");
  EXPECT_THAT(link.points,
              ElementsAre(TracePoint{.at = 0, .value = 0},
                          TracePoint{.at = 8, .value = 1},
                          TracePoint{.at = 408, .value = 0}));

  TestRanks slow({2}, {.data = 2});
  TestStep busy(2);
  busy.add(1, {collective(0, 0, 0, 100)});
  busy.add(0, {collective(0, 0, 0, 100)});
  slow.add(busy, 2);
  EXPECT_THAT(traced(slow).processes[0].counters.back().points,
              ElementsAre(TracePoint{.at = 0, .value = 1}, TracePoint{.at = 200, .value = 0}));
}

// Buffers a and b live beside each other once; c takes the place of a.
constexpr std::string_view kLives = R"(program "lives" microbatches 1 arena 1536 {
  stream "compute"
  stream "other \"one\""
  buffer 0 "in" input 128 bytes at (0) persistent
  buffer 1 "a" activation 128 bytes at (256) live (forward 0, 0) .. (forward 0, 1)
  buffer 2 "b" activation 512 bytes at (512) live (forward 0, 1) .. (forward 0, 2)
  buffer 3 "c" workspace 128 bytes at (256) live (forward 0, 2) .. (forward 0, 2)
  segment 0 "forward" forward 0 {
    #1+0 f32[n=32] strides(1) = gelu(#0+0 f32[n=32] strides(1)) stream 0
    #2+0 f32[n=32] strides(1) = gelu(#1+0 f32[n=32] strides(1)) stream 1 signal 1
    #3+0 f32[n=32] strides(1) = gelu(#2+0 f32[n=32] strides(1)) stream 0 wait 1
  }
  call 0 microbatch 0 slots ()
}
)";

// A rank that took so long for each step.
StepTrace seen_lives(const Program& program) {
  const IssueOrder order = issue_order(program);
  const std::vector<SeenRank> seen = {
      {.rank = 0,
       .program = program,
       .order = order,
       .streams = {{{.begin = 0, .end = 1'500'000, .step = 0},
                    {.begin = 2'750'001, .end = 3'000'000, .step = 2}},
                   {{.begin = 1'600'000, .end = 2'750'000, .step = 1}}}}};
  return trace_of(Mesh{}, seen);
}

TEST(Trace, CountsMemoryAsThePlannerDoes) {
  const Program program = parse_program(kLives);
  const StepTrace trace = seen_lives(program);
  const std::vector<TraceCounter>& counters = trace.processes[0].counters;
  ASSERT_EQ(counters.size(), 4U);
  EXPECT_EQ(counters[0].name, "memory");
  EXPECT_THAT(counters[0].points,
              ElementsAre(TracePoint{.at = 0, .value = 512},
                          // The order has come to the second step.
                          TracePoint{.at = 1'500'000, .value = 1024},
                          TracePoint{.at = 1'500'000, .value = 768},
                          TracePoint{.at = 2'750'001, .value = 1024},
                          TracePoint{.at = 3'000'000, .value = 256}));
  std::map<std::string, double> peaks;
  for (const TraceCounter& counter : counters) {
    peaks[counter.name] = std::ranges::max_element(counter.points, {}, &TracePoint::value)->value;
  }
  EXPECT_EQ(peaks["memory"], 1024);
  for (const MemoryRow& row : memory_by_category(program)) {
    EXPECT_EQ(peaks["memory: " + std::string(name(row.category))], row.peak_bytes)
        << name(row.category);
  }
}

TEST(Trace, RefusesARankWhoseStepIsNotWhole) {
  const Program program = parse_program(kLives);
  const IssueOrder order = issue_order(program);
  const std::vector<SeenRank> seen = {
      {.rank = 0, .program = program, .order = order, .streams = {{{0, 1, 0}, {1, 2, 2}}, {}}}};
  EXPECT_THAT(error_of(ErrorCode::kInternal, [&] { trace_of(Mesh{}, seen); }),
              HasSubstr("rank 0: 2 steps were seen of 3"));
}

std::vector<json> events_of(const json& trace, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) {
      events.push_back(event);
    }
  }
  return events;
}

TEST(ChromeJson, SaysWhatTheTraceDoes) {
  const Program program = parse_program(kLives);
  const StepTrace trace = seen_lives(program);
  const json text = json::parse(chrome_json(trace));
  std::vector<json> spans = events_of(text, "X");
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[2],
            (json{{"ph", "X"},
                  {"pid", 0},
                  {"tid", 1},
                  {"ts", 1.6},
                  {"dur", 1.15},
                  {"name", "gelu"},
                  {"cat", "streaming"},
                  {"args",
                   {{"place", "segment forward, microbatch 0, instruction 1: gelu"},
                    {"action", "forward"},
                    {"segment", "forward"},
                    {"call", 0},
                    {"microbatch", 0},
                    {"instruction", 1}}}}));
  EXPECT_EQ(spans[1].at("ts"), 2.750001);
  EXPECT_EQ(text.at("traceEvents")[3],
            (json{{"ph", "M"},
                  {"pid", 0},
                  {"tid", 0},
                  {"name", "thread_sort_index"},
                  {"args", {{"sort_index", 0}}}}));
  EXPECT_EQ(text.at("traceEvents")[4].at("args").at("name"), "other \"one\"");
  std::vector<TracePoint> points;
  for (const json& event : events_of(text, "C")) {
    if (event.at("name") == "memory") {
      points.push_back(
          {.at = ticks_of(event.at("ts")), .value = event.at("args").at("bytes").get<double>()});
    }
  }
  EXPECT_EQ(points, trace.processes[0].counters[0].points);
}

// Read back, spans are those of the timeline, in order; both ends of each arrow lie in one.
TEST(ChromeJson, HasTheSpansOfTheTimeline) {
  const TestRanks ranks = late_rank();
  const StepTimeline timeline = ranks.simulate();
  const json text = json::parse(chrome_json(trace_of(ranks.ranks(), timeline)));
  std::map<std::pair<int, int>, std::vector<std::pair<Ticks, Ticks>>> spans;
  for (const json& event : events_of(text, "X")) {
    const Ticks begin = ticks_of(event.at("ts"));
    spans[{event.at("pid"), event.at("tid")}].emplace_back(begin,
                                                           begin + ticks_of(event.at("dur")));
  }
  for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
    for (std::size_t stream = 0; stream < 2; ++stream) {
      const auto& own = spans[{static_cast<int>(c), static_cast<int>(stream)}];
      const std::vector<Span>& expected = timeline.classes[c].streams[stream];
      ASSERT_EQ(own.size(), expected.size());
      for (std::size_t i = 0; i < own.size(); ++i) {
        EXPECT_EQ(own[i], std::pair(expected[i].begin, expected[i].end));
      }
    }
  }
  std::vector<json> ends = events_of(text, "s");
  ASSERT_EQ(ends.size(), 1U);
  ends.push_back(events_of(text, "f").at(0));
  EXPECT_EQ(ends[0].at("id"), ends[1].at("id"));
  for (const json& end : ends) {
    const Ticks at = ticks_of(end.at("ts"));
    EXPECT_TRUE(std::ranges::any_of(
        spans[{end.at("pid"), end.at("tid")}],
        [&](const std::pair<Ticks, Ticks>& span) { return span.first <= at && at < span.second; }));
  }
  EXPECT_THAT(events_of(text, "M"), testing::SizeIs(3 * (2 + 2 * 2)));
}

TEST(ChromeJson, OfNothingIsWhole) {
  EXPECT_THAT(json::parse(chrome_json({})).at("traceEvents"), IsEmpty());
}

}  // namespace
}  // namespace tessera
