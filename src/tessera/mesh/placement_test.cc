#include "tessera/mesh/placement.h"

#include <algorithm>
#include <array>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/mesh/tensor_part.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kNodes = 16;

// Frontier's radices, 16 nodes: D = 2, 8, 128.
Mesh frontier() {
  return make_mesh(test_cluster({2, 4, 9408}), {.data = 8 * kNodes});
}

std::string preset_error(std::string_view name) {
  return error_of(ErrorCode::kInvalidConfig, [&] { preset(name, frontier()); });
}

std::string placement_error(const Placement& placement) {
  return error_of(ErrorCode::kInvalidConfig, [&] { validate(placement, frontier()); });
}

TEST(DataLevels, CountTheRanksLeftInsideEachLevel) {
  const std::vector<DataLevel> expected = {
      {"pair", 2, 2, {0}}, {"node", 4, 8, {1}}, {"cluster", 16, 128, {2}}};
  EXPECT_EQ(data_levels(frontier()), expected);
  EXPECT_THAT(data_degrees(frontier()), ElementsAre(1, 2, 8, 128));
  // Tensor takes the pair and half of the node; context and data share the rest.
  const Mesh mesh = make_mesh(test_cluster({2, 8, 3}), {.data = 6, .tensor = 4, .context = 2});
  const std::vector<DataLevel> mixed = {{"node", 4, 4, {2, 3}}, {"cluster", 3, 12, {4}}};
  EXPECT_EQ(data_levels(mesh), mixed);
  EXPECT_THAT(data_degrees(mesh), ElementsAre(1, 4, 12));
  EXPECT_THAT(data_degrees(make_mesh(test_cluster({2}), {.tensor = 2})), ElementsAre(1));
}

TEST(Preset, DegreesOfEachName) {
  const std::map<std::string, Placement> expected = {{"ddp", {1, 1, 1, 1}},
                                                     {"zero1", {1, 1, 1, 128}},
                                                     {"zero2", {1, 1, 128, 128}},
                                                     {"zero3", {128, 128, 128, 128}},
                                                     {"fsdp", {128, 128, 128, 128}},
                                                     {"hsdp@pair", {2, 2, 2, 2}},
                                                     {"hsdp@node", {8, 8, 8, 8}},
                                                     {"mics@node", {8, 8, 8, 8}},
                                                     {"hsdp@cluster", {128, 128, 128, 128}},
                                                     {"shard-grad-op", {128, 1, 128, 128}},
                                                     {"zeropp", {128, 8, 128, 128}},
                                                     {"topo", {2, 2, 8, 128}},
                                                     {"topo-int8", {2, 2, 8, 128}}};
  for (const auto& [name, placement] : expected) {
    const PlacementPreset found = preset(name, frontier());
    EXPECT_EQ(found.placement, placement) << name;
    EXPECT_THAT(found.notes, IsEmpty()) << name;
    validate(found.placement, frontier());
  }
}

TEST(Preset, NotesLevelsThatCollapse) {
  const Mesh tensor_pairs = make_mesh(test_cluster({2, 4, 9408}), {.data = 8, .tensor = 2});
  const PlacementPreset topo = preset("topo", tensor_pairs);
  EXPECT_EQ(topo.placement, (Placement{1, 1, 4, 8}));
  EXPECT_THAT(topo.notes, ElementsAre("level \"pair\" has degree 1: no data ranks lie inside it"));
  const Mesh one_node = make_mesh(test_cluster({2, 4, 9408}), {.data = 8});
  const PlacementPreset hsdp = preset("hsdp@cluster", one_node);
  EXPECT_EQ(hsdp.placement, (Placement{8, 8, 8, 8}));
  EXPECT_THAT(hsdp.notes,
              ElementsAre("level \"cluster\" has degree 8, as \"node\": no data ranks lie "
                          "between"));
  const Mesh one_rank = make_mesh(test_cluster({2, 4, 9408}), {});
  EXPECT_EQ(preset("topo", one_rank).placement, Placement{});
  EXPECT_EQ(preset("topo", one_rank).notes.size(), 2U);
}

