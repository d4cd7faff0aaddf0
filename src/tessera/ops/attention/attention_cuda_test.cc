// Attention by a library and by our own kernels, on a device or emulated: either must compute what
// is asked, and both the same.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cuda/kernels/kernels_under_test.h"
#include "tessera/base/format.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/conformance.h"
#include "tessera/ops/testing/execute.h"
#include "tessera/ops/testing/tolerance.h"

namespace tessera::cuda {
namespace {

using conformance::check_kernel_on;
using conformance::execute;
using conformance::HostTensor;
using conformance::Outcome;
using conformance::Sample;
using conformance::widened;
using testing::IsEmpty;

class CudaAttention : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    own_ = kernels_under_test(reason, {.library_attention = false});
    if (own_ == nullptr) {
      GTEST_SKIP() << reason;
    }
    library_ = kernels_under_test(reason);
  }

  Backend& own() { return *own_; }

  Backend& library() { return *library_; }

  // Of what the library may take. Other samples are for own kernels anyway: kernels_test.cc.
  void expect_own_equals_reference(const std::vector<Sample>& all) {
    for (const Sample& sample : all) {
      if (sample.name.find("whole_rows") != std::string::npos ||
          sample.name.find("documents") != std::string::npos) {
        EXPECT_THAT(check_kernel_on(own(), sample), IsEmpty()) << sample.name;
      }
    }
  }

 private:
  std::unique_ptr<Backend> own_;
  std::unique_ptr<Backend> library_;
};

// In workspaces that are laid out for the library's.
TEST_F(CudaAttention, OwnKernelsComputeForward) {
  expect_own_equals_reference(samples(SamplesOf<AttentionAttrs>()));
}

TEST_F(CudaAttention, OwnKernelsComputeBackward) {
  expect_own_equals_reference(samples(SamplesOf<AttentionBackwardAttrs>()));
}

void expect_alike(const HostTensor& found, const HostTensor& expected, const std::string& what) {
  const conformance::Tolerance limit =
      tolerance(conformance::OpClass::kRoundedTerms, expected.type().dtype);
  EXPECT_EQ(difference(found, widened(expected), limit), std::nullopt) << what;
}

// Heads so far apart that tensor cores do not take them: what the plain form computes.
constexpr std::int32_t kHeadDim = 3;

// Of steps over parts of the keys, of which own kernels do all: each form of them.
void expect_steps_equal_reference(Backend& own, const std::vector<Sample>& all) {
  int by_tensor_cores = 0;
  for (const Sample& sample : all) {
    EXPECT_THAT(check_kernel_on(own, sample), IsEmpty()) << sample.name;
    const std::vector<HostTensor> operands = make_operands(sample);
    const Outcome found = execute(*sample.op, operands, {.backend = &own});
    const Outcome plain = execute(*sample.op, operands, {.sliced_dim = kHeadDim, .backend = &own});
    EXPECT_THAT(plain.failures, IsEmpty()) << sample.name;
    for (std::size_t i = 0; i < plain.results.size(); ++i) {
      expect_alike(plain.results[i], found.results[i], format("{} of {}", i, sample.name));
    }
    by_tensor_cores += plain.results == found.results ? 0 : 1;
  }
  EXPECT_GE(by_tensor_cores, 5);  // else both were the plain form
}

TEST_F(CudaAttention, OwnKernelsComputeSteps) {
  expect_steps_equal_reference(own(), samples(SamplesOf<AttentionPartAttrs>()));
}

TEST_F(CudaAttention, OwnKernelsComputeBackwardOfSteps) {
  expect_steps_equal_reference(own(), samples(SamplesOf<AttentionPartBackwardAttrs>()));
}

// Sizes of a model's layers; emulated some that a CPU can do.
struct Layer {
  std::int64_t batch;
  std::int64_t tokens;
  std::int64_t heads;
  std::int64_t groups;
  std::int64_t channels;
  std::int64_t document;  // tokens of each; 0: a row is one
};

std::vector<Layer> layers() {
#ifdef TESSERA_EMULATED_CUDA
  return {
      {1, 64, 4, 2, 64, 0}, {2, 80, 3, 3, 64, 0}, {2, 80, 2, 1, 64, 37}, {40, 40, 2, 1, 16, 13}};
#else
  // Llama 8B's, which the library does backward in parts, and GPT-2's.
  return {{1, 8192, 32, 8, 128, 0},
          {8, 1024, 12, 12, 64, 0},
          {1, 8192, 32, 8, 128, 1500},
          {40, 1024, 2, 1, 64, 700}};
#endif
}

