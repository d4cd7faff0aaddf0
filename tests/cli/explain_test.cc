// tessera explain: one screen of what a run is, its parts by flags, and all of it as JSON.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/machine.h"
#include "tessera/base/units.h"
#include "tessera/plan/compile.h"
#include "tessera/program/program.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class ExplainTest : public TrainingTest {
 protected:
  std::string explained(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "explain");
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }

  static std::string frontier() {
    return "--cluster.file=" +
           (std::filesystem::path(TESSERA_SOURCE_DIR) / "configs/clusters/frontier.toml").string();
  }
};

// A 20B GPT-NeoX on 48 nodes of Frontier, one microbatch.
std::vector<std::string> neox(const std::string& preset) {
  return {"--model.name=neox",
          "--model.flavor=20B",
          "--parallel.ranks=384",
          "--train.global_batch=384",
          "--train.microbatch=1",
          "--train.dtype=bf16",
          "--data.sequence_length=2048",
          "--state.preset=" + preset};
}

TEST_F(ExplainTest, IsOneScreenAlsoOfTheLargestPlans) {
  std::vector<std::string> large = {"--model.flavor=405B",
                                    "--parallel.ranks=512",
                                    "--parallel.tensor=8",
                                    "--train.global_batch=1024",
                                    "--train.microbatch=1",
                                    "--data.sequence_length=8192",
                                    "--state.preset=topo",
                                    frontier()};
  const std::string text = explained(large);
  EXPECT_LE(std::ranges::count(text, '\n'), 45) << text;
  EXPECT_THAT(text,
              AllOf(StartsWith("model: llama3 405B; 405,853,388,800 parameters\n"),
                    HasSubstr("mesh of 512 ranks"),
                    HasSubstr("work of a step on a rank: "),
                    HasSubstr("\n  estimated time at the cluster's bandwidths: pair ")));
  large.emplace_back("--parameters");
  EXPECT_GT(std::ranges::count(explained(large), '\n'), 1000);
}

// None of these files is there, and most keys are not said.
// Rings lie as levels do: a level without an inner one is refused, with those that have one.
TEST_F(ExplainTest, NamesTheLevelsOfInnerRings) {
  const auto error = [&](int ranks, const char* level) {
    return tessera({"explain",
                    "--model.flavor=debug",
                    virtual_cluster(ranks),
                    format("--parallel.ranks={}", ranks),
                    format("--parallel.context={}", ranks),
                    "--context.kind=ring",
                    format("--context.inner={}", level)})
        .err;
  };
  EXPECT_THAT(error(8, "cluster"),
              HasSubstr("context.inner: found \"cluster\", expected \"pair\" or \"node\": the 8 "
                        "context ranks lie out to level \"cluster\""));
  EXPECT_THAT(error(2, "pair"),
              HasSubstr("context.inner: found \"pair\", expected none: the 2 context ranks lie "
                        "within one level \"pair\""));
  EXPECT_EQ(error(8, "node"), "");
}

TEST_F(ExplainTest, AsksForNothingThatItDoesNotUse) {
  EXPECT_THAT(explained({"--model.flavor=debug"}), HasSubstr("6,163,712 parameters"));
  EXPECT_THAT(explained({"--model.flavor=debug", "--lora.rank=4", "--validation.every=10"}),
              HasSubstr(", adapters of rank 4\n"));
  explained({"run.toml", "--data.files=none.txt", "--tokenizer.path=none.json", "--run.dir=none"});
  EXPECT_FALSE(std::filesystem::exists(path("none")));
  const Outcome outcome = tessera({"explain"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("a plan needs a model (model.flavor, "));
}

// Of the two, the flavor has one.
TEST_F(ExplainTest, WhatDoesNotFitAFlavorIsPlaced) {
  const Outcome outcome = tessera({"explain", "--model.flavor=405B", "--model.heads=2"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("--model.heads=2: model.kv_heads = 8 does not divide model.heads = 2"));
  write_test_file(path("flavor.toml"), "[model]\nflavor = \"405B\"\nheads = 2\n");
  EXPECT_THAT(tessera({"explain", "flavor.toml"}).err,
              HasSubstr("flavor.toml:3:9: model.kv_heads = 8 does not"));
}

TEST_F(ExplainTest, TheProgramIsReadBack) {
  const std::string text = explained({"run.toml", "--program"});
  const Program program = parse_program(text);
  EXPECT_EQ(to_string(program), text);
  const json whole = json::parse(explained({"run.toml", "--json", "--program"}));
  EXPECT_EQ(whole.at("program"), text);
  EXPECT_EQ(whole.at("memory").at("arena"), program.arena_bytes);
  EXPECT_THAT(explained({"run.toml", "--parameters", "--ops"}),
              AllOf(StartsWith("parameters: "), HasSubstr("\n\nwork of a step, by op")));
}

// What ran is what its plan compiles to: the text of the last level, as the run wrote it.
TEST_F(ExplainTest, ThePlanIsAllThatDecidesAProgram) {
  const std::vector<std::string> keys = {"--parallel.ranks=2",
                                         "--state.preset=zero1",
                                         "--train.dtype=bf16",
                                         "--train.microbatch=1",
                                         "--memory.recompute=full",
                                         "--train.steps=1",
                                         "--run.dir=run",
                                         "--passes.dump=dump"};
  std::vector<std::string> train = {"train", "run.toml"};
  train.insert(train.end(), keys.begin(), keys.end());
  ASSERT_EQ(tessera(train).code, 0);
  std::vector<std::string> plan = {"run.toml", "--plan"};
  plan.insert(plan.end(), keys.begin(), keys.end() - 1);
  const std::string text = explained(plan);
  const Plan read = parse_plan(text, "plan");
  EXPECT_EQ(to_string(read), text);
  const std::string program = to_string(compile(read, cpu_target()).step);
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("dump"))) {
    if (entry.path().filename().string().ends_with("-plan_memory.txt")) {
      EXPECT_EQ(program, read_file(entry.path()));
      ++found;
    }
  }
  EXPECT_EQ(found, 1);
  // A line for each pass says what it took, and of one whether it changed nothing: no head here has
  // a bias for bias_products().
  EXPECT_THAT(read_file(path("dump") / "passes.txt"),
              AllOf(HasSubstr("00-forward "),
                    ContainsRegex("-bias_products +[0-9.]+ ms +[0-9]+ nodes  .unchanged."),
                    ContainsRegex("-lower +[0-9.]+ ms +[0-9]+ nodes\n")));
}

