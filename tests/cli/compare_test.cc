// tessera compare: a run beside its simulation, two runs, two simulations; what train says of the
// step that it predicts; the picture of memory.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/text.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Two cores that nobody has.
constexpr const char* kTwoCores = R"(name = "cores"
[device]
name = "core"
memory = 0
memory_bandwidth = "10 GB/s"
peak = { f32 = "1 MFLOP/s", bf16 = "1 MFLOP/s" }
[[levels]]
name = "pair"
size = 2
bandwidth = "1 GB/s"
latency = "10 us"
[host]
cores = 2
memory_bandwidth = "20 GB/s"
)";

constexpr const char* kCurve = R"([device.curve]
matmul = { f32 = 0.9, bf16 = 0.9 }
k_half = 16
tile_half = 4
stream = 0.8
kernel = "1 us"
attention = { forward = 0.5, backward = 0.5, half = 64 }
comm_share = 0.1
)";

class CompareTest : public TrainingTest {
 protected:
  CompareTest() {
    const std::string cores = kTwoCores;
    const std::size_t levels = cores.find("[[levels]]");
    write_test_file(path("cores.toml"), cores);
    write_test_file(path("curve.toml"), cores.substr(0, levels) + kCurve + cores.substr(levels));
  }

  // Its whole path, since the config of a run names it.
  std::string cluster(const std::string& name) const { return path(name + ".toml").string(); }

  std::string compared(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "compare");
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }

  void expect_refused(std::vector<std::string> arguments,
                      const std::string& message,
                      int code = 2) const {
    arguments.insert(arguments.begin(), "compare");
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }

  // Of two ranks, with a trace of step 2.
  void trained(const std::string& run, std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(),
                     {"--parallel.ranks=2",
                      "--train.steps=3",
                      "--state.preset=fsdp",
                      "--comm.overlap=true",
                      "--trace-step=2"});
    const Outcome outcome = train(run, overrides);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
};

// A row of a table: its last four cells are a, b, their difference and a share.
struct TableRow {
  double a = 0.0;
  double b = 0.0;
  double difference = 0.0;
  double share = 0.0;
};

// The rows below `head` and the last one, which is of the step.
std::vector<TableRow> rows_below(const std::string& text, const std::string& head) {
  std::vector<TableRow> rows;
  std::istringstream lines(text.substr(text.find(head)));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    std::istringstream words(line);
    std::vector<std::string> cells;
    for (std::string word; words >> word;) {
      cells.push_back(word);
    }
    const std::size_t end = cells.size() - 1;  // the sign of percent
    rows.push_back({.a = std::stod(cells[end - 4]),
                    .b = std::stod(cells[end - 3]),
                    .difference = std::stod(cells[end - 2]),
                    .share = std::stod(cells[end - 1])});
  }
  return rows;
}

void expect_sums(const std::string& text, const std::string& head) {
  std::vector<TableRow> rows = rows_below(text, head);
  ASSERT_GT(rows.size(), 3U) << text;
  const TableRow step = rows.back();
  rows.pop_back();
  TableRow sum;
  for (const TableRow& row : rows) {
    sum.a += row.a;
    sum.b += row.b;
    sum.difference += row.difference;
    sum.share += row.share;
  }
  // Each cell has four digits.
  EXPECT_NEAR(sum.a, step.a, 1e-3 * step.a);
  EXPECT_NEAR(sum.b, step.b, 1e-3 * step.b);
  EXPECT_NEAR(sum.difference, step.b - step.a, 1e-3 * (step.a + step.b));
  EXPECT_NEAR(sum.share, 100.0, 0.05 * static_cast<double>(rows.size()));
}

