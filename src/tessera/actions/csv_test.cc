#include "tessera/actions/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/check.h"
#include "tessera/actions/schedules.h"
#include "tessera/actions/test_random_table.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"
#include "tessera/base/text.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

ActionTable parsed(std::string_view text) {
  return parse_table(text, "table.csv").table;
}

std::string refused(std::string_view text) {
  return error_of(ErrorCode::kInvalidConfig, [&] { parse_table(text, "table.csv"); });
}

// 1F1B of 4 microbatches on 4 ranks, as in the figure of Narayanan et al. 2021.
constexpr std::string_view k1F1BTable =
    "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n"
    "1F0,1F1,1F2,1B0,1F3,1B1,1B2,1B3\n"
    "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2B3\n"
    "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3\n";

// What PyTorch's ScheduleInterleaved1F1B writes for 2 ranks with 2 stages and 4 microbatches.
constexpr std::string_view kInterleavedTable =
    "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
    "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n";

TEST(Csv, WritesWhatPyTorchWrites) {
  EXPECT_EQ(to_csv(make_table({PipelineSchedule::k1F1B, 4, 1, 4})), k1F1BTable);
  EXPECT_EQ(to_csv(make_table({PipelineSchedule::kInterleaved, 2, 2, 4})), kInterleavedTable);
  EXPECT_EQ(to_csv(make_table({PipelineSchedule::kZbH1, 2, 1, 3})),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
  EXPECT_EQ(to_csv(make_table({PipelineSchedule::kZbV, 2, 2, 3})),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n");
}

// The form of TorchTitan's tests/assets/custom_schedule.csv: all forwards, then input gradient and
// weight gradient of two microbatches of one stage and of the other in turn.
std::string custom_table() {
  std::string text;
  for (int rank = 0; rank < 2; ++rank) {
    std::string row;
    for (const int stage : {rank, rank + 2}) {
      for (int microbatch = 0; microbatch < 8; ++microbatch) {
        row += format("{}F{},", stage, microbatch);
      }
    }
    for (int pair = 0; pair < 4; ++pair) {
      for (const int stage : {rank + 2, rank}) {
        row += format("{0}I{1},{0}W{1},{0}I{2},{0}W{2},", stage, 2 * pair, 2 * pair + 1);
      }
    }
    row.back() = '\n';
    text += row;
  }
  return text;
}

TEST(Csv, CustomTableOfTorchTitan) {
  const std::string text = custom_table();
  const ParsedTable parsed_table = parse_table(text, "table.csv");
  EXPECT_THAT(parsed_table.notes, IsEmpty());
  EXPECT_EQ(to_csv(parsed_table.table), text);
  EXPECT_EQ(parsed_table.table.stages, 4);
  EXPECT_EQ(parsed_table.table.microbatches, 8);
  EXPECT_THAT(parsed_table.table.rank_of_stage, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(check(parsed_table.table),
              ElementsAre("rank 0 holds the results of 16 forwards; \"interleaved\" would hold 5"));
}

TEST(Csv, ReadsWhatItWrites) {
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    const ActionTable table = make_table({schedule, 3, default_chunks(schedule), 6});
    EXPECT_EQ(parsed(to_csv(table)), table) << name(schedule);
  }
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const ActionTable table =
        random_table(seed, {.ranks = 3, .stages = 7, .microbatches = 4, .rising = seed % 2 == 0});
    EXPECT_EQ(parsed(to_csv(table)), table) << "seed " << seed;
  }
}

TEST(Csv, CellsOfSlices) {
  const ActionTable table = make_table({PipelineSchedule::k1F1B, 2, 1, 1, 2});
  constexpr std::string_view kText = "0F0,0F0.1,0B0.1,0B0\n1F0,1F0.1,1B0.1,1B0\n";
  EXPECT_EQ(to_csv(table), kText);
  EXPECT_EQ(parsed(kText), table);
  EXPECT_EQ(refused("0F0,0F0.2,0B0.2,0B0\n"),
            "table.csv:1:2: the table has slice 2, but no slice 1");
}

TEST(Csv, EveryForm) {
  const ActionTable table = parsed("0F0,0F1,0I0,0B1,0W0\n1F0,1F1,1B0,1B1\n");
  const auto same = [&](std::string_view text) {
    EXPECT_EQ(parsed(text), table);
    EXPECT_THAT(parse_table(text, "table.csv").notes, IsEmpty());
  };
  same("0F0,0F1,0I0,0B1,0W0\r\n1F0,1F1,1B0,1B1\r\n");
  same(
      "\xEF\xBB\xBF"
      "0F0,0F1,0I0,0B1,0W0\n1F0,1F1,1B0,1B1\n");
  same("0F0,0F1,0I0,0B1,0W0\n1F0,1F1,1B0,1B1");
  same("0F0,0F1,0I0,0B1,0W0\n1F0,1F1,1B0,1B1\n\n \r\n");
  same("\"0F0\",\"0F1\",\"0I0\",\" 0B1 \",0W0\n1F0,\"\",1F1,1B0,1B1\n,,\"\",\n");
  same(" 0F0 ,\t0F1,0I0 , 0B1,0W0 \n1F0,,1F1,1B0,,,1B1");
  same("00F0,0F01,0I0,0B1,0W0\n1F0,(1F1;1B0)OVERLAP_F_B,1B1");
  same("0F0,0F1,0I0,0B1,0W0\n1F0, ( 1F1 ; 1B0 )OVERLAP_F_B,1B1");
}

TEST(Csv, SaysWhatItLeavesOut) {
  const ParsedTable parsed_table = parse_table(
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,,\n1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD0,,,\n",
      "table.csv");
  EXPECT_EQ(parsed_table.table, parsed("0F0,0B0\n1F0,1B0\n"));
  EXPECT_THAT(
      parsed_table.notes,
      ElementsAre("table.csv: 7 cells of communication and sharding left out: they follow from the "
                  "actions",
                  "table.csv: the last 2 columns are empty"));
}

TEST(Csv, RefusesCells) {
  constexpr std::string_view kTail =
      "is not an action; expected a stage, F, B, I or W, and a microbatch, such as \"2F0\", "
      "or \"2F0.1\" of a slice";
  EXPECT_EQ(refused("0F0,0B0\n1F0,1B0,1F1,1B1,,1F2,0X3"),
            format("table.csv:2:7: \"0X3\" {}", kTail));
  for (const std::string_view cell : {"0F0x",
                                      "F0",
                                      "0F",
                                      "0f0",
                                      "0 F0",
                                      "-1F0",
                                      "0F-1",
                                      "0F1234567",
                                      "0F0.",
                                      "0F0.1.1",
                                      "0F.1",
                                      "0FB0",
                                      "0SEND_G0",
                                      "0SEND_F0x",
                                      "(0F0)OVERLAP_F_B",
                                      "(0F0;0B0)",
                                      "(0F0;0B0;0F1)OVERLAP_F_B",
                                      "(0F0;0UNSHARD)OVERLAP_F_B",
                                      "()OVERLAP_F_B",
                                      "((0F0;0B0)OVERLAP_F_B;0F1)OVERLAP_F_B",
                                      "\"0F0",
                                      "\"",
                                      "\x01"}) {
    EXPECT_EQ(refused(format("0F0,{}", cell)),
              format("table.csv:1:2: \"{}\" {}", printable(cell), kTail));
  }
}

TEST(Csv, RefusesRows) {
  EXPECT_EQ(refused(""), "table.csv:1:1: the table is empty: expected a row per pipeline rank");
  EXPECT_EQ(refused("0F0,0B0\n,,\n1F0"),
            "table.csv:2:1: the row has no action: expected a row per pipeline rank");
  EXPECT_EQ(refused("0F0,0B0\n1F0,0F1"), "table.csv:2:2: 0F1, but stage 0 is in row 1");
  EXPECT_EQ(refused("0F0,0B0\n2F0,2B0"),
            "table.csv:2:1: the row has stage 2, but no row has stage 1");
  EXPECT_EQ(refused("0F0,0B0\n1F0,1B0,,3F0,3B0"),
            "table.csv:2:4: the row has stage 3, but no row has stage 2");
  EXPECT_EQ(refused("0F0,0F7"), "table.csv:1:2: the table has microbatch 7, but no microbatch 1");
}

TEST(Csv, NamesTheCellOfAWrongMicrobatch) {
  std::string text = to_csv(make_table({PipelineSchedule::k1F1B, 6, 1, 8}));
  text.replace(text.find("2F7"), 3, "2F9");
  EXPECT_EQ(refused(text), "table.csv:3:12: the table has microbatch 9, but no microbatch 8");
}

}  // namespace
}  // namespace tessera