// Without a GPU, and with what a GPU gets: logits in chunks, workspace of its libraries.
TEST_F(ExplainTest, CompilesForADeviceThatIsNotHere) {
  const std::vector<std::string> keys = {
      "run.toml", "--train.dtype=bf16", "--parallel.ranks=4", "--train.global_batch=8"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = keys;
    all.insert(all.end(), more.begin(), more.end());
    return explained(all);
  };
  const json facts = json::parse(with({"--target=h100", "--json", "--program"}));
  EXPECT_EQ(facts.at("plan"), with({"--target=h100", "--plan"}));
  EXPECT_EQ(facts.at("target").at("kind"), "cuda");
  EXPECT_EQ(facts.at("target").at("device"), "H100 SXM");
  EXPECT_EQ(facts.at("memory").at("limit_of"), "device");
  EXPECT_EQ(facts.at("memory").at("fits"), true);
  EXPECT_LT(facts.at("memory").at("limit").get<std::int64_t>(), 79'000'000'000);
  const std::string program = facts.at("program");
  EXPECT_EQ(program, with({"--run.device=cuda", "--program"}));
  EXPECT_EQ(program, with({"--target=h200", "--program"}));
  EXPECT_NE(program, with({"--target=cpu", "--program"}));
  EXPECT_THAT(program, HasSubstr("chunk="));
  EXPECT_THAT(with({"--target=h100"}),
              AllOf(HasSubstr("\n  for: H100 SXM\n"),
                    HasSubstr("and the H100 SXM has, beside what its libraries take, "),
                    HasSubstr("estimated time at the peak of the H100 SXM: ")));
  EXPECT_THAT(with({"--run.device=cuda"}),
              HasSubstr("of --target, would say whether that is there"));
}

// cuDNN takes no windows, and backward of documents in any order only.
TEST_F(ExplainTest, SaysWhatAttentionOnAGpuRunsByOwnKernels) {
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"run.toml",
                                    "--target=h100",
                                    "--train.dtype=bf16",
                                    "--model.dim=64",
                                    "--model.heads=4",
                                    "--model.layers=3"};
    all.insert(all.end(), more.begin(), more.end());
    return std::pair(explained(all), json::parse(explained([&] {
                       std::vector<std::string> as_json = all;
                       as_json.emplace_back("--json");
                       return as_json;
                     }())));
  };
  const auto expect = [&](const std::vector<std::string>& more, int forward, int backward) {
    const auto [text, facts] = with(more);
    const int own_forward = facts.at("work").at("attention").at("own_kernels");
    const int own_backward = facts.at("work").at("attention_backward").at("own_kernels");
    const int runs = facts.at("work").at("attention").at("runs");
    EXPECT_EQ(own_forward * 3, forward * runs);
    EXPECT_EQ(own_backward * 3, backward * runs);
    const std::string line = format(
        "cuDNN's: forward {} of {}, backward {} of {}\n", own_forward, runs, own_backward, runs);
    EXPECT_EQ(text.find(line) != std::string::npos, forward + backward > 0) << text;
  };
  expect({}, 0, 3);
  expect({"--data.document_mask=false"}, 0, 0);
  expect({"--model.name=mistral", "--model.window=5"}, 3, 3);
  expect({"--model.name=gemma3", "--model.window=5", "--model.global_every=3"}, 2, 3);
  expect({"--model.name=gemma2"}, 3, 3);  // a soft cap, in every layer
}

