// Context ranks share each sequence and change nothing: the same losses and weights as one rank,
// closely (docs/design/determinism.md, D4), and bit by bit under every other change of a run with
// as many of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/models/family.h"
#include "tessera/ops/all_ops.h"
#include "tessera/ops/op.h"
#include "tessera/program/operand_types.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

RankRun context_run(const MeshDegrees& degrees) {
  RankRun run = {.model = odd_llama(), .mesh = local_mesh(degrees)};
  run.global_batch = 4;
  run.sequence_length = 48;
  run.steps = 4;
  return run;
}

RankRun alone(RankRun run) {
  run.mesh = {};
  run.placement = {};
  run.sequence_parallel = false;
  run.pipeline = {};
  return run;
}

std::string text(std::int64_t context, ContextBalance balance, std::int64_t document_length) {
  return format(
      "{} context ranks, {}, documents of {}", context, to_string(balance), document_length);
}

// How many ranks, and how they reach the keys of others.
struct Degree {
  std::int64_t context;
  ContextKind kind;
};

std::string name_of(const testing::TestParamInfo<Degree>& info) {
  return format("{}{}", to_string(info.param.kind), info.param.context);
}

class ContextDegrees : public testing::TestWithParam<Degree> {};

INSTANTIATE_TEST_SUITE_P(Ranks,
                         ContextDegrees,
                         testing::Values(Degree{2, ContextKind::kGather},
                                         Degree{3, ContextKind::kGather},
                                         Degree{4, ContextKind::kGather},
                                         Degree{2, ContextKind::kRing},
                                         Degree{3, ContextKind::kRing},
                                         Degree{4, ContextKind::kRing}),
                         name_of);

// Documents of one token, of a prime number, that end at cuts and next to them, and of a sequence.
TEST_P(ContextDegrees, AreCloseToOneRankWithAnyDocuments) {
  for (const std::int64_t document_length : {0, 1, 7, 12, 13, 24}) {
    RankRun run = context_run({.context = GetParam().context});
    run.context.kind = GetParam().kind;
    run.document_length = document_length;
    run.steps = 2;
    const RankResult expected = run_ranks(alone(run));
    for (const ContextBalance balance : {ContextBalance::kZigzag, ContextBalance::kNone}) {
      run.context.balance = balance;
      expect_close(run_ranks(run), expected, text(GetParam().context, balance, document_length));
    }
  }
}

TEST_P(ContextDegrees, ChangeNoBitsUnderAnyPlacement) {
  RankRun run = context_run({.context = GetParam().context});
  run.context.kind = GetParam().kind;
  run.document_length = 13;
  const RankResult expected = run_ranks(run);
  for (const Placement& placement : placements(run.mesh)) {
    run.placement = placement;
    run.overlap = !run.overlap;
    run.recompute = run.overlap;
    expect_equal(run_ranks(run), expected, format("parameters {}", placement.param));
  }
}