TEST(Preset, NamesWhatExists) {
  EXPECT_EQ(preset_error("zero4"),
            "unknown state preset \"zero4\"; did you mean \"zero1\"?; the presets are: ddp, zero1, "
            "zero2, zero3, fsdp, shard-grad-op, zeropp, topo, topo-int8, hsdp@LEVEL, mics@LEVEL, "
            "where LEVEL is one of: pair, node, cluster");
  EXPECT_EQ(
      preset_error("sharded_data"),
      "unknown state preset \"sharded_data\"; the presets are: ddp, zero1, zero2, zero3, "
      "fsdp, shard-grad-op, zeropp, topo, topo-int8, hsdp@LEVEL, mics@LEVEL, where LEVEL is one "
      "of: pair, node, cluster");
  EXPECT_EQ(
      preset_error("hsdp@nodes"),
      "no level \"nodes\"; did you mean \"node\"?; the levels of the cluster are: pair, node, "
      "cluster; a degree can also be given as a number (state preset \"hsdp@nodes\")");
  EXPECT_EQ(preset_error("hsdp"),
            "state preset \"hsdp\" needs a level: hsdp@LEVEL, where LEVEL is one of: pair, node, "
            "cluster");
  EXPECT_EQ(
      preset_error("mics@"),
      "no level \"\"; the levels of the cluster are: pair, node, cluster; a degree can also be "
      "given as a number (state preset \"mics@\")");
  for (const std::string_view name : {"fsdp@node", ""}) {
    EXPECT_THAT(preset_error(name),
                testing::StartsWith(format("unknown state preset \"{}\"", name)));
  }
  const Mesh local = make_mesh(local_cluster(4), {.data = 4});
  EXPECT_EQ(preset("hsdp@local", local).placement, (Placement{4, 4, 4, 4}));
  EXPECT_EQ(
      error_of(ErrorCode::kInvalidConfig, [&] { preset("topo", local); }),
      "no level \"pair\"; the levels of the cluster are: local; a degree can also be given as "
      "a number (state preset \"topo\")");
}

TEST(Validate, SaysWhichDegreesExist) {
  EXPECT_EQ(placement_error({.param = 3}),
            "state: param degree 3, expected one of 1, 2 (pair), 8 (node), 128 (cluster)");
  EXPECT_EQ(placement_error({.secondary = 0}),
            "state: secondary degree 0, expected one of 1, 2 (pair), 8 (node), 128 (cluster)");
  EXPECT_EQ(placement_error({.grad = 4}),
            "state: grad degree 4, expected one of 1, 2 (pair), 8 (node), 128 (cluster)");
  EXPECT_EQ(placement_error({.optimizer = 16}),
            "state: optimizer degree 16, expected one of 1, 2 (pair), 8 (node), 128 (cluster)");
  EXPECT_EQ(placement_error({.param = 8, .secondary = 8, .grad = 2, .optimizer = 8}),
            "state: param degree 8 does not divide grad degree 2; lower param or raise grad");
  EXPECT_EQ(placement_error({.param = 2, .secondary = 2, .grad = 8, .optimizer = 2}),
            "state: grad degree 8 does not divide optimizer degree 2; lower grad or raise "
            "optimizer");
  EXPECT_EQ(placement_error({.param = 2, .secondary = 8, .grad = 8, .optimizer = 8}),
            "state: secondary degree 8 does not divide param degree 2; lower secondary or raise "
            "param");
}

// Of a rank, along all axes that cut training state.
std::int64_t slice_of(const Mesh& mesh, std::int64_t rank, std::int64_t degree) {
  return slice_index(data_axes(mesh), degree, [&](std::string_view axis) {
    const auto found = std::ranges::find(mesh.axes, axis, &MeshAxis::name);
    return mesh.coordinates(rank).at(static_cast<std::size_t>(found - mesh.axes.begin()));
  });
}

