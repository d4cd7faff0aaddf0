#include "tessera/simulate/compare_traces.h"

#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TracePlace place(std::uint32_t instruction, std::uint32_t op) {
  return {.instruction = instruction, .segment = 0, .op = op};
}

// A product from `gap` on, which hides half of the collective beside it.
TraceProcess rank_with(Ticks gap) {
  return {.name = "rank 0",
          .threads =
              {{.name = "compute",
                .spans = {{.begin = gap, .end = gap + 10, .step = 0, .kind = TraceKind::kProduct},
                          {.begin = 30, .end = 40, .step = 2, .kind = TraceKind::kStream}}},
               {.name = "comm",
                .spans = {{.begin = gap + 5,
                           .end = gap + 10,
                           .step = 1,
                           .kind = TraceKind::kCollective,
                           .part = SpanKind::kAway},
                          {.begin = gap + 10,
                           .end = gap + 15,
                           .step = 1,
                           .kind = TraceKind::kCollective,
                           .part = SpanKind::kMoving}}}},
          .counters = {}};
}

StepTrace trace_with(std::vector<TraceProcess> processes) {
  return {.step = 40,
          .names = {"forward", "gemm", "reduce", "gelu"},
          .places = {{place(0, 1), place(1, 2), place(2, 3)}},
          .processes = std::move(processes),
          .arrows = {}};
}

TEST(TraceShares, AreWhatNothingHides) {
  const TraceShares shares(trace_with({rank_with(2)}));
  EXPECT_THAT(shares.of_places, ElementsAre(ElementsAre(10, 5, 10)));
  EXPECT_EQ(shares.nothing, 15);
  EXPECT_EQ(shares.step, 40);
}

// Three ranks of the one and one of the other, or as many as are asked for.
TEST(TraceShares, AreMeansOfRanks) {
  std::vector<TraceProcess> processes = {rank_with(2), rank_with(18)};
  processes[0].num_ranks = 3;
  // 18 to 28 the product, to 30 the collective, of whose last 3 the stream hides.
  const StepTrace trace = trace_with(processes);
  const TraceShares shares(trace);
  EXPECT_THAT(shares.of_places,
              ElementsAre(ElementsAre(10 / 4 * 3 + 2 * 3 / 4 + 10 / 4,
                                      5 / 4 * 3 + 3 / 4 + 2 / 4,
                                      10 / 4 * 3 + 2 * 3 / 4 + 10 / 4)));
  const std::vector<std::size_t> weights = {0, 1};
  EXPECT_THAT(TraceShares(trace, weights).of_places, ElementsAre(ElementsAre(10, 2, 10)));
}

// Of stamps that overlap, since clocks do, the first one counts.
TEST(TraceShares, CountNoTimeTwice) {
  TraceProcess process = rank_with(0);
  process.threads[0].spans[1].begin = 5;
  process.threads.pop_back();
  EXPECT_THAT(TraceShares(trace_with({process})).of_places, ElementsAre(ElementsAre(10, 0, 30)));
}

TEST(CompareTraces, RowsAddUpToBothSteps) {
  const StepTrace a = trace_with({rank_with(2)});
  StepTrace b = trace_with({rank_with(2), rank_with(3), rank_with(18)});
  b.step = 41;
  b.names[3] = "silu";
  for (const auto& texts : {texts_of_kinds, texts_of_ops, texts_of_places}) {
    const Differences found = compare(TraceShares(a), texts(a), TraceShares(b), texts(b));
    Ticks sum_a = 0;
    Ticks sum_b = 0;
    for (const DifferenceRow& row : found.rows) {
      sum_a += row.a;
      sum_b += row.b;
    }
    EXPECT_EQ(sum_a, 40);
    EXPECT_EQ(sum_b, 41);
    EXPECT_EQ(found.a, 40);
    EXPECT_EQ(found.b, 41);
  }
}

TEST(CompareTraces, PutsTheLargestDifferenceFirst) {
  const StepTrace a = trace_with({rank_with(2)});
  StepTrace b = a;
  b.processes[0].threads[0].spans[0].end = 20;  // and hides all of the collective
  b.names[3] = "silu";
  const Differences found =
      compare(TraceShares(a), texts_of_ops(a), TraceShares(b), texts_of_ops(b));
  EXPECT_THAT(
      found.rows,
      ElementsAre(
          DifferenceRow{.what = "forward gelu", .a = 10, .b = 0, .count_a = 1},
          DifferenceRow{.what = "forward silu", .a = 0, .b = 10, .count_b = 1},
          DifferenceRow{.what = "forward gemm", .a = 10, .b = 18, .count_a = 1, .count_b = 1},
          DifferenceRow{.what = "forward reduce", .a = 5, .b = 0, .count_a = 1, .count_b = 1},
          DifferenceRow{.what = "nothing runs", .a = 15, .b = 12}));
}

TEST(CompareTraces, NamesKindsAndPlaces) {
  StepTrace trace = trace_with({rank_with(2)});
  EXPECT_THAT(texts_of_kinds(trace),
              ElementsAre(ElementsAre("products", "collectives", "streaming")));
  EXPECT_EQ(texts_of_places(trace)[0][1], "segment forward, microbatch 0, instruction 1: reduce");
  trace.places.push_back(trace.places[0]);
  trace.processes.push_back(rank_with(2));
  trace.processes[1].program = 1;
  trace.processes[1].first_rank = 3;
  EXPECT_EQ(texts_of_places(trace)[1][1],
            "rank 3: segment forward, microbatch 0, instruction 1: reduce");
}

TEST(CompareTraces, PrintsTheRestAsOneRow) {
  const Differences differences = {
      .a = 3'000'000'000'000,
      .b = 5'000'000'000'000,
      .rows = {{.what = "x", .a = 0, .b = 3'000'000'000'000, .count_a = 1200, .count_b = 2},
               {.what = "y", .a = 2'000'000'000'000, .b = 1'500'000'000'000},
               {.what = "z", .a = 1'000'000'000'000, .b = 500'000'000'000}}};
  const std::string text =
      differences_text(differences, {.what = "by op", .a = "one", .b = "two"}, 1);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    lines.push_back(text.substr(at, text.find('\n', at) - at));
  }
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_THAT(lines[0], HasSubstr("one s       two s  difference  of all"));
  EXPECT_THAT(lines[1], HasSubstr("x1,200, x2           0           3          +3  75.0 %"));
  EXPECT_THAT(lines[2], HasSubstr("3           2          -1  25.0 %"));
  EXPECT_THAT(lines[2], HasSubstr("2 more rows"));
  EXPECT_THAT(lines[3], HasSubstr("3           5          +2 100.0 %"));
  EXPECT_THAT(differences_text(differences, {.what = "by op", .a = "one", .b = "two"}, 2),
              Not(HasSubstr("more rows")));
}

TEST(CompareTraces, FindsTheFirstOtherPlace) {
  const StepTrace a = trace_with({rank_with(2)});
  EXPECT_EQ(first_other_place(a, 0, a, 0), "");
  StepTrace b = a;
  b.names[2] = "gather";
  EXPECT_EQ(first_other_place(a, 0, b, 0),
            "found call 0 (segment forward, microbatch 0, instruction 1: reduce), expected call 0 "
            "(segment forward, microbatch 0, instruction 1: gather)");
  b = a;
  b.places[0].pop_back();
  EXPECT_EQ(first_other_place(b, 0, a, 0),
            "found its end, expected call 0 (segment forward, microbatch 0, instruction 2: gelu)");
}

}  // namespace
}  // namespace tessera
