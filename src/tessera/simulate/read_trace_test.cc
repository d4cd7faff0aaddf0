#include "tessera/simulate/read_trace.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/base/text.h"
#include "tessera/simulate/test_steps.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Written by hand, a seed of the fuzzer's too: a rank that computes, and sends.
std::string by_hand() {
  return read_file(std::filesystem::path(TESSERA_SOURCE_DIR) / "fuzz/corpus/trace/by_hand.json");
}

TEST(ReadTrace, HasWhatTheTextSays) {
  const StepTrace trace = parse_trace(by_hand(), "a.json");
  EXPECT_EQ(trace.step, 7'999'999'999'000'002);
  ASSERT_EQ(trace.processes.size(), 1U);
  const TraceProcess& process = trace.processes[0];
  EXPECT_EQ(process.first_rank, 4U);
  EXPECT_EQ(process.num_ranks, 2U);
  ASSERT_EQ(process.threads.size(), 2U);
  EXPECT_EQ(process.threads[0].name, "a \"b\"");
  // By call and instruction, whatever came first.
  const std::vector<TraceSpan>& spans = process.threads[0].spans;
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0],
            (TraceSpan{.begin = 0, .end = 1'500'000, .step = 1, .kind = TraceKind::kStream}));
  EXPECT_EQ(spans[1],
            (TraceSpan{.begin = 7'999'999'999'000'001,
                       .end = 7'999'999'999'000'002,
                       .step = 0,
                       .kind = TraceKind::kSend,
                       .part = SpanKind::kMoving}));
  EXPECT_EQ(place_text(trace, trace.place(process, spans[0])),
            "segment up, microbatch 2, instruction 1: gelu");
  EXPECT_EQ(trace.place(process, spans[0]).action, Action::kForward);
  ASSERT_EQ(trace.arrows.size(), 1U);
  EXPECT_EQ(trace.arrows[0].to.at, 7'999'999'999'000'001);
  ASSERT_EQ(process.counters.size(), 1U);
  EXPECT_EQ(process.counters[0].unit, "bytes");
  EXPECT_EQ(process.counters[0].points[1], (TracePoint{.at = 2'000'000, .value = 0.1}));
}

TEST(ReadTrace, IsWrittenAgainByteByByte) {
  EXPECT_EQ(chrome_json(parse_trace(by_hand(), "a.json")), by_hand());
  const std::string nothing = chrome_json({});
  EXPECT_EQ(chrome_json(parse_trace(nothing, "a.json")), nothing);
}

// Ranks 0 and 1 run one program, rank 2 another.
StepTrace two_programs() {
  TestRanks ranks({4}, {.data = 2, .pipeline = 2});
  TestStep first;
  first.add(0, {kernel(10), collective(0, 0, 5, 7)});
  TestStep second;
  second.add(0, {kernel(3)});
  second.add(0, {kernel(4)});
  ranks.add(first, 2);
  ranks.add(second, 2);
  return trace_of(ranks.ranks(), ranks.simulate());
}

TEST(ReadTrace, KnowsProgramsByTheirPlaces) {
  const StepTrace before = two_programs();
  const StepTrace trace = parse_trace(chrome_json(before), "a.json");
  EXPECT_EQ(trace.names, before.names);
  EXPECT_EQ(trace.places, before.places);
  EXPECT_EQ(trace.step, before.step);
  ASSERT_EQ(trace.processes.size(), before.processes.size());
  for (std::size_t i = 0; i < trace.processes.size(); ++i) {
    EXPECT_EQ(trace.processes[i].program, before.processes[i].program);
    EXPECT_EQ(trace.processes[i].num_ranks, before.processes[i].num_ranks);
    EXPECT_EQ(trace.processes[i].threads[0].spans, before.processes[i].threads[0].spans);
  }
}

