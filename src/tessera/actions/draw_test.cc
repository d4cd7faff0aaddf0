#include "tessera/actions/draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/csv.h"
#include "tessera/actions/schedules.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

const ActionTable kTable = make_table({PipelineSchedule::k1F1B, 2, 1, 3});

TEST(DrawTable, ActionsAreAsLongAsTheyTake) {
  EXPECT_EQ(draw_table(kTable, timeline(kTable), 80),
            "rank 0  0F0 0F1 ........0B0---- 0F2 0B1---- ....0B2----\n"
            "rank 1  ....1F0 1B0---- 1F1 1B1---- 1F2 1B2---- ........\n");
}

TEST(DrawTable, Slices) {
  const ActionTable table = make_table({PipelineSchedule::k1F1B, 2, 1, 1, 2});
  EXPECT_EQ(draw_table(table, timeline(table), 80),
            "rank 0  0F0-- 0F0.1 ..................0B0.1------ 0B0--------\n"
            "rank 1  ......1F0-- 1F0.1 1B0.1------ 1B0-------- ............\n");
}

TEST(DrawTable, SaysWhereItCuts) {
  EXPECT_EQ(draw_table(kTable, timeline(kTable), 30),
            "rank 0  0F0 0F1 ........0B0---\n"
            "rank 1  ....1F0 1B0---- 1F1 1B\n"
            "(the first 45.8 % of the step: a line has 30 columns)\n");
}

TEST(DrawTable, ShortActionsLoseTheirNames) {
  const ActionTable table = parse_table("0F0,0B0\n1F0,1B0\n", "table.csv").table;
  const std::vector<ActionCosts> costs = {{1.0, 50.0, 50.0}, {0.0, 50.0, 50.0}};
  const std::string text = draw_table(table, timeline(table, costs), 80);
  EXPECT_THAT(text, HasSubstr("1B0"));
  EXPECT_THAT(text, testing::Not(HasSubstr("1F0")));
}

TEST(DrawTable, RefusesAnotherTablesTimes) {
  const Timeline other = timeline(make_table({PipelineSchedule::k1F1B, 2, 1, 4}));
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { draw_table(kTable, other, 80); }),
            "a table with the timeline of another table");
  error_of(ErrorCode::kInvalidArgument, [&] { draw_gantt(kTable, other); });
}

// What the page of schedules shows.
TEST(DrawTable, IsAsThePageShows) {
  const std::string page = read_file(TESSERA_SOURCE_DIR "/docs/reference/schedules.md");
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    const std::int64_t chunks = default_chunks(schedule);
    const ActionTable table = make_table(
        {.schedule = schedule, .ranks = chunks == 1 ? 3 : 2, .chunks = chunks, .microbatches = 4});
    const Timeline time = timeline(table);
    EXPECT_THAT(page,
                HasSubstr(format("`{}`, bubble {:.1f} %. ", name(schedule), 100 * bubble(time))));
    EXPECT_THAT(page, HasSubstr(format("```\n{}```\n", draw_table(table, time, 120))));
  }
}

std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

TEST(DrawGantt, HasABarPerAction) {
  const ActionTable table = make_table({PipelineSchedule::kZbV, 2, 2, 4});
  const std::string svg = draw_gantt(table, timeline(table));
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1260 48\""));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count(svg, "<rect "), 48U);
  EXPECT_EQ(count(svg, "</rect>"), 48U);
  EXPECT_THAT(svg, HasSubstr("<title>3I0: 4 to 5</title>"));
  EXPECT_THAT(svg, HasSubstr(">rank 1</text>"));
  EXPECT_EQ(count(svg, "<text "), count(svg, "</text>"));
}

}  // namespace
}  // namespace tessera
