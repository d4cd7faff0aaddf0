// What moves and what is held, by the formulas of mesh/placement.h, by the program, and in a run;
// and that models train on quantized wires.

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/mesh/traffic.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/step_traffic.h"
#include "tessera/state/training_state.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

constexpr auto kState = static_cast<std::size_t>(TrafficClass::kState);
constexpr auto kTensor = static_cast<std::size_t>(TrafficClass::kTensor);
constexpr auto kScalar = static_cast<std::size_t>(TrafficClass::kScalar);

// Draws that are a pure function of the seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}

  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(uniform(seed_, drawn_++) * static_cast<double>(end));
  }

  template <class T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(std::ssize(values)))];
  }

  // No format, one for all levels, or one for each.
  Wire wire(std::size_t levels) {
    const std::vector<WireFormat> formats = {
        WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4};
    Wire wire{.formats = {}, .block = of<std::int64_t>({2, 16, 64, 128, 256})};
    const std::vector<std::size_t> counts = {0, 1, levels};
    for (std::size_t i = of(counts); i > 0; --i) {
      wire.formats.push_back(of(formats));
    }
    return wire;
  }

  Placement placement(const Mesh& mesh) {
    while (true) {
      const std::vector<std::int64_t> degrees = data_degrees(mesh);
      const Placement placement = {.param = of(degrees),
                                   .secondary = of(degrees),
                                   .grad = of(degrees),
                                   .optimizer = of(degrees)};
      if (placement.param % placement.secondary == 0 && placement.grad % placement.param == 0 &&
          placement.optimizer % placement.grad == 0) {
        return placement;
      }
    }
  }

  StateWires wires(const Mesh& mesh) {
    const std::size_t levels = data_levels(mesh).size();
    return {.param = wire(levels),
            .secondary = wire(levels),
            .grad = wire(levels),
            .update = wire(levels)};
  }

 private:
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
};

std::int64_t degree_of(const Mesh& mesh, AxisGroup group) {
  std::int64_t degree = 1;
  for (const MeshAxis& axis : mesh.axes) {
    degree *= axis.group == group ? axis.size : 1;
  }
  return degree;
}

// A model whose heads and widths the tensor ranks divide, with an odd vocabulary.
RankRun random_run(Draw& draw, const Mesh& mesh) {
  const std::int64_t tensor = degree_of(mesh, AxisGroup::kTensor);
  const std::int64_t data = degree_of(mesh, AxisGroup::kData);
  RankRun run{.model = {.dim = 4 * tensor,
                        .layers = 2,
                        .heads = 2 * tensor,
                        .kv_heads = tensor,
                        .ffn = 3 * tensor,
                        .vocab = 67},
              .mesh = mesh,
              .placement = draw.placement(mesh),
              .microbatches = draw.of<std::int64_t>({1, 3}),
              .steps = 2,
              .dtype = draw.of<DType>({DType::kF32, DType::kBF16}),
              .overlap = draw.below(2) == 1,
              .wires = draw.wires(mesh)};
  run.global_batch = data * run.microbatches;
  run.moments = draw.of<DType>({DType::kF32, DType::kBF16});
  run.secondary_use = draw.of<SecondaryUse>({SecondaryUse::kAll, SecondaryUse::kBackward});
  run.model.tied = draw.below(3) == 0;
  return run;
}

std::string text(const RankRun& run) {
  const auto& [param, secondary, grad, optimizer] = run.placement;
  return format(
      "{} ranks, placement ({}, {}, {}, {}), {} microbatches, {}, moments {}, wires \"{}\" \"{}\" "
      "\"{}\" \"{}\"{}",
      run.mesh.num_ranks(),
      param,
      secondary,
      grad,
      optimizer,
      run.microbatches,
      name(run.dtype),
      name(run.moments),
      to_string(run.wires.param.formats),
      to_string(run.wires.secondary.formats),
      to_string(run.wires.grad.formats),
      to_string(run.wires.update.formats),
      run.model.tied ? ", tied" : "");
}

// The elements of a parameter's part on one rank, how often a microbatch gathers it (the table of
// embeddings in forward alone, the head in one op with its gradients, both at once where they are
// one; all others twice), and how many gradients it has over several microbatches.
struct Parameter {
  std::int64_t elements = 0;
  std::int64_t gathers = 2;
  std::int64_t uses = 1;
};

std::int64_t num_gradients(const RankRun& run, const Parameter& parameter) {
  return run.microbatches > 1 ? parameter.uses : 1;
}

std::vector<Parameter> parameters(const RankRun& run) {
  const std::int64_t tensor = degree_of(run.mesh, AxisGroup::kTensor);
  const LlamaConfig& model = run.model;
  const std::int64_t head_dim = model.dim / model.heads;
  const std::int64_t entries = (model.vocab + tensor - 1) / tensor;
  std::vector<Parameter> all = {
      {.elements = entries * model.dim, .gathers = 1, .uses = model.tied ? 2 : 1},
      {.elements = model.dim}};
  if (!model.tied) {
    all.push_back({.elements = entries * model.dim, .gathers = 1});
  }
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::int64_t query = model.heads * head_dim * model.dim / tensor;
    const std::int64_t key = model.kv_heads * head_dim * model.dim / tensor;
    const std::int64_t wide = model.ffn * model.dim / tensor;
    for (const std::int64_t elements :
         {model.dim, query, key, key, query, model.dim, wide, wide, wide}) {
      all.push_back({.elements = elements});
    }
  }
  return all;
}