TEST(ReadTrace, OfProcessesIsOneOfAll) {
  const StepTrace both = parse_trace(by_hand(), "a.json");
  StepTrace trace = two_programs();
  const std::size_t num_processes = trace.processes.size();
  const std::size_t num_places = trace.places.size();
  append_trace(trace, both);
  append_trace(trace, both);
  EXPECT_EQ(trace.places.size(), num_places + 1);
  EXPECT_EQ(trace.step, both.step);
  ASSERT_EQ(trace.processes.size(), num_processes + 2);
  const TraceProcess& last = trace.processes.back();
  EXPECT_EQ(place_text(trace, trace.place(last, last.threads[0].spans[0])),
            "segment up, microbatch 2, instruction 1: gelu");
  EXPECT_EQ(trace.arrows.back().from.process, num_processes + 1);
}

TEST(ReadTrace, RefusesWhatIsNoTrace) {
  const auto expect_error = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { parse_trace(text, "a.json"); }),
                HasSubstr(message));
  };
  const auto changed = [](std::string_view from, std::string_view to) {
    const std::string text = replace_all(by_hand(), from, to);
    EXPECT_NE(text, by_hand());
    return text;
  };
  expect_error("", "a.json: line 1: found \"\", expected {\"displayTimeUnit\":\"ms\"");
  expect_error("{\"traceEvents\":[]}", "a.json: line 1: found \"{\"traceEvents\":[]}\", expected");
  expect_error(by_hand().substr(0, by_hand().size() - 3),
               "a.json: line 14: found the end of the file, expected more events: the file was "
               "cut");
  expect_error(by_hand().substr(0, by_hand().size() - 10), "a.json: line 13: not JSON at byte");
  expect_error(changed("\"dur\":1.5", "\"dur\":1.5x"), "a.json: line 8: not JSON at byte");
  EXPECT_THAT(error_of(ErrorCode::kInvalidData,
                       [&] { parse_trace(changed("\"dur\":1.5", "\"dur\":1.5x"), "a.json"); }),
              Not(HasSubstr("line 1, ")));
  expect_error(changed("\"rank 4 x2\"", "\"rank 4 x1073741825\""),
               "expected at most 1073741824 ranks");
  expect_error(by_hand() + "more\n",
               "a.json: line 14: found more behind its end, expected nothing");
  expect_error(changed("\"cat\":\"streaming\"", "\"cat\":\"dreaming\""),
               "a.json: line 8: found \"cat\": \"dreaming\", expected one of product, attention");
  expect_error(changed("\"part\":\"moving\"", "\"part\":1"),
               "a.json: line 9: found \"part\": 1, expected a text");
  expect_error(changed(",\"action\":\"forward\"", ""),
               "a.json: line 8: found no \"action\", expected a text there");
  expect_error(changed("\"dur\":1.5", "\"dur\":-1.5"),
               "a.json: line 8: found \"dur\": -1.5, expected microseconds from 0 to below");
  expect_error(changed("\"ts\":7999999999.000001", "\"ts\":8589934592.0"),
               "expected microseconds from 0 to below 8589934592");
  expect_error(changed("\"tid\":0,\"ts\"", "\"tid\":2,\"ts\""),
               "a.json: line 8: found \"tid\": 2, expected a whole number from 0 to below 2");
  expect_error(changed("rank 4 x2", "rank four"),
               "a.json: line 2: found process \"rank four\", expected \"rank N\"");
  expect_error(changed("{\"ph\":\"f\"", "{\"ph\":\"b\""),
               "a.json: line 11: found \"ph\": \"b\", expected an event of kind M, X, C, s or f");
  expect_error(changed("\"id\":0", "\"id\":1"), "found no whole arrow 0, expected both ends");
  expect_error(changed("\"instruction\":1}", "\"instruction\":0}"),
               "a.json: line 9: found call 0, instruction 0 as another instruction than before");
  expect_error(changed("\"bytes\":0.1", "\"bytes\":-0.1"),
               "a.json: line 13: found \"bytes\": -0.1, expected no negative number");
  expect_error(changed("\"bytes\":0.1", "\"bytes\":0.1,\"more\":2"),
               "expected an object of one unit and its value");
}

TEST(ReadTrace, ReadsFiles) {
  const TestDirectory directory;
  write_test_file(directory.path() / "a.json", by_hand());
  EXPECT_EQ(load_trace(directory.path() / "a.json").processes.size(), 1U);
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { load_trace(directory.path() / "b.json"); }),
              HasSubstr("b.json"));
}

}  // namespace
}  // namespace tessera