double scale_of(const Layer& layer) {
  return 1.0 / std::sqrt(static_cast<double>(layer.channels));
}

// Operands, on random values: others for each `draw`.
std::vector<HostTensor> operands_of(const Layer& layer, int draw = 0) {
  const auto heads = [&](const char* name, std::int64_t count) {
    return format("?[batch={}, seq={}, {}={}, head_dim={}]",
                  layer.batch,
                  layer.tokens,
                  name,
                  count,
                  layer.channels);
  };
  const std::string ids = format("i32[batch={}, seq={}]", layer.batch, layer.tokens);
  Sample sample{.name = format("{}_{}_{}{}",
                               layer.tokens,
                               layer.heads,
                               layer.document,
                               draw == 0 ? "" : format("_{}", draw)),
                .op = make_op(AttentionAttrs{})};
  sample.operands = conformance::types(DType::kBF16,
                                       {heads("heads", layer.heads),
                                        heads("kv_heads", layer.groups),
                                        heads("kv_heads", layer.groups),
                                        ids,
                                        ids,
                                        ids,
                                        ids});
  sample.fills.assign(3, conformance::normal());
  sample.fills.resize(7, conformance::prepared());
  std::vector<HostTensor> operands = make_operands(sample);
  const std::int64_t length = layer.document == 0 ? layer.tokens : layer.document;
  for (std::size_t tensor = 3; tensor < 7; ++tensor) {
    const auto values = operands[tensor].i32();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto token = static_cast<std::int64_t>(i) % layer.tokens;
      values[i] = static_cast<std::int32_t>(tensor < 5 ? token % length : token / length);
    }
  }
  return operands;
}

// Those of backward, behind what forward was given and gave: dout is like q.
std::vector<HostTensor> operands_of_backward(const HostTensor& dout,
                                             const std::vector<HostTensor>& operands,
                                             const std::vector<HostTensor>& results) {
  std::vector<HostTensor> all = {dout};
  all.insert(all.end(), operands.begin(), operands.begin() + 3);
  all.insert(all.end(), results.begin(), results.end());
  all.insert(all.end(), operands.begin() + 3, operands.end());
  return all;
}