void add(std::vector<std::int64_t>& total,
         const std::vector<std::int64_t>& bytes,
         std::int64_t times) {
  total.resize(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    total[i] += times * bytes[i];
  }
}

// The gathers of a parameter in all microbatches: forward's, and backward's where there are two.
void add_gathers(std::vector<std::int64_t>& total,
                 const RankRun& run,
                 const StateTraffic& traffic,
                 std::int64_t gathers) {
  const bool has_secondary = run.placement.secondary < run.placement.param;
  const bool forward_reads_it = has_secondary && run.secondary_use == SecondaryUse::kAll;
  add(total, forward_reads_it ? traffic.secondary_gather : traffic.param_gather, run.microbatches);
  add(total,
      has_secondary ? traffic.secondary_gather : traffic.param_gather,
      run.microbatches * (gathers - 1));
}

// What state_traffic() says that a step sends on each of data_levels().
std::vector<std::int64_t> expected_state(const RankRun& run) {
  std::vector<std::int64_t> total;
  for (const Parameter& parameter : parameters(run)) {
    const StateTraffic traffic = state_traffic(
        run.placement, wire_bytes(run.wires, parameter.elements, run.dtype, run.mesh), run.mesh);
    add_gathers(total, run, traffic, parameter.gathers);
    add(total, traffic.secondary_write, 1);
    add(total, traffic.grad_reduce, run.microbatches * num_gradients(run, parameter));
    add(total, traffic.step_reduce, 1);
    add(total, traffic.step_gather, 1);
  }
  return total;
}

// Of one class on each of data_levels().
std::vector<std::int64_t> on_levels(const Traffic& traffic, const Mesh& mesh, std::size_t which) {
  std::vector<std::int64_t> bytes;
  for (const DataLevel& level : data_levels(mesh)) {
    const auto found = traffic.find(level.name);
    bytes.push_back(found == traffic.end() ? 0 : found->second.at(which));
  }
  return bytes;
}

// No op cuts a sequence over context ranks yet.
Mesh mesh_without_context(std::uint64_t seed) {
  Mesh mesh = random_mesh(seed).mesh;
  while (degree_of(mesh, AxisGroup::kContext) > 1) {
    seed += 1000;
    mesh = random_mesh(seed).mesh;
  }
  return mesh;
}

TEST(Wires, ProgramsSendWhatTheFormulasSay) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Draw draw(1000 + seed);
    const Mesh mesh = mesh_without_context(seed);
    const RankRun run = random_run(draw, mesh);
    SCOPED_TRACE(format("seed {}: {}", seed, text(run)));
    const Traffic planned = by_level(step_traffic(rank_program(run, nullptr)), mesh);
    ASSERT_EQ(on_levels(planned, mesh, kState), expected_state(run));
  }
}

StateBytes held_states(const Program& program) {
  const auto held = [&](Category category) {
    std::int64_t total = 0;
    for (const Buffer& buffer : program.buffers) {
      total += buffer.category == category ? buffer.bytes : 0;
    }
    return total;
  };
  // The loss that waits for the update lies among the gradients.
  constexpr std::int64_t kLossBytes = 4;
  return {.param = held(Category::kParameter),
          .secondary = held(Category::kSecondary),
          .grad = held(Category::kGradient) - kLossBytes,
          .optimizer = held(Category::kOptimizer)};
}

// A program's states by category, against state_bytes() of every parameter.
TEST(Wires, ProgramsHoldWhatTheFormulasSay) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Draw draw(2000 + seed);
    const Mesh mesh = mesh_without_context(seed);
    const RankRun run = random_run(draw, mesh);
    SCOPED_TRACE(format("seed {}: {}", seed, text(run)));
    StateBytes expected;
    for (const Parameter& parameter : parameters(run)) {
      const StateBytes bytes = state_bytes(run.placement,
                                           {.elements = parameter.elements,
                                            .ranks = data_degrees(mesh).back(),
                                            .compute = run.dtype,
                                            .moments = run.moments});
      expected.param += bytes.param;
      expected.secondary += bytes.secondary;
      expected.grad += bytes.grad * num_gradients(run, parameter);
      expected.optimizer += bytes.optimizer;
    }
    ASSERT_EQ(held_states(rank_program(run, nullptr)), expected);
  }
}