TEST(SliceIndex, InnermostLevelIsMostSignificant) {
  const Mesh mesh = frontier();
  // Rank 93 = 1 + 2 * (2 + 4 * 11): second of its pair, third pair of its node, node 11.
  EXPECT_EQ(slice_of(mesh, 93, 1), 0);
  EXPECT_EQ(slice_of(mesh, 93, 2), 1);
  EXPECT_EQ(slice_of(mesh, 93, 8), 1 * 4 + 2);
  EXPECT_EQ(slice_of(mesh, 93, 128), (1 * 4 + 2) * 16 + 11);
  const std::string axes = "data.pair=2 data.node=4 data.cluster=16";
  EXPECT_EQ(to_string(data_axes(mesh)), axes);
  for (const std::int64_t degree : {4, 256}) {
    EXPECT_EQ(
        error_of(ErrorCode::kInvalidArgument, [&] { slice_of(mesh, 0, degree); }),
        format("slices of degree {}, expected the ranks of some first axes of {}", degree, axes));
  }
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { slice_index({}, 2, {}); }),
            "slices of degree 2, expected the ranks of some first axes of none");
}

// Also where a level has two axes, along each of which collectives move slices on their own.
TEST(SliceIndex, SlicesNestAndPartition) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Mesh mesh = random_mesh(seed).mesh;
    std::vector<std::size_t> inner;  // the axes up to the degree
    std::int64_t degree_below = 1;
    for (const AxisSize& axis : data_axes(mesh)) {
      const auto found = std::ranges::find(mesh.axes, axis.name, &MeshAxis::name);
      inner.push_back(static_cast<std::size_t>(found - mesh.axes.begin()));
      const std::int64_t degree = degree_below * axis.size;
      for (std::int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
        const std::int64_t index = slice_of(mesh, rank, degree);
        // Inside the slice of the axes below.
        ASSERT_EQ(index / axis.size, slice_of(mesh, rank, degree_below));
        // The ranks of these axes hold each slice once.
        std::vector<bool> held(static_cast<std::size_t>(degree));
        for (const std::int64_t member : mesh.members(inner, rank)) {
          const std::int64_t slice = slice_of(mesh, member, degree);
          ASSERT_FALSE(held.at(static_cast<std::size_t>(slice)));
          held[static_cast<std::size_t>(slice)] = true;
        }
        ASSERT_EQ(mesh.members(inner, rank).size(), held.size());
        // Along one axis, ranks in the order of members() hold consecutive slices.
        std::int64_t next = index / axis.size * axis.size;
        for (const std::int64_t member : mesh.members(std::array{inner.back()}, rank)) {
          ASSERT_EQ(slice_of(mesh, member, degree), next++);
        }
      }
      degree_below = degree;
    }
    ASSERT_EQ(degree_below, data_degrees(mesh).back());
  }
}

TEST(PaddedElements, AreWholeBlocksOfEachRank) {
  EXPECT_EQ(padded_elements(1, 1), 256);
  EXPECT_EQ(padded_elements(256, 1), 256);
  EXPECT_EQ(padded_elements(257, 1), 512);
  EXPECT_EQ(padded_elements(1, 12), 3072);
  EXPECT_EQ(padded_elements(0, 12), 0);
  EXPECT_EQ(padded_elements(128256LL * 4096, 128), 128256LL * 4096);
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { padded_elements(1, 0); }),
            "1 elements over 0 ranks, expected at least 0 and at least 1");
}

// On each level of frontier().
WireBytes on_all_levels(std::int64_t param, std::int64_t grad) {
  const std::vector<std::int64_t> params(3, param);
  return {.param = params,
          .secondary = params,
          .grad = std::vector<std::int64_t>(3, grad),
          .update = params};
}

