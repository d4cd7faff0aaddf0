// Traces of steps that ran, and of the same steps simulated.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Two ranks of a machine that nobody has.
constexpr const char* kCluster = R"(name = "two"
[device]
name = "slow"
memory = 0
memory_bandwidth = "10 GB/s"
peak = { f32 = "100 GFLOP/s", bf16 = "100 GFLOP/s" }
[[levels]]
name = "pair"
size = 2
bandwidth = "1 GB/s"
latency = "10 us"
)";

using ThreadId = std::pair<int, int>;  // by "pid" and "tid"

struct ReadSpan {
  std::int64_t begin = 0;  // picoseconds
  std::int64_t end = 0;
  std::tuple<int, int, std::string, int, std::string> place;
};

std::int64_t picoseconds(const json& micros) {
  return std::llround(micros.get<double>() * 1e6);
}

// A trace as a viewer reads it.
struct ReadTrace {
  explicit ReadTrace(const std::filesystem::path& path) {
    std::map<ThreadId, std::int64_t> last;
    const json events = json::parse(read_file(path)).at("traceEvents");
    for (const json& event : events) {
      const std::string phase = event.at("ph");
      if (phase == "M") {
        if (event.at("name") == "process_name") {
          processes.push_back(event.at("args").at("name"));
        }
        continue;
      }
      const std::int64_t at = picoseconds(event.at("ts"));
      if (phase == "C") {
        std::int64_t& peak = peaks[{event.at("pid"), event.at("name")}];
        for (const auto& [unit, value] : event.at("args").items()) {
          peak = std::max<std::int64_t>(peak, std::llround(value.get<double>()));
        }
        continue;
      }
      const ThreadId thread = {event.at("pid"), event.at("tid")};
      EXPECT_LE(last[thread], at) << event;
      last[thread] = at;
      if (phase == "X") {
        const json& args = event.at("args");
        spans[thread].push_back({.begin = at,
                                 .end = at + picoseconds(event.at("dur")),
                                 .place = {args.at("call"),
                                           args.at("instruction"),
                                           args.at("segment"),
                                           args.at("microbatch"),
                                           event.at("name")}});
      } else {
        arrows[event.at("id")].emplace_back(thread, at);
      }
    }
  }

  // What a stream did, one after the other.
  std::vector<std::tuple<int, int, std::string, int, std::string>> places(ThreadId thread) const {
    std::vector<std::tuple<int, int, std::string, int, std::string>> places;
    for (const ReadSpan& span : spans.at(thread)) {
      if (places.empty() || places.back() != span.place) {
        places.push_back(span.place);
      }
    }
    return places;
  }

  std::vector<std::string> processes;
  std::map<ThreadId, std::vector<ReadSpan>> spans;
  std::map<std::pair<int, std::string>, std::int64_t> peaks;  // by process and counter
  std::map<int, std::vector<std::pair<ThreadId, std::int64_t>>> arrows;
};

class TraceTest : public TrainingTest {
 protected:
  TraceTest() { write_test_file(path("two.toml"), kCluster); }

  // Of the second step of a run, which it leaves.
  ReadTrace traced(const std::string& run, std::vector<std::string> overrides) const {
    overrides.emplace_back("--trace-step=2");
    const Outcome outcome = train(run, overrides);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(format("trace of step 2: {}/trace-2.json", run)));
    return ReadTrace(path(run + "/trace-2.json"));
  }

  ReadTrace simulated(std::vector<std::string> overrides) const {
    overrides.insert(
        overrides.begin(),
        {"simulate", "run.toml", "--cluster=two.toml", "--trace=step.json", "--gantt=step.svg"});
    const Outcome outcome = tessera(overrides);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("step "));
    EXPECT_THAT(read_file(path("step.svg")), StartsWith("<svg "));
    return ReadTrace(path("step.json"));
  }

  // Of both ranks, or of the class that stands for both.
  void expect_same_places(const ReadTrace& measured, const ReadTrace& expected) const {
    ASSERT_EQ(measured.processes, (std::vector<std::string>{"rank 0", "rank 1"}));
    const bool is_one = expected.processes == std::vector<std::string>{"rank 0 x2"};
    ASSERT_EQ(expected.processes.size(), is_one ? 1U : 2U);
    for (const auto& [thread, spans] : measured.spans) {
      EXPECT_GT(spans.size(), 1U);
      EXPECT_EQ(measured.places(thread),
                expected.places({is_one ? 0 : thread.first, thread.second}));
    }
    for (const auto& [counter, peak] : measured.peaks) {
      EXPECT_EQ(peak, expected.peaks.at({is_one ? 0 : counter.first, counter.second}))
          << counter.second;
    }
  }

  static void expect_arrows_in_spans(const ReadTrace& trace) {
    for (const auto& [id, ends] : trace.arrows) {
      ASSERT_EQ(ends.size(), 2U);
      for (const auto& [thread, at] : ends) {
        EXPECT_TRUE(std::ranges::any_of(trace.spans.at(thread), [at](const ReadSpan& span) {
          return span.begin <= at && at < span.end;
        }));
      }
    }
  }
};