// With adapters, the states of a frozen weight are the weight and its second copy, and it is
// gathered and nothing else; what stands before the first adapter has no backward.
TEST(Wires, ProgramsWithAdaptersHoldAndSendWhatTheFormulasSay) {
  const std::set<std::string> used_once = {"tok_embeddings.weight",
                                           "output.weight",
                                           "layers.0.attention_norm.weight",
                                           "layers.0.attention.wq.weight",
                                           "layers.0.attention.wk.weight",
                                           "layers.0.attention.wv.weight",
                                           "layers.0.attention.wq.weight.lora_a"};
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Draw draw(4000 + seed);
    const Mesh mesh = virtual_mesh(draw.of<std::int64_t>({2, 4, 8}));
    RankRun run = random_run(draw, mesh);
    run.other = describe_llama(run.model);
    run.other.adapters = {.rank = 2, .alpha = 4.0, .targets = {"wq", "wo", "w2"}};
    SCOPED_TRACE(format("seed {}: {}", seed, text(run)));
    StateBytes expected;
    std::vector<std::int64_t> sent;
    const Graph graph = training_graph(run.other, run.global_batch, 16, run.dtype);
    for (const ParameterInit& parameter : parameter_inits(graph)) {
      const StateBytes bytes = state_bytes(run.placement,
                                           {.elements = parameter.type.num_elements(),
                                            .ranks = data_degrees(mesh).back(),
                                            .compute = run.dtype,
                                            .moments = run.moments});
      expected.param += bytes.param;
      expected.secondary += bytes.secondary;
      expected.grad += parameter.frozen ? 0 : bytes.grad;
      expected.optimizer += parameter.frozen ? 0 : bytes.optimizer;
      const StateTraffic traffic =
          state_traffic(run.placement,
                        wire_bytes(run.wires, parameter.type.num_elements(), run.dtype, run.mesh),
                        run.mesh);
      add_gathers(sent, run, traffic, used_once.contains(parameter.name) ? 1 : 2);
      const std::int64_t updates = parameter.frozen ? 0 : 1;
      add(sent, traffic.secondary_write, updates);
      add(sent, traffic.grad_reduce, updates * run.microbatches);
      add(sent, traffic.step_reduce, updates);
      add(sent, traffic.step_gather, updates);
    }
    const Program program = rank_program(run, nullptr);
    EXPECT_EQ(held_states(program), expected);
    EXPECT_EQ(on_levels(by_level(step_traffic(program), mesh), mesh, kState), sent);
  }
}

class RunTest : public testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Ranks, RunTest, testing::Values(2, 4, 6, 8, 12));

// Every class and level, over placements and wires.
TEST_P(RunTest, CountsWhatItsProgramSends) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Draw draw(3000 + seed);
    const std::int64_t tensor = seed % 2 == 0 || GetParam() % 2 != 0 ? 1 : 2;
    const Mesh mesh = virtual_mesh(GetParam(), tensor);
    const RankRun run = random_run(draw, mesh);
    SCOPED_TRACE(format("seed {}: {}", seed, text(run)));
    Traffic planned;
    tessera::add(planned, by_level(step_traffic(rank_program(run, nullptr)), mesh), run.steps);
    const Traffic sent = run_ranks(run).sent;
    EXPECT_EQ(sent, planned);
    std::vector<std::int64_t> expected;
    add(expected, expected_state(run), run.steps);
    EXPECT_EQ(on_levels(sent, mesh, kState), expected);
    const ClassBytes& pair = sent.at("pair");
    EXPECT_EQ(pair[kTensor] > 0, tensor > 1);
    EXPECT_GT(pair[kScalar], 0);
  }
}

struct Scheme {
  std::string name;
  StateWires wires;
};

// ZeRO++ and the Frontier scheme, with the formats that their authors use, train as full precision
// does; run_ranks() requires all ranks to agree to the bit.
TEST(Wires, QuantizedTrainingFollowsFullPrecision) {
  RankRun run{.model = {.dim = 32, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 64, .vocab = 67},
              .mesh = virtual_mesh(8),
              .microbatches = 2,
              .global_batch = 16,
              .steps = 40,
              .one_batch = true};
  const Wire int8 = {.formats = {WireFormat::kInt8}};
  const Wire int4 = {.formats = {WireFormat::kInt4}};
  const RankResult full = run_ranks(run);
  const auto progress = [](const RankResult& result) {
    return result.losses.front() - result.losses.back();
  };
  ASSERT_GT(progress(full), 3.0F);
  for (const Scheme& scheme :
       {Scheme{"zeropp", {.param = int8, .secondary = {}, .grad = int4, .update = {}}},
        Scheme{"topo-int8", preset("topo-int8", run.mesh).wires},
        Scheme{"fsdp", {.param = int8, .secondary = int8, .grad = int4, .update = {}}}}) {
    run.placement = preset(scheme.name, run.mesh).placement;
    run.wires = scheme.wires;
    const RankResult quantized = run_ranks(run);
    EXPECT_NE(quantized.losses.back(), full.losses.back()) << scheme.name;
    EXPECT_NEAR(progress(quantized), progress(full), 0.05F * progress(full)) << scheme.name;
  }
}

}  // namespace
}  // namespace tessera