TEST_F(CompareTest, PutsARunBesideItsSimulation) {
  trained("run");
  const std::string text = compared({"run", "--cluster=cores.toml"});
  EXPECT_THAT(text,
              AllOf(StartsWith("3 steps: median "),
                    HasSubstr(" s; nothing was predicted when training began\nstep 2 of run\n"
                              "run/trace-2.json: 2 ranks, beside its simulation on "
                              "cores\n  constants: estimates"),
                    HasSubstr("\n  products "),
                    HasSubstr("\n  forward matmul "),
                    HasSubstr(" more rows")));
  expect_sums(text, "by kind of work");
  expect_sums(text, "by op and shapes");
  expect_sums(compared({"run", "--cluster=cores.toml", "--rows=100000"}), "by op and shapes");
  const std::string places =
      compared({"run", "--cluster=cores.toml", "--places", "--rows=5", "--step=2"});
  EXPECT_THAT(places, HasSubstr("\n  segment "));
  expect_sums(places, "by place");
  // As the first of several processes would have left it.
  std::filesystem::rename(path("run/trace-2.json"), path("run/trace-2-rank-0.json"));
  const std::string renamed = compared({"run", "--cluster=cores.toml"});
  EXPECT_THAT(renamed, HasSubstr("\nrun/trace-2-rank-0.json: 2 ranks"));
  EXPECT_EQ(renamed.substr(renamed.find("constants")), text.substr(text.find("constants")));
  EXPECT_THAT(compared({"run", "--cluster=curve.toml"}),
              HasSubstr("constants: the cluster file says no source"));
}

// Costs of these figures cut a pipeline's layers elsewhere than the run did, and its levels have
// another name.
TEST_F(CompareTest, KeepsTheProgramOfThePipelineThatRan) {
  const std::string memory = R"(name = "slow memory"
[device]
name = "core"
memory = 0
memory_bandwidth = "1 MB/s"
peak = { f32 = "100 TFLOP/s", bf16 = "100 TFLOP/s" }
[[levels]]
name = "pair"
size = 2
bandwidth = "1 GB/s"
latency = "10 us"
[host]
cores = 2
memory_bandwidth = "2 MB/s"
)";
  write_test_file(path("memory.toml"), memory);
  const std::vector<std::string> keys = {
      "--parallel.pipeline=2", "--model.layers=4", "--model.vocab=2000"};
  const auto layers = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"explain", "run.toml", "--plan"});
    more.insert(more.end(), keys.begin(), keys.end());
    const std::string plan = tessera(more).out;
    return plan.substr(plan.find("\nlayers = "), 20);
  };
  ASSERT_NE(layers({}), layers({"--cluster.file=memory.toml"}));
  std::vector<std::string> overrides = keys;
  overrides.insert(overrides.end(), {"--train.steps=1", "--trace-step=1"});
  const Outcome outcome = train("run", overrides);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string text = compared({"run", "--cluster=memory.toml"});
  EXPECT_THAT(text, HasSubstr("run/trace-1.json: 2 ranks, beside its simulation on slow memory"));
  expect_sums(text, "by kind of work");
  write_test_file(path("memory.toml"), replace_all(memory, "size = 2", "size = 1"));
  expect_refused({"run", "--cluster=memory.toml"},
                 "memory.toml: found 1 device, expected the 2 ranks of the run or more");
}

TEST_F(CompareTest, FindsTheClusterFileOfTheRunAgain) {
  std::filesystem::create_directories(path("there"));
  std::filesystem::rename(path("curve.toml"), path("there/curve.toml"));
  trained("run", {"--cluster.file=there/curve.toml"});
  std::filesystem::rename(path("there/curve.toml"), path("there/moved.toml"));
  const std::string text = compared({"run"});
  EXPECT_THAT(text,
              AllOf(HasSubstr("; predicted "),
                    HasSubstr(" s when training began (the cluster file says no source"),
                    HasSubstr("beside its simulation on cores")));
  EXPECT_THAT(compared({"run", "--cluster=cores.toml"}), HasSubstr("constants: estimates"));
  // As older versions have left it.
  std::filesystem::remove(path("run/cluster.toml"));
  expect_refused({"run"},
                 "run: its cluster.file, there/curve.toml, does not exist here: give "
                 "--cluster=FILE");
  EXPECT_THAT(compared({"run", "--cluster=cores.toml"}), HasSubstr("constants: estimates"));
  // Where the check of what the run has left finds it.
  const std::string config = read_file(path("run/config.toml"));
  write_file_atomic(path("run/config.toml"),
                    replace_all(config, "there/curve.toml", path("there/moved.toml").string()));
}