// V = 2 * 128 * 256 bytes: pair V/2, node V (1/2 - 1/8), cluster V (1/8 - 1/128).
TEST(StateTraffic, OnFrontier) {
  constexpr std::int64_t kV = 65536;
  const WireBytes wire = on_all_levels(kV, kV);
  const StateTraffic fsdp = state_traffic(preset("fsdp", frontier()).placement, wire, frontier());
  EXPECT_THAT(fsdp.param_gather, ElementsAre(32768, 24576, 7680));
  EXPECT_THAT(fsdp.secondary_gather, ElementsAre(0, 0, 0));
  EXPECT_THAT(fsdp.grad_reduce, ElementsAre(32768, 24576, 7680));
  EXPECT_THAT(fsdp.step_reduce, ElementsAre(0, 0, 0));
  EXPECT_THAT(fsdp.step_gather, ElementsAre(0, 0, 0));
  const StateTraffic topo = state_traffic(preset("topo", frontier()).placement, wire, frontier());
  EXPECT_THAT(topo.param_gather, ElementsAre(32768, 0, 0));
  EXPECT_THAT(topo.secondary_gather, ElementsAre(0, 0, 0));
  EXPECT_THAT(topo.grad_reduce, ElementsAre(32768, 24576, 0));
  EXPECT_THAT(topo.step_reduce, ElementsAre(0, 0, 7680));
  EXPECT_THAT(topo.step_gather, ElementsAre(0, 24576, 7680));
  const StateTraffic zeropp =
      state_traffic(preset("zeropp", frontier()).placement, wire, frontier());
  EXPECT_THAT(zeropp.param_gather, ElementsAre(32768, 24576, 7680));
  EXPECT_THAT(zeropp.secondary_gather, ElementsAre(32768, 24576, 0));
  const StateTraffic hsdp =
      state_traffic(preset("hsdp@node", frontier()).placement, wire, frontier());
  EXPECT_THAT(hsdp.grad_reduce, ElementsAre(32768, 24576, 0));
  EXPECT_THAT(hsdp.step_reduce, ElementsAre(0, 0, 2 * 7680));
  EXPECT_THAT(hsdp.step_gather, ElementsAre(0, 0, 0));
}

// What one node sends to others in a step of `microbatches`, over what crosses once,
// M * (1 - 1/nodes): the figures of the published schemes.
struct Scheme {
  std::string preset;
  std::int64_t forward_gathers;    // p -> 1, of each microbatch
  std::int64_t secondary_gathers;  // s -> 1, of each microbatch
};

double inter_node(const Scheme& scheme,
                  const WireBytes& wire,
                  std::int64_t m,
                  double microbatches) {
  const StateTraffic traffic =
      state_traffic(preset(scheme.preset, frontier()).placement, wire, frontier());
  const auto at_cluster = [](const std::vector<std::int64_t>& bytes) {
    return static_cast<double>(bytes.back());
  };
  const double each_microbatch =
      static_cast<double>(scheme.forward_gathers) * at_cluster(traffic.param_gather) +
      static_cast<double>(scheme.secondary_gathers) * at_cluster(traffic.secondary_gather) +
      at_cluster(traffic.grad_reduce);
  const double each_step = at_cluster(traffic.step_reduce) + at_cluster(traffic.step_gather);
  const double once = static_cast<double>(m) * (1.0 - 1.0 / kNodes);
  return 8 * (microbatches * each_microbatch + each_step) / once;
}

TEST(StateTraffic, MovesBetweenNodesWhatIsPublished) {
  constexpr std::int64_t kM = std::int64_t{2} * 3 * 128 * 256;
  const WireBytes full = on_all_levels(kM, kM);
  for (const double a : {1.0, 4.0}) {
    EXPECT_EQ(inter_node({"zero3", 2, 0}, full, kM, a), 3 * a);
    EXPECT_EQ(inter_node({"zero1", 2, 0}, full, kM, a), 2);
    EXPECT_EQ(inter_node({"ddp", 2, 0}, full, kM, a), 2);
    EXPECT_EQ(inter_node({"zeropp", 1, 1}, full, kM, a), 2 * a);
    EXPECT_EQ(inter_node({"topo", 2, 0}, full, kM, a), 2);
  }
  const WireBytes codes = on_all_levels(kM / 2, kM / 4);
  EXPECT_EQ(inter_node({"topo", 2, 0}, codes, kM, 4), 0.75);
  EXPECT_EQ(inter_node({"zeropp", 1, 1}, codes, kM, 1), 0.75);
  // With an f32 scale for each block of 256: 260/512 and 132/512 of 16 bits.
  const auto wires_of = [&](std::string_view name) {
    return wire_bytes(preset(name, frontier()).wires, kM / 2, DType::kBF16, frontier());
  };
  EXPECT_EQ(inter_node({"topo-int8", 2, 0}, wires_of("topo-int8"), kM, 4), 0.5078125 + 0.2578125);
  EXPECT_EQ(inter_node({"zeropp", 1, 1}, wires_of("zeropp"), kM, 1), 0.5078125 + 0.2578125);
  // Its updates in full.
  EXPECT_EQ(inter_node({"topo", 2, 0}, wires_of("topo"), kM, 4), 1.0 + 0.2578125);
}