class ContextFamilies : public testing::TestWithParam<const char*> {
 protected:
  static void expect_close_to_one_rank(ContextKind kind) {
    RankRun run = context_run({.data = 2, .context = 2});
    run.context.kind = kind;
    run.other = odd_model(GetParam());
    run.document_length = 17;
    const RankResult expected = run_ranks(run);
    expect_close(expected, run_ranks(alone(run)), GetParam());
    run.recompute = true;
    run.overlap = true;
    expect_equal(run_ranks(run), expected, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(
    All,
    ContextFamilies,
    testing::Values(
        "llama3", "gpt2", "neox", "qwen3", "mistral", "phi3", "olmo2", "gemma2", "gemma3"));

TEST_P(ContextFamilies, AreCloseToOneRank) {
  expect_close_to_one_rank(ContextKind::kGather);
}

TEST_P(ContextFamilies, InRingsAreCloseToOneRank) {
  expect_close_to_one_rank(ContextKind::kRing);
}

constexpr ContextKind kBothKinds[] = {ContextKind::kGather, ContextKind::kRing};

// Windows narrower than a rank's part, and wider.
void expect_windows_reach_over_cuts(ContextKind kind) {
  for (const std::int64_t window : {1, 5, 20}) {
    const ModelFamily& family = model_family("gemma2");
    RankRun run = context_run({.context = 4});
    run.context.kind = kind;
    run.other = family.describe(family.resolve({.name = "gemma2",
                                                .dim = 48,
                                                .layers = 3,
                                                .heads = 8,
                                                .ffn = 27,
                                                .vocab = 67,
                                                .window = window,
                                                .global_every = 2,
                                                .attention_softcap = 0.5}));
    run.document_length = 31;
    expect_close(run_ranks(run), run_ranks(alone(run)), format("window {}", window));
  }
}

TEST(Context, WindowsAndSoftcapsReachOverCuts) {
  for (const ContextKind kind : kBothKinds) {
    expect_windows_reach_over_cuts(kind);
  }
}

void expect_composes_with_tensor(ContextKind kind) {
  for (const bool sequence_parallel : {false, true}) {
    RankRun run = context_run({.tensor = 2, .context = 2});
    run.context.kind = kind;
    run.other = odd_model("llama3", attention_and_feed_forward());
    run.sequence_parallel = sequence_parallel;
    run.document_length = 11;
    const RankResult expected = run_ranks(run);
    expect_close(expected, run_ranks(alone(run)), format("sequence {}", sequence_parallel));
    run.overlap = true;
    run.recompute = true;
    run.tensor_beside = true;
    expect_equal(run_ranks(run), expected, format("sequence {}", sequence_parallel));
  }
}

TEST(Context, ComposesWithTensorAndSequenceParallelism) {
  for (const ContextKind kind : kBothKinds) {
    expect_composes_with_tensor(kind);
  }
}

RankRun ulysses_run(const MeshDegrees& degrees) {
  RankRun run = context_run(degrees);
  run.other = odd_model("llama3");
  run.context = {.kind = ContextKind::kUlysses, .balance = ContextBalance::kNone};
  run.document_length = 19;
  return run;
}

// Each rank has all tokens of some heads; what it computes of them is what one rank does.
TEST(Ulysses, IsCloseToOneRankAndBitwiseUnderPlacements) {
  for (const std::int64_t microbatches : {1, 2}) {
    for (const std::int64_t context : {2, 4}) {
      RankRun run = ulysses_run({.context = context});
      run.microbatches = microbatches;
      run.placement = {.param = 1, .secondary = 1, .grad = context, .optimizer = context};
      const RankResult expected = run_ranks(run);
      expect_close(expected, run_ranks(alone(run)), format("{} ranks", context));
      run.placement = preset("fsdp", run.mesh).placement;
      run.overlap = true;
      run.recompute = true;
      expect_equal(run_ranks(run), expected, format("{} ranks", context));
    }
  }
}

TEST(Ulysses, ExchangesTheHeadsThatTensorRanksLeave) {
  for (const bool sequence_parallel : {false, true}) {
    RankRun run = ulysses_run({.tensor = 2, .context = 2});
    run.sequence_parallel = sequence_parallel;
    const RankResult expected = run_ranks(run);
    expect_close(expected, run_ranks(alone(run)), format("sequence {}", sequence_parallel));
    run.mesh = local_mesh({.tensor = 2, .context = 2, .pipeline = 2});
    run.microbatches = 2;
    run.pipeline = {.layers = {2, 1}};
    const RankResult piped = run_ranks(run);
    run.mesh = local_mesh({.tensor = 2, .context = 2});
    run.pipeline = {};
    expect_equal(piped, run_ranks(run), "pipeline");
  }
}

// Queries, keys, values and outputs to other ranks and back, as gradients again.
TEST(Ulysses, SendsWhatTheFormulaSays) {
  for (const std::int64_t context : {2, 4}) {
    RankRun run = ulysses_run({.context = context});
    run.steps = 1;
    const std::int64_t rows = run.global_batch * run.sequence_length / context;
    constexpr std::int64_t kOfToken = std::int64_t{6} * 4 * (2 * 8 + 2 * 8);  // q and o, k and v
    const std::int64_t bytes = 6 * rows * kOfToken / context * (context - 1);
    const RankResult result = run_ranks(run);
    EXPECT_EQ(result.sent.begin()->second.at(static_cast<std::size_t>(TrafficClass::kTensor)),
              bytes)
        << context;
  }
}

// On either side of a pipeline's boundary are the same tokens of a sequence.
void expect_pipelines_change_no_bits(ContextKind kind) {
  RankRun run = context_run({.context = 2});
  run.context.kind = kind;
  run.other = odd_model("neox");
  run.microbatches = 4;
  run.document_length = 10;
  run.placement = {.param = 2, .secondary = 2, .grad = 2, .optimizer = 2};
  const RankResult expected = run_ranks(run);
  run.mesh = local_mesh({.context = 2, .pipeline = 2});
  for (const auto& [schedule, layers] : std::map<PipelineSchedule, std::vector<std::int64_t>>{
           {PipelineSchedule::k1F1B, {2, 1}}, {PipelineSchedule::kZbV, {1, 1, 1, 0}}}) {
    run.pipeline = {.layers = layers, .schedule = schedule};
    expect_equal(run_ranks(run), expected, format("{} stages", layers.size()));
  }
}

TEST(Context, PipelinesChangeNoBits) {
  for (const ContextKind kind : kBothKinds) {
    expect_pipelines_change_no_bits(kind);
  }
}

void expect_half_and_float8(ContextKind kind) {
  for (const bool is_float8 : {false, true}) {
    RankRun run = context_run({.data = 2, .context = 2});
    run.context.kind = kind;
    run.other = odd_model("llama3", {"wq", "wv"});
    run.dtype = DType::kBF16;
    if (is_float8) {
      run.float8 = Float8Options{};
    }
    const RankResult expected = run_ranks(run);
    const RankResult single = run_ranks(alone(run));
    for (std::size_t i = 0; i < single.losses.size(); ++i) {
      EXPECT_NEAR(expected.losses[i], single.losses[i], 2e-2) << "step " << i + 1;
    }
    run.placement = preset("fsdp", run.mesh).placement;
    run.overlap = true;
    expect_equal(run_ranks(run), expected, is_float8 ? "float8" : "bf16");
  }
}

TEST(Context, HalfAndFloat8AreBitwiseUnderPlacements) {
  for (const ContextKind kind : kBothKinds) {
    expect_half_and_float8(kind);
  }
}

// What keys and values are gathered from others in forward, and again in backward, and gradients
// of them that others need: (C - 1) / C of both, three times per layer and microbatch.
TEST(Context, SendsWhatTheFormulaSays) {
  for (const std::int64_t context : {2, 4}) {
    RankRun run = context_run({.context = context});
    run.microbatches = 2;
    run.steps = 1;
    run.model.layers = 1;
    const RankResult one = run_ranks(run);
    run.model.layers = 3;
    const RankResult three = run_ranks(run);
    const LlamaConfig& model = run.model;
    const std::int64_t kv = 2 * (run.global_batch / run.microbatches) * run.sequence_length *
                            model.kv_heads * (model.dim / model.heads) * 4;
    const std::int64_t bytes = 3 * kv / context * (context - 1) * run.microbatches;
    const auto activations = [](const RankResult& result) {
      return result.sent.begin()->second.at(static_cast<std::size_t>(TrafficClass::kTensor));
    };
    EXPECT_EQ(activations(three) - activations(one), 2 * bytes) << context;
    EXPECT_EQ(activations(one), bytes) << context;
  }
}

Mesh context_mesh(std::int64_t ranks) {
  return make_mesh(load_cluster(virtual_cluster(ranks)), {.context = ranks});
}

// What a rank sends along each axis, of activations.
std::map<std::string, std::int64_t> activations_sent(const RankResult& result) {
  std::map<std::string, std::int64_t> sent;
  for (const auto& [level, by_class] : result.sent) {
    sent[level] = by_class.at(static_cast<std::size_t>(TrafficClass::kTensor));
  }
  return sent;
}

// Levels of 2 x 2 and 2 x 3 ranks, and of 2 x 2 x 2: rings within rings.
TEST(Ring, TurnsWithinLevels) {
  for (const std::int64_t ranks : {4, 6, 8}) {
    RankRun run = context_run({});
    run.mesh = context_mesh(ranks);
    run.context.kind = ContextKind::kRing;
    run.document_length = 29;
    const RankResult expected = run_ranks(run);
    expect_close(expected, run_ranks(alone(run)), format("{} ranks", ranks));
    run.placement = preset("fsdp", run.mesh).placement;
    run.overlap = true;
    run.recompute = true;
    expect_equal(run_ranks(run), expected, format("{} ranks", ranks));
  }
}

// Of C ranks in rings of C1 within one of C2, per layer and microbatch, with V bytes of keys and
// values: (C1 - 1) C2 parts of V / C turn inside, C2 - 1 go to the next ring, in forward and in
// backward; their gradients follow, and once more home.
TEST(Ring, SendsWhatTheFormulaSays) {
  for (const std::int64_t outer : {1, 2, 3}) {
    RankRun run = context_run({.context = 2});
    if (outer > 1) {
      run.mesh = context_mesh(2 * outer);
    }
    run.context.kind = ContextKind::kRing;
    run.microbatches = 2;
    run.steps = 1;
    const LlamaConfig& model = run.model;
    const std::int64_t part = 2 * (run.global_batch / run.microbatches) * run.sequence_length /
                              (2 * outer) * model.kv_heads * (model.dim / model.heads) * 4;
    const std::int64_t all = part * model.layers * run.microbatches;
    std::map<std::string, std::int64_t> expected;
    expected[outer > 1 ? "pair" : "local"] = all * outer * (2 * (2 - 1) + 2);
    if (outer > 1) {
      expected["node"] = all * (2 * (outer - 1) + outer);
    }
    EXPECT_EQ(activations_sent(run_ranks(run)), expected);
  }
}

// The last step is attention's by name; those before it are made again with it, or not at all.
TEST(Ring, RecomputeKnowsAttentionByItsName) {
  RankRun run = context_run({.context = 4});
  run.context.kind = ContextKind::kRing;
  const RankResult expected = run_ranks(run);
  run.rules = {{.keep = {"attention"}}};
  expect_equal(run_ranks(run), expected, "attention kept");
  std::int64_t steps = 0;
  for (const Segment& segment : rank_program(run, nullptr).segments) {
    for (const Instruction& instruction : segment.instructions) {
      steps += instruction.op->get_if<AttentionPartAttrs>() != nullptr ? 1 : 0;
    }
  }
  EXPECT_EQ(steps, 4 * run.model.layers) << "of forward alone";
  run.rules = {{.keep = {"attention_part"}}};
  EXPECT_THROW(rank_program(run, nullptr), Error);
}

// Every rank's queries see the keys of one document alone: most steps see nothing.
TEST(Ring, StepsThatSeeNothingChangeNothing) {
  RankRun run = context_run({.context = 4});
  run.context = {.kind = ContextKind::kRing, .balance = ContextBalance::kNone};
  run.document_length = 12;
  RankRun gather = run;
  gather.context.kind = ContextKind::kGather;
  expect_close(run_ranks(run), run_ranks(gather), "documents of a part");
}

// Pairs of a query and a key that a rank's attention counts, of all of the step's calls.
double pairs(const RankRun& run) {
  const Program program = rank_program(run, nullptr);
  double pairs = 0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      for (const Work& part : work(*instruction.op, operand_types(instruction))) {
        pairs += part.kind == WorkKind::kAttention ? part.pairs : 0.0;
      }
    }
  }
  return pairs;
}

// A rank with a zigzag part has its share of the pairs exactly, the last rank of runs more.
TEST(Context, CountsThePairsThatARankSees) {
  for (const ContextKind kind : kBothKinds) {
    RankRun run = context_run({.context = 4});
    run.context.kind = kind;
    const double all = pairs(alone(run));
    EXPECT_DOUBLE_EQ(pairs(run), all / 4);
    run.context.balance = ContextBalance::kNone;
    EXPECT_DOUBLE_EQ(pairs(run), all / 4 * 7 / 4);
  }
}

}  // namespace
}  // namespace tessera
