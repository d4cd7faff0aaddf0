#include "tessera/program/issue_order.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two microbatches in two slots; fences compute nothing.
constexpr std::string_view kStep = R"(program "step" microbatches 2 arena 0 {
  stream "compute"
  stream "comm"
  stream "send"
  pool 0 "stash" 2 slots
  event 3 pool 0
  segment 0 "forward" forward 0 {
    fence() stream 1 signal 1
    fence() stream 1 signal 2
    fence() stream 0 wait 1 wait 2 signal 4
    fence() stream 2 wait 4 wait 2 signal 3 only_last
  }
  segment 1 "backward" backward 0 {
    fence() stream 0 wait 3 wait 4
    fence() stream 1 wait 3 wait 1
  }
  call 0 microbatch 0 slots (0)
  call 0 microbatch 1 slots (1)
  call 1 microbatch 0 slots (0)
  call 1 microbatch 1 slots (1)
}
)";

// "call 0 instruction 3 place 3 on 2 item 0 after 1", with "idle" where it does no work.
std::vector<std::string> lines_of(const IssueOrder& order) {
  std::vector<std::string> lines;
  for (const IssueStep& step : order.steps) {
    std::string line = format("call {} instruction {} place {} on {} item {}{}",
                              step.call,
                              step.instruction,
                              step.place,
                              step.stream,
                              step.item,
                              step.works ? "" : " idle");
    for (const StepIndex awaited : order.waits_of(step)) {
      line += format(" after {}", awaited);
    }
    lines.push_back(line);
  }
  return lines;
}

TEST(IssueOrder, ListsTheStepsWithWhatTheyWaitFor) {
  const Program program = parse_program(kStep);
  const IssueOrder order = issue_order(program);
  EXPECT_THAT(lines_of(order),
              ElementsAre("call 0 instruction 0 place 0 on 1 item 0",
                          "call 0 instruction 1 place 1 on 1 item 1",
                          // One wait for each stream, for the later one.
                          "call 0 instruction 2 place 2 on 0 item 0 after 1",
                          // What stream 0 has done comes before in any case.
                          "call 0 instruction 3 place 3 on 2 item 0 idle after 1",
                          "call 1 instruction 0 place 0 on 1 item 2",
                          "call 1 instruction 1 place 1 on 1 item 3",
                          "call 1 instruction 2 place 2 on 0 item 1 after 5",
                          "call 1 instruction 3 place 3 on 2 item 1 after 5",
                          // In slots of their own: each waits for its microbatch's.
                          "call 2 instruction 0 place 4 on 0 item 2 after 3",
                          "call 2 instruction 1 place 5 on 1 item 4 after 3",
                          "call 3 instruction 0 place 4 on 0 item 3 after 7",
                          "call 3 instruction 1 place 5 on 1 item 5 after 7"));
  EXPECT_THAT(order.first_place, ElementsAre(0U, 4U));
  EXPECT_TRUE(order.unmet.empty());
  EXPECT_EQ(order.num_marks, 2U) << "one is free when the last step has waited for its own";
}

TEST(IssueOrder, LacksWhatTheTextDoesNotWaitFor) {
  std::string text(kStep);
  text.replace(text.find("stream 0 wait 3 wait 4"), 22, "stream 0 wait 4");
  const std::vector<std::string> lines = lines_of(issue_order(parse_program(text)));
  EXPECT_EQ(lines[8], "call 2 instruction 0 place 4 on 0 item 2");
  EXPECT_EQ(lines[9], "call 2 instruction 1 place 5 on 1 item 4 after 3");
}

TEST(IssueOrder, NotesWaitsForNothing) {
  std::string text(kStep);
  text.replace(text.find("signal 2"), 8, "signal 5");
  const IssueOrder order = issue_order(parse_program(text));
  ASSERT_EQ(order.unmet.size(), 4U);
  EXPECT_EQ(order.unmet[0].step, 2U);
  EXPECT_EQ(order.unmet[3].step, 7U);
  EXPECT_EQ(order.unmet[3].event, EventId{2});
}

TEST(IssueOrder, RefusesStreamsAndSlotsThatThereAreNot) {
  const auto fault = [](std::string_view before, std::string_view after) {
    std::string text(kStep);
    text.replace(text.find(before), before.size(), after);
    const Program program = parse_program(text);
    return error_of(ErrorCode::kInternal, [&] { issue_order(program); });
  };
  EXPECT_THAT(fault("stream 2 wait", "stream 3 wait"), HasSubstr("segment forward: stream 3 of 3"));
  EXPECT_THAT(fault("microbatch 1 slots (1)", "microbatch 1 slots (2)"),
              HasSubstr("call 1 (forward, microbatch 1): slot 2 of pool \"stash\" with 2, in which "
                        "event 3 is"));
  EXPECT_THAT(fault("microbatch 1 slots (1)", "microbatch 1 slots ()"),
              HasSubstr("call 1 (forward, microbatch 1) has slots of 0 pools of 1"));
}

}  // namespace
}  // namespace tessera