TEST_F(CudaAttention, TheLibraryComputesWhatOwnKernelsDo) {
  if (const std::string problem = library_attention_problem(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  for (const Layer& layer : layers()) {
    const std::string what = format("{} tokens, {} of a document", layer.tokens, layer.document);
    const double scale = scale_of(layer);
    const bool whole_rows = layer.document == 0;
    const std::vector<HostTensor> operands = operands_of(layer);
    const OpRef forward = make_op(AttentionAttrs{.scale = scale, .whole_rows = whole_rows});
    const Outcome expected = execute(*forward, operands, {.backend = &own()});
    const Outcome found = execute(*forward, operands, {.backend = &library()});
    EXPECT_THAT(found.failures, IsEmpty()) << what;
    expect_alike(found.results[0], expected.results[0], "o of " + what);
    expect_alike(found.results[1], expected.results[1], "lse of " + what);
    // Else it was not the library.
    EXPECT_FALSE(found.results == expected.results) << what;

    const std::vector<HostTensor> of_backward =
        operands_of_backward(operands[0], operands, expected.results);
    const OpRef backward =
        make_op(AttentionBackwardAttrs{.scale = scale, .whole_rows = whole_rows});
    const Outcome slopes = execute(*backward, of_backward, {.backend = &own()});
    const Outcome slopes_found = execute(*backward, of_backward, {.backend = &library()});
    EXPECT_THAT(slopes_found.failures, IsEmpty()) << what;
    for (std::size_t i = 0; i < slopes.results.size(); ++i) {
      expect_alike(slopes_found.results[i], slopes.results[i], format("slopes {} of {}", i, what));
    }
    // With documents own kernels do it either way.
    EXPECT_EQ(slopes_found.results == slopes.results, !whole_rows) << what;
  }
}

// Unless any order is wanted: that cuDNN's kernels are of that kind they do not say.
TEST_F(CudaAttention, BackwardOfTheLibraryRepeatsItsBits) {
  if (const std::string problem = library_attention_problem(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  for (const Layer& layer : layers()) {
    if (layer.document != 0) {
      continue;
    }
    const double scale = scale_of(layer);
    const OpRef forward = make_op(AttentionAttrs{.scale = scale, .whole_rows = true});
    const OpRef backward = make_op(AttentionBackwardAttrs{.scale = scale, .whole_rows = true});
    for (int draw = 1; draw < 3; ++draw) {
      const std::vector<HostTensor> operands = operands_of(layer, draw);
      const Outcome given = execute(*forward, operands, {.backend = &library()});
      const std::vector<HostTensor> of_backward =
          operands_of_backward(operands[0], operands, given.results);
      const Outcome first = execute(*backward, of_backward, {.backend = &library()});
      for (int again = 0; again < 3; ++again) {
        const Outcome next = execute(*backward, of_backward, {.backend = &library()});
        EXPECT_TRUE(next.results == first.results) << layer.tokens << " tokens, draw " << draw;
      }
    }
  }
}

// Rows that cuDNN is wrong for: the same bits as without it.
TEST_F(CudaAttention, OwnKernelsTakeWhatTheLibraryMustNot) {
  const auto expect_own = [&](const Op& op, const std::vector<HostTensor>& operands) {
    const Outcome expected = execute(op, operands, {.backend = &own()});
    const Outcome found = execute(op, operands, {.backend = &library()});
    EXPECT_TRUE(found.results == expected.results) << info(op).name;
    EXPECT_THAT(found.failures, IsEmpty());
    return expected;
  };
  // Of one token.
  for (const bool whole_rows : {true, false}) {
    const Layer layer = {3, 1, 8, 2, 64, 0};
    const std::vector<HostTensor> operands = operands_of(layer);
    const double scale = scale_of(layer);
    const Outcome given =
        expect_own(*make_op(AttentionAttrs{.scale = scale, .whole_rows = whole_rows}), operands);
    expect_own(*make_op(AttentionBackwardAttrs{.scale = scale, .whole_rows = whole_rows}),
               operands_of_backward(operands[0], operands, given.results));
  }
  // Half a tile of 128 keys, without a mask.
  const Layer layer = {1, 64, 2, 1, 64, 0};
  const std::vector<HostTensor> operands = operands_of(layer);
  const double scale = scale_of(layer);
  const Outcome given =
      execute(*make_op(AttentionAttrs{.scale = scale, .causal = false, .whole_rows = true}),
              operands,
              {.backend = &own()});
  expect_own(*make_op(AttentionBackwardAttrs{.scale = scale, .causal = false, .whole_rows = true}),
             operands_of_backward(operands[0], operands, given.results));
}

// Tiles of 64 queries and 64 keys that see nothing, something or all of each other. The queries are
// the last tokens or the keys are.
struct Tiles {
  const char* name;
  std::int32_t queries;
  std::int32_t keys;
  bool causal;
  std::int32_t (*document)(std::int32_t token);
  std::int32_t (*position)(std::int32_t token);
};

std::int32_t token_itself(std::int32_t token) {
  return token;
}

std::vector<Tiles> tiles() {
  const auto of_45 = [](std::int32_t token) { return token / 45; };
  const auto within_45 = [](std::int32_t token) { return token % 45; };
  const auto by_turns = [](std::int32_t token) { return token / 64 % 2; };
  const auto three_by_turns = [](std::int32_t token) { return token / 64 % 3; };
  const auto one = [](std::int32_t) { return 7; };
  const auto backwards = [](std::int32_t token) { return 300 - token; };
  return {
      {"documents", 200, 200, true, of_45, within_45},
      {"documents_not_causal", 250, 250, false, of_45, within_45},
      {"documents_that_come_back", 232, 232, true, by_turns, token_itself},
      {"documents_by_turns_not_causal", 232, 232, false, by_turns, token_itself},
      {"in_no_order",
       170,
       170,
       true,
       [](std::int32_t token) { return token * 7 % 5 - 2; },
       [](std::int32_t token) { return token * 37 % 97; }},
      {"backwards", 150, 150, true, one, backwards},
      {"whole", 128, 192, false, one, token_itself},
      // More than a warp looks at at once.
      {"many_keys", 70, 2200, true, three_by_turns, token_itself},
      {"many_queries", 2200, 70, true, three_by_turns, backwards},
  };
}

void fill_ids(const Tiles& of, std::span<HostTensor> ids) {
  const std::int32_t tokens = std::max(of.queries, of.keys);
  for (std::size_t tensor = 0; tensor < 4; ++tensor) {
    std::int32_t token = tokens - (tensor % 2 == 0 ? of.queries : of.keys);
    for (std::int32_t& id : ids[tensor].i32()) {
      id = tensor < 2 ? of.position(token) : of.document(token);
      ++token;
    }
  }
}

Sample forward_of(const Tiles& of) {
  const std::string keys = format("?[batch=1, keys={}, kv_heads=1, head_dim=16]", of.keys);
  const std::string query_ids = format("i32[batch=1, seq={}]", of.queries);
  const std::string key_ids = format("i32[batch=1, keys={}]", of.keys);
  return {.name = of.name,
          .op = make_op(AttentionAttrs{.scale = 0.25, .causal = of.causal}),
          .operands =
              conformance::types(DType::kBF16,
                                 {format("?[batch=1, seq={}, heads=2, head_dim=16]", of.queries),
                                  keys,
                                  keys,
                                  query_ids,
                                  key_ids,
                                  query_ids,
                                  key_ids}),
          .fills = {conformance::normal(),
                    conformance::normal(),
                    conformance::normal(),
                    conformance::prepared(),
                    conformance::prepared(),
                    conformance::prepared(),
                    conformance::prepared()},
          .prepare = [of](std::span<HostTensor> in) { fill_ids(of, in.subspan(3)); },
          .device_classes = {conformance::OpClass::kRounded, conformance::OpClass::kReduction}};
}

Sample backward_of(const Tiles& of) {
  const AttentionAttrs attrs = {.scale = 0.25, .causal = of.causal};
  const TensorTypes in = forward_of(of).operands;
  const TensorTypes out = infer(attrs, in);
  Sample sample{
      .name = of.name,
      .op = make_op(AttentionBackwardAttrs{.scale = attrs.scale, .causal = of.causal}),
      .operands = {in[0], in[0], in[1], in[2], out[0], out[1], in[3], in[4], in[5], in[6]},
      .fills = std::vector(4, conformance::normal()),
      .prepare =
          [of, attrs](std::span<HostTensor> operands) {
            fill_ids(of, operands.subspan(6));
            std::vector<View> views;
            for (const std::size_t i : {1U, 2U, 3U, 6U, 7U, 8U, 9U, 4U, 5U}) {
              views.push_back(operands[i].view());
            }
            const std::span<const View> all(views);
            reference(attrs, {.in = all.first(7), .out = all.subspan(7), .workspace = {}});
          },
      .device_classes = std::vector(3, conformance::OpClass::kRoundedTerms)};
  sample.fills.resize(sample.operands.size(), conformance::prepared());
  return sample;
}

TEST_F(CudaAttention, TilesAreVisitedWhereTheySee) {
  for (const Tiles& of : tiles()) {
    EXPECT_THAT(check_kernel_on(own(), forward_of(of)), IsEmpty()) << of.name;
    EXPECT_THAT(check_kernel_on(own(), backward_of(of)), IsEmpty()) << of.name;
  }
  // All of the tiles that a warp looks at first see nothing. Forward: most keys have no gradient,
  // and tolerances are a part of the mean.
  const auto last = [](std::int32_t token) { return token / 2120; };
  EXPECT_THAT(check_kernel_on(own(), forward_of({"far_keys", 70, 2200, true, last, token_itself})),
              IsEmpty());
}

// Some tokens of a tensor of one row.
HostTensor tokens_of(const HostTensor& tensor, std::int64_t first, std::int64_t count) {
  TensorType type = tensor.type();
  const auto token = static_cast<std::int64_t>(tensor.bytes().size()) / type.dims[1].bound;
  type.dims[1].bound = count;
  HostTensor part(type);
  std::ranges::copy(tensor.bytes().subspan(static_cast<std::size_t>(first * token),
                                           static_cast<std::size_t>(count * token)),
                    part.bytes().begin());
  return part;
}

// Operands of attention with some of their keys.
std::vector<HostTensor> with_keys(std::vector<HostTensor> operands,
                                  std::int64_t first,
                                  std::int64_t count) {
  for (const std::size_t of_keys : {1U, 2U, 4U, 6U}) {
    operands[of_keys] = tokens_of(operands[of_keys], first, count);
  }
  return operands;
}

// In place, in both forms: all keys at once, and part by part, the last part first, of which most
// queries see nothing.
TEST_F(CudaAttention, StepsGiveWhatAllKeysDo) {
  constexpr std::int64_t kKeys = 70;
  constexpr std::array<std::int64_t, 3> kParts = {2, 0, 1};
  const Layer layer = {1, 210, 4, 2, 64, 90};
  const double scale = scale_of(layer);
  const std::vector<HostTensor> operands = operands_of(layer);
  const std::vector<HostTensor> expected =
      execute(*make_op(AttentionAttrs{.scale = scale}), operands, {.backend = &own()}).results;
  const std::vector<HostTensor> slopes =
      execute(*make_op(AttentionBackwardAttrs{.scale = scale}),
              operands_of_backward(operands[0], operands, expected),
              {.backend = &own()})
          .results;
  const auto step = [&](const Op& op, const std::vector<HostTensor>& in, std::int32_t sliced_dim) {
    const Outcome outcome =
        execute(op, in, {.aliases = info(op).aliases, .sliced_dim = sliced_dim, .backend = &own()});
    EXPECT_THAT(outcome.failures, IsEmpty());
    return outcome.results;
  };
  for (const std::int32_t sliced_dim : {-1, kHeadDim}) {
    std::vector<HostTensor> carry;
    std::vector<HostTensor> dq;
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      const std::int64_t first = kParts[i] * kKeys;
      const auto number = static_cast<std::int64_t>(i);
      std::vector<HostTensor> in = with_keys(operands, first, kKeys);
      std::vector<HostTensor> in_backward = operands_of_backward(operands[0], in, expected);
      in.insert(in.end(), carry.begin(), carry.end());
      carry = step(
          *make_op(AttentionPartAttrs{.scale = scale, .step = number, .steps = 3}), in, sliced_dim);
      in_backward.insert(in_backward.end(), dq.begin(), dq.end());
      const std::vector<HostTensor> found =
          step(*make_op(AttentionPartBackwardAttrs{.scale = scale, .step = number, .steps = 3}),
               in_backward,
               sliced_dim);
      dq = {found[0]};
      for (const std::size_t of_keys : {1U, 2U}) {
        expect_alike(found[of_keys],
                     tokens_of(slopes[of_keys], first, kKeys),
                     format("slopes {} of part {}", of_keys, kParts[i]));
      }
    }
    expect_alike(carry[0], expected[0], "o");
    expect_alike(carry[1], expected[1], "lse");
    expect_alike(dq[0], slopes[0], "dq");
  }
}

// Of one row (tokens, heads, channels) of bf16: a token's part becomes zeros.
void forget(HostTensor& tensor, std::size_t token) {
  const auto row =
      static_cast<std::size_t>(tensor.type().dims[2].bound * tensor.type().dims[3].bound) *
      sizeof(std::uint16_t);
  std::ranges::fill(tensor.bytes().subspan(token * row, row), std::byte{0});
}

// A tile all of whose pairs are seen is not asked which: the same bits as where one query sees
// nothing and all are asked.
TEST_F(CudaAttention, TilesThatSeeAllGiveTheSameBits) {
  constexpr std::array<std::size_t, 2> kBlind = {127, 191};  // the last of their tiles
  const Layer layer = {1, 192, 4, 2, 64, 0};
  std::vector<HostTensor> operands = operands_of(layer);
  std::vector<HostTensor> with_blind = operands;
  HostTensor dout = operands[0];
  for (const std::size_t token : kBlind) {
    with_blind[5].i32()[token] = 1;
    forget(dout, token);
  }
  const OpRef forward = make_op(AttentionAttrs{.scale = scale_of(layer)});
  Outcome seeing = execute(*forward, operands, {.backend = &own()});
  Outcome blind = execute(*forward, with_blind, {.backend = &own()});
  for (const std::size_t token : kBlind) {
    forget(seeing.results[0], token);
    forget(blind.results[0], token);
  }
  EXPECT_TRUE(seeing.results[0] == blind.results[0]);

  // What blind queries do not send back, seeing ones do not either, as their dout is 0.
  const OpRef backward = make_op(AttentionBackwardAttrs{.scale = scale_of(layer)});
  const Outcome slopes =
      execute(*backward, operands_of_backward(dout, operands, seeing.results), {.backend = &own()});
  const Outcome slopes_blind = execute(
      *backward, operands_of_backward(dout, with_blind, seeing.results), {.backend = &own()});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(slopes.results[i] == slopes_blind.results[i]) << i;
  }
}

}  // namespace
}  // namespace tessera::cuda