TEST_F(CompareTest, RefusesFiguresOfOtherDevices) {
  trained("run");
  std::string text = read_file(path("curve.toml"));
  text.erase(text.find("[host]"));
  text.replace(text.find("memory = 0"), 10, "memory = \"80 GB\"");
  write_file_atomic(path("gpus.toml"), text);
  expect_refused({"run", "--cluster=gpus.toml"},
                 "run: gpus.toml is of GPUs, and the run is on the CPU: give --cluster=FILE");
}

// Stamps of a GPU's host are said to be no times of the GPU; the step is that of metrics.jsonl.
TEST_F(CompareTest, TakesTheStepOfAGpuFromItsMetrics) {
  std::string text = read_file(path("curve.toml"));
  text.erase(text.find("[host]"));
  text.replace(text.find("memory = 0"), 10, "memory = \"80 GB\"");
  write_file_atomic(path("gpus.toml"), text);
  trained("run", {"--train.steps=2"});
  const Outcome outcome = tessera({"simulate",
                                   "run/config.toml",
                                   "--run.device=cuda",
                                   "--cluster=gpus.toml",
                                   "--trace=of-gpus.json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // A process for each rank, as a run has them.
  const std::string simulated = read_file(path("of-gpus.json"));
  write_file_atomic(path("run/trace-2.json"), replace_all(simulated, "rank 0 x2", "rank 0"));
  const std::string config = read_file(path("run/config.toml"));
  write_file_atomic(path("run/config.toml"),
                    replace_all(config, "device = \"cpu\"", "device = \"cuda\""));
  const std::string compared_text = compared({"run", "--cluster=gpus.toml"});
  const double seconds = json::parse(metrics("run")[1]).at("step_seconds");
  EXPECT_THAT(compared_text,
              AllOf(HasSubstr(format("\nstep {:.4g} s by metrics.jsonl, predicted ", seconds)),
                    HasSubstr("1 of 2 ranks, beside"),
                    HasSubstr("the trace says when the host issued work to a device")));
  write_file_atomic(path("run/config.toml"), config);
}

// What the process of one rank would have left of a trace of several, without arrows.
std::string only_process(const std::string& trace, int process) {
  std::istringstream lines(trace);
  std::string line;
  std::getline(lines, line);
  std::string text = line;
  const std::string pid = format("\"pid\":{},", process);
  bool is_first = true;
  const auto has = [&](const std::string& part) { return line.find(part) != std::string::npos; };
  while (std::getline(lines, line)) {
    if (has(pid) && !has(R"("ph":"s")") && !has(R"("ph":"f")")) {
      line.erase(line.find_last_of('}') + 1);
      text += (is_first ? "\n" : ",\n") + replace_all(line, pid, "\"pid\":0,");
      is_first = false;
    }
  }
  return text + "\n]}\n";
}

TEST_F(CompareTest, JoinsTheFilesOfProcesses) {
  trained("run");
  const std::string both = read_file(path("run/trace-2.json"));
  const auto tables = [&] {
    const std::string text = compared({"run", "--cluster=cores.toml"});
    return text.substr(text.find("constants"));
  };
  const std::string expected = tables();
  std::filesystem::remove(path("run/trace-2.json"));
  write_file_atomic(path("run/trace-2-rank-0.json"), only_process(both, 0));
  EXPECT_THAT(compared({"run", "--cluster=cores.toml"}),
              HasSubstr("\nrun/trace-2-rank-0.json: 1 of 2 ranks, beside"));
  write_file_atomic(path("run/trace-2-rank-1.json"), only_process(both, 1));
  EXPECT_EQ(tables(), expected);
  EXPECT_THAT(compared({"run", "--cluster=cores.toml"}),
              HasSubstr("\nrun/trace-2-rank-0.json and 1 more: 2 ranks, beside"));
  write_file_atomic(path("run/trace-2-rank-1.json"), only_process(both, 0));
  expect_refused({"run", "--cluster=cores.toml"},
                 "run/trace-2-rank-1.json: found rank 0, which run/trace-2-rank-0.json has too",
                 3);
  write_file_atomic(path("run/trace-2-rank-1.json"),
                    replace_all(only_process(both, 1), "\"rank 1\"", "\"rank 7\""));
  expect_refused({"run", "--cluster=cores.toml"},
                 "run/trace-2-rank-1.json: found rank 7, expected one of the 2 ranks");
}

TEST_F(CompareTest, RefusesRowsThatAreNone) {
  for (const std::string rows : {"-1", "0", "18446744073709551615"}) {
    expect_refused({"run", "--cluster=cores.toml", "--rows=" + rows}, "--rows: ");
  }
  EXPECT_THAT(tessera({"compare", "--help"}).out, Not(HasSubstr("(1x)")));
}

TEST_F(CompareTest, WantsARecordedStepAndACluster) {
  expect_refused({"run"}, "run does not exist, expected a run's directory, a trace or what");
  std::filesystem::create_directories(path("none"));
  expect_refused({"none"}, "none is no run's directory (run.dir): found no config.toml in it");
  ASSERT_EQ(train("plain", {"--train.steps=1"}).code, 0);
  expect_refused({"plain", "--cluster=cores.toml"}, "plain has no trace of a step: tessera train");
  trained("run");
  expect_refused({"run"}, "run: nothing says how fast what it ran on is: give --cluster=FILE");
  expect_refused({"run", "--cluster=cores.toml", "--step=3"},
                 "run: step 3 was not recorded, expected one of those that were: 2");
  expect_refused({"run", "--cluster=nowhere.toml"}, "nowhere.toml");
  // Of another program, with twice as many microbatches.
  std::filesystem::copy_file(path("run/trace-2.json"), path("plain/trace-1.json"));
  expect_refused(
      {"plain", "--cluster=cores.toml"},
      "plain/trace-1.json: rank 0 ran another program than its config gives here: found");
  const std::string text = read_file(path("run/trace-2.json"));
  write_file_atomic(path("run/trace-2.json"), text.substr(0, text.size() / 2));
  expect_refused({"run", "--cluster=cores.toml"}, "run/trace-2.json", 3);
}

TEST_F(CompareTest, SaysFirstWhetherTwoRunsAgree) {
  trained("a");
  trained("b", {"--comm.overlap=false"});
  const std::string text = compared({"a", "b"});
  EXPECT_THAT(
      text,
      AllOf(StartsWith("A: a\nB: b\nlosses: agree, bit by bit, in all 3 steps that both have "
                       "(1 to 3)\nconfig: "),
            HasSubstr("\n  comm.overlap: true in A, false in B\n"),
            Not(HasSubstr("run.dir")),
            HasSubstr("\ntime: "),
            HasSubstr("\ntraces: step 2 of A (a/trace-2.json), step 2 of B")));
  expect_sums(text, "by kind of work");
  expect_sums(text, "by op");

  // The loss of step 2 a bit off.
  std::vector<std::string> lines = metrics("b");
  json second = json::parse(lines[1]);
  const double loss = second.at("loss");
  const double other = std::nextafter(loss, std::numeric_limits<double>::infinity());
  second["loss"] = other;
  write_file_atomic(path("b/metrics.jsonl"),
                    lines[0] + "\n" + second.dump() + "\n" + lines[2] + "\n");
  EXPECT_THAT(
      compared({"a", "b"}),
      AllOf(HasSubstr(format("losses: differ from step 2 on: {} in A, {} in B", loss, other)),
            HasSubstr("; before that they agree, bit by bit, in 1 step\n")));

  trained("c", {"--run.seed=7"});
  EXPECT_THAT(compared({"a", "c"}),
              AllOf(HasSubstr("losses: differ from step 1 on: "),
                    HasSubstr("; it is the first that both have\n"),
                    HasSubstr("\n  run.seed: ")));
}

TEST_F(CompareTest, RefusesRunsWithNothingInCommon) {
  ASSERT_EQ(train("a", {"--train.steps=1"}).code, 0);
  ASSERT_EQ(train("b", {"--train.steps=2"}).code, 0);
  EXPECT_THAT(compared({"a", "b"}),
              HasSubstr("  what makes the difference is not known: A has no trace of a step"));
  const std::vector<std::string> lines = metrics("b");
  write_file_atomic(path("b/metrics.jsonl"), lines[1] + "\n");
  expect_refused(
      {"a", "b"},
      "a and b have nothing to compare: the first has steps 1 to 1, the second steps 2 to "
      "2, and not both have a trace");
  expect_refused({"a", "b", "--cluster=cores.toml"}, "--cluster=cores.toml: expected one run");
  write_file_atomic(path("b/metrics.jsonl"), "{\"step\":1}\n");
  expect_refused({"a", "b"}, "b/metrics.jsonl:1", 3);
  write_file_atomic(path("b/metrics.jsonl"), "{\"step\":1}\n" + metrics("a")[0] + "\n{\"st");
  EXPECT_THAT(compared({"a", "b", "--skip-broken"}),
              HasSubstr("losses: agree, bit by bit, in all 1 step that both have"));
  // As a run that is under way leaves its last line.
  write_file_atomic(path("b/metrics.jsonl"), metrics("a")[0] + "\n{\"st");
  EXPECT_THAT(compared({"a", "b"}), HasSubstr("in all 1 step that both have"));
}

TEST_F(CompareTest, ExplainsTheDifferenceOfSimulations) {
  const auto simulate = [this](const std::string& name, const std::string& preset) {
    const Outcome outcome = tessera({"simulate",
                                     "run.toml",
                                     "--parallel.ranks=2",
                                     "--state.preset=" + preset,
                                     "--cluster=cores.toml",
                                     "--json",
                                     "--trace=" + name + ".trace.json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    write_file_atomic(path(name + ".json"), outcome.out);
    return json::parse(outcome.out);
  };
  const json a = simulate("a", "ddp");
  const json b = simulate("b", "fsdp");
  EXPECT_EQ(a.at("axes"),
            (json::array({{{"name", "data"}, {"ranks", 2}, {"stride", 1}, {"level", "pair"}}})));
  const std::string text = compared({"a.json", "b.json"});
  EXPECT_THAT(text,
              AllOf(StartsWith("A: a.json\nB: b.json\nlosses: simulations have none\n"),
                    HasSubstr("\n  memory_bytes: A "),
                    HasSubstr("\n  state.preset: A \"ddp\", B \"fsdp\"\n"),
                    Not(HasSubstr("train.dtype")),
                    HasSubstr("\n  collectives along data, on level pair ")));
  expect_sums(text, "by cause");
  expect_sums(compared({"a.trace.json", "b.trace.json"}), "by op");

  expect_refused({"a.json"}, "a.json is a simulation: expected a second one to compare it with");
  expect_refused({"a.json", "b.trace.json"},
                 "a.json is a simulation, and b.trace.json a trace: they have nothing in common");
  expect_refused({"a.json", "b.json", "--places"}, "--places: expected traces or runs");
  expect_refused({"a.trace.json", "b.trace.json", "--step=2"},
                 "--step=2: expected a run's directory beside it");
  expect_refused({"a.json", "run.toml"}, "tessera simulate run.toml --json > FILE.json makes", 3);
  expect_refused({"a.json", "b.json", "--step=2", "--places"}, "--step=2: expected a run's");
  write_file_atomic(path("c.json"), "{\"traceEvents\":[]}");
  expect_refused({"a.trace.json", "c.json"}, "c.json: found a trace that tessera has not", 3);
  write_file_atomic(path("c.json"), "{\"key\":\"parallel.ranks\",\"rows\":[]}");
  expect_refused({"a.json", "c.json"}, "c.json: found no \"axes\", expected what", 3);
  json wrong = b;
  wrong["step_seconds"] = 1.0;
  write_file_atomic(path("c.json"), wrong.dump());
  expect_refused({"a.json", "c.json"}, "c.json: its causes add up to ", 3);
  wrong["step_seconds"] = 1e300;
  write_file_atomic(path("c.json"), wrong.dump());
  expect_refused({"a.json", "c.json"}, "c.json: found \"step_seconds\": 1e+300, expected 0 to", 3);
  // Longer than doubles have picoseconds for.
  json slow = b;
  const double factor = 50'000.0 / slow.at("step_seconds").get<double>();
  slow["step_seconds"] = 50'000.0;
  for (json& cause : slow["classes"][slow["critical_class"].get<std::size_t>()]["causes"]) {
    cause["seconds"] = cause.at("seconds").get<double>() * factor;
  }
  write_file_atomic(path("c.json"), slow.dump());
  EXPECT_THAT(compared({"a.json", "c.json"}), HasSubstr(" 5e+04 s in B"));
  wrong = b;
  wrong["classes"][0]["causes"][0]["seconds"] = "long";
  write_file_atomic(path("c.json"), wrong.dump());
  expect_refused({"a.json", "c.json"}, "c.json: found \"seconds\": \"long\", expected 0 to", 3);
}

// The cluster's cores are slower than any.
TEST_F(CompareTest, TrainingSaysThePredictedStep) {
  const Outcome outcome =
      train("run", {"--train.steps=22", "--run.threads=1", "--cluster.file=" + cluster("curve")});
  ASSERT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("step: "),
                    HasSubstr(" s predicted by the figures of " + cluster("curve") +
                              " (the cluster file says no source"),
                    HasSubstr("warning: step "),
                    HasSubstr("% shorter, by the median of 20 steps")));
  const std::string sessions = read_file(path("run/sessions.jsonl"));
  const json start = json::parse(sessions.substr(0, sessions.find('\n')));
  const json simulated = json::parse(
      tessera({"simulate", "run.toml", "--run.threads=1", "--cluster=curve.toml", "--json"}).out);
  EXPECT_EQ(start.at("predicted_step_seconds"), simulated.at("step_seconds"));
  ASSERT_EQ(tessera({"report", "run"}).code, 0);
  EXPECT_THAT(start.at("predicted_by").get<std::string>(), StartsWith("the cluster file says no"));
  EXPECT_THAT(read_file(path("report.html")),
              AllOf(HasSubstr(" a step, predicted "), HasSubstr("(the cluster file says no")));
  EXPECT_THAT(train("none", {"--train.steps=22"}).err, Not(HasSubstr("predicted")));
  EXPECT_THAT(train("cores", {"--train.steps=22", "--cluster.file=" + cluster("cores")}).err,
              Not(HasSubstr("predicted")));
}

TEST_F(CompareTest, TrainingPredictsNothingForOtherDevices) {
  std::string text = read_file(path("curve.toml"));
  text.erase(text.find("[host]"));
  text.replace(text.find("memory = 0"), 10, "memory = \"80 GB\"");
  write_file_atomic(path("gpus.toml"), text);
  const Outcome outcome = train("run", {"--train.steps=1", "--cluster.file=" + cluster("gpus")});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("gpus.toml is of GPUs, and the run is on the CPU"));
}

TEST_F(CompareTest, ExplainDrawsMemory) {
  const Outcome outcome = tessera({"explain", "run.toml", "--memory-picture=memory.svg"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  const std::string svg = read_file(path("memory.svg"));
  EXPECT_THAT(svg,
              AllOf(StartsWith("<svg "),
                    HasSubstr(">arena "),
                    HasSubstr(">peak "),
                    HasSubstr(": parameter ")));
  EXPECT_LE(svg.size(), 200'000U);
  const Outcome wrong = tessera({"explain", "run.toml", "--memory-picture=memory.png"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err,
              HasSubstr("--memory-picture=memory.png: expected a name that ends in .svg"));
  const Outcome nowhere = tessera({"explain", "run.toml", "--memory-picture=no/memory.svg"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("is to be made in no, which does not exist"));
}

}  // namespace
}  // namespace tessera