std::vector<std::string> overlapped() {
  return {"--parallel.ranks=2",
          "--train.microbatch=1",
          "--train.steps=3",
          "--state.preset=fsdp",
          "--comm.overlap=true"};
}

TEST_F(TraceTest, OfARunHasThePlacesOfItsSimulation) {
  const ReadTrace measured = traced("run", overlapped());
  EXPECT_EQ(measured.spans.size(), 4U);  // two streams of two ranks
  expect_same_places(measured, simulated(overlapped()));
  expect_arrows_in_spans(measured);
  EXPECT_GT(measured.arrows.size(), 0U);
  const json memory = json::parse(tessera({"explain",
                                           "run.toml",
                                           "--json",
                                           "--parallel.ranks=2",
                                           "--train.microbatch=1",
                                           "--state.preset=fsdp",
                                           "--comm.overlap=true"})
                                      .out)
                          .at("memory");
  std::int64_t num_rows = 0;
  for (const auto& [category, bytes] : memory.at("categories").items()) {
    if (bytes > 0) {
      EXPECT_EQ(measured.peaks.at({0, "memory: " + category}), bytes);
      ++num_rows;
    }
  }
  EXPECT_GT(num_rows, 3);
  EXPECT_LE(measured.peaks.at({0, "memory"}), memory.at("arena"));
}

TEST_F(TraceTest, OfAPipelineHasAnArrowForEachTransfer) {
  const std::vector<std::string> pipeline = {"--parallel.ranks=2",
                                             "--parallel.pipeline=2",
                                             "--pipeline.layers=[1,1]",
                                             "--train.microbatch=2",
                                             "--train.steps=3"};
  const ReadTrace measured = traced("run", pipeline);
  const ReadTrace expected = simulated(pipeline);
  expect_same_places(measured, expected);
  for (const ReadTrace* trace : {&measured, &expected}) {
    expect_arrows_in_spans(*trace);
    std::map<std::string, int> num_of_op;
    for (const auto& [thread, spans] : trace->spans) {
      for (const auto& place : trace->places(thread)) {
        ++num_of_op[std::get<4>(place)];
      }
    }
    EXPECT_GT(num_of_op["send"], 0);
    EXPECT_GE(std::ssize(trace->arrows), num_of_op["send"]);
  }
}

TEST_F(TraceTest, ChangesNoBits) {
  ASSERT_EQ(train("plain", overlapped()).code, 0);
  traced("traced", overlapped());
  expect_same_training("traced", "plain");
}

// Nor does what keeps it from being written.
TEST_F(TraceTest, ThatCannotBeWrittenEndsNoRun) {
  std::filesystem::create_directories(path("run/trace-2.json"));
  const Outcome outcome = train("run", {"--train.steps=3", "--trace-step=2"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("warning: the trace of step 2 is not written: "));
  EXPECT_EQ(metrics("run").size(), 3U);
}

TEST_F(TraceTest, IsOfAStepThatTheStartRuns) {
  const auto expect_error = [this](const std::string& step, const std::string& message) {
    const Outcome outcome = train("run", {"--train.steps=3", "--trace-step=" + step});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  expect_error("4", "--trace-step=4: expected one of the steps 1 to 3, which this start runs");
  expect_error("0", "--trace-step=0: expected one of the steps 1 to 3, which this start runs");
  ASSERT_EQ(train("run", {"--train.steps=2"}).code, 0);
  expect_error("2", "--trace-step=2: expected one of the steps 3 to 3, which this start runs");
  EXPECT_EQ(train("run", {"--train.steps=3", "--trace-step=3"}).code, 0);
  EXPECT_EQ(ReadTrace(path("run/trace-3.json")).processes, std::vector<std::string>{"rank 0"});
  expect_error("3", "--trace-step=3: this start runs no step, since the run is at step 3 of 3");
}

TEST_F(TraceTest, OfASimulationWantsTheNamesOfItsFiles) {
  const auto expect_error = [this](std::vector<std::string> options, const std::string& message) {
    options.insert(options.begin(), {"simulate", "run.toml", "--cluster=two.toml"});
    const Outcome outcome = tessera(options);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  expect_error({"--trace=step.svg"}, "--trace=step.svg: expected a name that ends in .json");
  expect_error({"--gantt=step.json"}, "--gantt=step.json: expected a name that ends in .svg");
  expect_error({"--gantt=step.svg", "--sweep=parallel.ranks=1,2"},
               "--sweep=parallel.ranks=1,2: expected neither --trace nor --gantt beside it");
  expect_error({"--trace=no/step.json"}, "no/step.json is to be made in no, which does not exist");
}

// Of a program alone, too, whose memory is under the cluster's.
TEST_F(TraceTest, OfAProgramAloneIsThatOfItsRun) {
  const Outcome explained =
      tessera({"explain", "run.toml", "--cluster.file=two.toml", "--program"});
  ASSERT_EQ(explained.code, 0) << explained.err;
  write_test_file(path("step.txt"), explained.out);
  const ReadTrace alone = simulated({"--program=step.txt"});
  const ReadTrace run = simulated({});
  EXPECT_EQ(alone.places({0, 0}), run.places({0, 0}));
  EXPECT_EQ(alone.peaks, run.peaks);
}

}  // namespace
}  // namespace tessera