// OLMo 2's: q and k of each of two layers and microbatches, forward and what backward needs of it.
TEST_F(ExplainTest, SaysThatHeadsAreGatheredForTheirNorms) {
  const auto gathers = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {
        "run.toml", "--model.name=olmo2", "--model.dim=64", "--model.heads=4", "--model.layers=2"};
    all.insert(all.end(), more.begin(), more.end());
    const std::string text = explained(all);
    all.emplace_back("--json");
    const std::int64_t count = json::parse(explained(all)).at("work").at("gathered_heads");
    const std::string line =
        format("norms over all heads gather these from the tensor ranks: {} times\n", count);
    EXPECT_EQ(text.find(line) != std::string::npos, count > 0) << text;
    return count;
  };
  const std::vector<std::string> cut = {"--parallel.ranks=2", "--parallel.tensor=2"};
  EXPECT_EQ(gathers({}), 0);
  EXPECT_GE(gathers(cut), 8);
  std::vector<std::string> by_head = cut;
  by_head.emplace_back("--model.name=qwen3");
  EXPECT_EQ(gathers(by_head), 0);
}

TEST_F(ExplainTest, WritesTheScheduleOfAPipeline) {
  const std::vector<std::string> run = {"--model.flavor=debug",
                                        "--parallel.pipeline=2",
                                        "--train.global_batch=4",
                                        "--pipeline.schedule=zb-h1"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = run;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  EXPECT_THAT(
      explained(with({"--schedule"})),
      AllOf(StartsWith("rank 0  0F0"), HasSubstr("\nrank 1  "), Not(HasSubstr("columns)"))));
  EXPECT_EQ(explained(with({"--schedule=zb.csv", "--gantt=zb.svg"})), "");
  EXPECT_THAT(read_file(path("zb.csv")), StartsWith("0F0,0F1,0I0,"));
  EXPECT_THAT(read_file(path("zb.svg")), StartsWith("<svg "));
  // What it writes it runs, whatever else is printed.
  EXPECT_THAT(json::parse(explained({"--model.flavor=debug",
                                     "--parallel.pipeline=2",
                                     "--train.global_batch=4",
                                     "--pipeline.schedule=zb.csv",
                                     "--schedule=again.csv",
                                     "--json"}))
                  .at("pipeline")
                  .at("schedule"),
              "zb.csv");
  EXPECT_EQ(read_file(path("again.csv")), read_file(path("zb.csv")));
  const auto error = [&](const std::string& option) {
    std::vector<std::string> arguments = with({option, "--json"});
    arguments.insert(arguments.begin(), "explain");
    const Outcome outcome = tessera(arguments);
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  EXPECT_THAT(error("--schedule"), HasSubstr("expected one of the two"));
  EXPECT_THAT(error("--schedule=x.txt"), HasSubstr("expected a name that ends in .csv"));
  EXPECT_THAT(error("--gantt=x.png"), HasSubstr("expected a name that ends in .svg"));
}

TEST_F(ExplainTest, RefusesATargetThatItDoesNotKnow) {
  const Outcome outcome = tessera({"explain", "run.toml", "--target=mi300"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("\"mi300\" is not a target, expected one of cpu, cuda, h100, "),
                    HasSubstr("(--target=mi300)")));
}

// What the text says, and sums of what the parts say.
TEST_F(ExplainTest, JsonHoldsAllOfIt) {
  std::vector<std::string> arguments = {"run.toml",
                                        "--parallel.ranks=8",
                                        "--parallel.tensor=2",
                                        "--train.microbatch=1",
                                        "--state.preset=zeropp",
                                        virtual_cluster(8)};
  const std::string text = explained(arguments);
  arguments.emplace_back("--json");
  const json facts = json::parse(explained(arguments));
  EXPECT_EQ(facts.at("version"), 1);
  EXPECT_EQ(facts.at("mesh").at("ranks"), 8);
  EXPECT_EQ(facts.at("mesh").at("axes").size(), 3);
  EXPECT_EQ(facts.at("state").at("wires").at("grad"), json({"int4"}));
  EXPECT_EQ(facts.at("step").at("tokens"), kTokensPerStep);
  std::int64_t elements = 0;
  for (const json& tensor : facts.at("parameters").at("tensors")) {
    std::int64_t of_this = 1;
    for (const json& bound : tensor.at("shape")) {
      of_this *= bound.get<std::int64_t>();
    }
    elements += of_this;
  }
  EXPECT_EQ(facts.at("parameters").at("all"), elements);
  double flop = 0;
  for (const json& op : facts.at("work").at("ops")) {
    flop += op.at("flop").get<double>();
  }
  EXPECT_DOUBLE_EQ(facts.at("work").at("flop"), flop);
  std::int64_t sent = 0;
  for (const json& collective : facts.at("traffic").at("collectives")) {
    for (const json& axis : collective.at("sent")) {
      sent += axis.at("state").get<std::int64_t>() + axis.at("tensor").get<std::int64_t>() +
              axis.at("scalar").get<std::int64_t>();
    }
  }
  std::int64_t on_levels = 0;
  for (const json& level : facts.at("traffic").at("levels")) {
    for (const json& bytes : level.at("classes")) {
      on_levels += bytes.get<std::int64_t>();
    }
    const double bandwidth = level.at("bandwidth");
    EXPECT_GT(bandwidth, 0);
  }
  EXPECT_EQ(on_levels, sent);
  EXPECT_EQ(facts.at("memory").at("limit"), json());
  EXPECT_EQ(facts.at("memory").at("fits"), json());
  EXPECT_THAT(
      text,
      HasSubstr(format("({} bytes; ",
                       format_grouped(facts.at("memory").at("arena").get<std::int64_t>()))));
}

// The seconds by hand: a node's four cards of 25 GB/s are shared by its eight devices.
TEST_F(ExplainTest, SaysWhatTheSlowestLevelCarries) {
  const auto facts = [&](const std::string& preset) {
    std::vector<std::string> arguments = neox(preset);
    arguments.insert(arguments.end(), {frontier(), "--json"});
    return json::parse(explained(arguments)).at("traffic").at("levels");
  };
  const auto text = [&](const std::string& preset, const std::string& more) {
    std::vector<std::string> arguments = neox(preset);
    arguments.insert(arguments.end(), {frontier(), more});
    return explained(arguments);
  };
  const json levels = facts("topo");
  EXPECT_EQ(levels[0].at("bandwidth"), 200e9);
  EXPECT_EQ(levels[1].at("bandwidth"), 50e9);
  EXPECT_EQ(levels[2].at("bandwidth"), 12.5e9);
  std::int64_t sent = 0;
  for (const json& bytes : levels[2].at("classes")) {
    sent += bytes.get<std::int64_t>();
  }
  EXPECT_DOUBLE_EQ(levels[2].at("seconds"), static_cast<double>(sent) / 12.5e9);
  // 20.55 G parameters in bf16, a 48th of a node's part is a rank's: 47/48 of 2 bytes of an eighth.
  EXPECT_NEAR(levels[2].at("purposes").at("updates").get<double>(),
              20554567680.0 * 2 / 8 * 47 / 48,
              20554567680.0 * 0.002);
  EXPECT_THAT(text("topo", "--run.seed=1"),
              AllOf(HasSubstr("\n  on cluster, the slowest: updates 4.70 GiB, gradients 1.21 GiB"),
                    HasSubstr("state.wire_update = \"int8\" would send 2.38 GiB of them"),
                    HasSubstr("on the wire: parameters int8 (of topo), gradients int4 (of topo), "
                              "updates as it is;")));
  EXPECT_THAT(text("topo", "--state.wire_update=int8"),
              AllOf(HasSubstr("updates 2.38 GiB"),
                    HasSubstr("gradients int4 (of topo), updates int8;"),
                    Not(HasSubstr("would send"))));
  // As published, both hops of a step are quantized: 0.75 of the bytes of bf16, and scales.
  EXPECT_THAT(text("topo-int8", "--run.seed=1"),
              AllOf(HasSubstr("\n  on cluster, the slowest: updates 2.38 GiB, gradients 1.21 GiB"),
                    HasSubstr("updates int8 (of topo-int8);"),
                    Not(HasSubstr("would send"))));
  EXPECT_THAT(text("fsdp", "--run.seed=1"), Not(HasSubstr("would send")));
}

TEST_F(ExplainTest, ThisMachinesMemoryIsThatOfItsOwnPlans) {
  EXPECT_THAT(explained({"run.toml"}), HasSubstr("and this machine has free for it"));
  const std::string many = std::to_string(2 * usable_cores());
  const std::string other = explained({"run.toml",
                                       "--train.microbatch=1",
                                       "--parallel.ranks=" + many,
                                       "--train.global_batch=" + many});
  EXPECT_THAT(other, Not(HasSubstr("this machine")));
  EXPECT_THAT(other, ContainsRegex("\n  it needs [0-9.]+ [KM]iB on a rank; memory.limit_bytes"));
}

}  // namespace
}  // namespace tessera