// 12 ranks on two levels: 3 * 12 * 256 elements once padded.
TEST(StateTraffic, FormatsDifferByLevelAndState) {
  const Mesh mesh = make_mesh(test_cluster({4, 3}), {.data = 12});
  constexpr std::int64_t kElements = std::int64_t{3} * 12 * 256;
  const StateWires wires = {.param = {{WireFormat::kInt8}, 128},
                            .secondary = {},
                            .grad = {{WireFormat::kF32, WireFormat::kInt4}}};
  const WireBytes bytes = wire_bytes(wires, kElements - 255, DType::kBF16, mesh);
  EXPECT_THAT(bytes.param, ElementsAre(kElements / 128 * 132, kElements / 128 * 132));
  EXPECT_THAT(bytes.secondary, ElementsAre(kElements * 2, kElements * 2));
  EXPECT_THAT(bytes.grad, ElementsAre(kElements * 4, kElements / 256 * 132));
  EXPECT_THAT(bytes.update, ElementsAre(kElements * 2, kElements * 2));
  const Placement zeropp = {.param = 12, .secondary = 4, .grad = 12, .optimizer = 12};
  const StateTraffic traffic = state_traffic(zeropp, bytes, mesh);
  EXPECT_THAT(traffic.secondary_write, ElementsAre(0, kElements / 128 * 132 / 4 / 3 * 2));
  EXPECT_THAT(traffic.secondary_gather, ElementsAre(kElements * 2 / 4 * 3, 0));
  EXPECT_THAT(traffic.grad_reduce,
              ElementsAre(kElements * 4 / 4 * 3, kElements / 256 * 132 / 4 / 3 * 2));
  EXPECT_EQ(
      error_of(ErrorCode::kInvalidArgument,
               [&] {
                 wire_bytes(
                     {.param = {WireFormats(3, WireFormat::kF32)}}, kElements, DType::kF32, mesh);
               }),
      "3 wire formats (f32 f32 f32) for 2 levels, expected one for each or one for all");
}

// Context and data share the node: its format is that of both axes.
TEST(WireOfAxes, RepeatsALevelsFormatForItsAxes) {
  const Mesh mesh = make_mesh(test_cluster({2, 8, 3}), {.data = 6, .tensor = 4, .context = 2});
  const Wire wire = {{WireFormat::kInt8, WireFormat::kInt4}, 64};
  const Wire axes = {{WireFormat::kInt8, WireFormat::kInt8, WireFormat::kInt4}, 64};
  EXPECT_EQ(wire_of_axes(wire, mesh), axes);
  EXPECT_EQ(wire_of_axes({}, mesh), Wire{});
}

TEST(StateTraffic, RefusesWhatDoesNotDivide) {
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument,
                     [] { state_traffic({}, on_all_levels(128, 100), frontier()); }),
            "100 bytes of a padded tensor on the wire do not divide by 128 ranks");
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [] { state_traffic({}, {}, frontier()); }),
            "bytes of a padded tensor on 0 levels, expected 3");
  EXPECT_EQ(
      error_of(ErrorCode::kInvalidConfig, [] { state_traffic({.param = 3}, {}, frontier()); }),
      "state: param degree 3, expected one of 1, 2 (pair), 8 (node), 128 (cluster)");
}

TEST(StateBytes, ByPlacementAndDtype) {
  constexpr std::int64_t kElements = std::int64_t{128} * 256;
  const auto held = [&](std::string_view name, DType compute, DType moments = DType::kF32) {
    return state_bytes(
        preset(name, frontier()).placement,
        {.elements = kElements, .ranks = 128, .compute = compute, .moments = moments});
  };
  const std::int64_t e = kElements;
  EXPECT_EQ(held("ddp", DType::kBF16), (StateBytes{2 * e, 0, 4 * e, 12 * e}));
  EXPECT_EQ(held("ddp", DType::kBF16, DType::kBF16), (StateBytes{2 * e, 0, 4 * e, 8 * e}));
  EXPECT_EQ(held("ddp", DType::kF32), (StateBytes{4 * e, 0, 4 * e, 8 * e}));
  EXPECT_EQ(held("ddp", DType::kF32, DType::kBF16), (StateBytes{4 * e, 0, 4 * e, 4 * e}));
  EXPECT_EQ(held("fsdp", DType::kF32), (StateBytes{4 * e / 128, 0, 4 * e / 128, 8 * e / 128}));
  EXPECT_EQ(held("zero1", DType::kF32), (StateBytes{4 * e, 0, 4 * e, 12 * e / 128}));
  EXPECT_EQ(held("zeropp", DType::kBF16),
            (StateBytes{2 * e / 128, 2 * e / 8, 4 * e / 128, 12 * e / 128}));
  EXPECT_EQ(held("zeropp", DType::kF32),
            (StateBytes{4 * e / 128, 4 * e / 8, 4 * e / 128, 8 * e / 128}));
  EXPECT_EQ(held("shard-grad-op", DType::kBF16),
            (StateBytes{2 * e / 128, 2 * e, 4 * e / 128, 12 * e / 128}));
  // The Frontier scheme holds 2/2 + 4/8 + 12/128 = 1.59375 bytes a parameter.
  EXPECT_EQ(held("topo", DType::kBF16).total(), 52224);
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument,
                     [] { state_bytes({.grad = 8}, {.elements = 100, .ranks = 12}); }),
            "state of degree 8 on 12 ranks, which it does not divide");
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument,
                     [] { state_bytes({}, {.elements = 256, .compute = DType::kF16}); }),
            "training state in f16, expected f32 or bf16");
}

TEST(StateBytes, PadsSlicesOnly) {
  const StateTensor odd = {.elements = 1000, .ranks = 4, .compute = DType::kBF16};
  EXPECT_EQ(state_bytes({}, odd), (StateBytes{2000, 0, 4000, 12000}));
  EXPECT_EQ(state_bytes({.param = 4, .secondary = 1, .grad = 4, .optimizer = 4}, odd),
            (StateBytes{512, 2000, 1024, 3072}));
}

// All ranks together send what each state needs: a gather or scatter over D ranks moves D - 1
// slices to or from each of them.
TEST(StateTraffic, AddsUpOverLevels) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Mesh mesh = random_mesh(seed).mesh;
    const std::vector<std::int64_t> degrees = data_degrees(mesh);
    const std::int64_t n = degrees.back();
    const std::int64_t volume = 4 * padded_elements(1 + static_cast<std::int64_t>(seed), n);
    const std::vector<std::int64_t> volumes(degrees.size() - 1, volume);
    for (const std::int64_t degree : degrees) {
      const StateTraffic traffic = state_traffic(
          {.param = degree, .secondary = 1, .grad = degree, .optimizer = degree},
          {.param = volumes, .secondary = volumes, .grad = volumes, .update = volumes},
          mesh);
      std::int64_t gathered = 0;
      std::int64_t beyond = 0;
      for (std::size_t i = 0; i < traffic.param_gather.size(); ++i) {
        gathered += traffic.param_gather[i];
        beyond += traffic.step_reduce[i];
      }
      EXPECT_EQ(gathered, volume / degree * (degree - 1));
      EXPECT_EQ(beyond, 2 * (volume / degree - volume / n));
    }
  }
}

}  // namespace
}  // namespace tessera
