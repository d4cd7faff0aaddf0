#include "tessera/ops/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tessera/backend/cpu/context.h"
#include "tessera/base/random.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/execute.h"
#include "tessera/ops/testing/host_tensor.h"
#include "tessera/ops/testing/sample.h"
#include "tessera/ops/testing/tolerance.h"

// What the conformance checks of every op do not reach: blocks, chunks and both task lists of the
// CPU kernels, every instruction set, extreme scores.
namespace tessera {
namespace {

using conformance::difference;
using conformance::HostTensor;
using conformance::OpClass;
using conformance::Outcome;
using conformance::Tolerance;

struct Case {
  std::string name;
  std::int64_t batch = 1;
  std::int64_t queries = 1;
  std::int64_t keys = 1;  // the queries are the last of them
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int32_t document_length = 0;  // 0: one document
  bool causal = true;
  bool blind = false;  // the first query of each sequence belongs to a document without keys
  DType dtype = DType::kF32;
  double spread = 1.0;  // standard deviation of q and k

  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"one", 1, 1, 1, 1, 1, 8},
      {"five", 2, 5, 5, 4, 2, 20},
      {"tail", 2, 37, 37, 4, 4, 16},
      {"grouped", 1, 129, 129, 4, 1, 64},
      {"long", 1, 300, 300, 2, 2, 16},
      {"chunks", 1, 300, 300, 4, 1, 16},
      {"chunks_of_groups", 1, 150, 150, 8, 2, 24},
      {"wide", 1, 70, 70, 2, 1, 128},
      {"decode", 2, 3, 300, 4, 2, 64},
      {"queries_before_keys", 1, 129, 37, 2, 1, 8},
      {"not_causal", 1, 37, 129, 2, 1, 20, 0, false},
      {"documents", 2, 300, 300, 2, 1, 16, 70},
      {"short_documents", 1, 129, 129, 1, 1, 8, 5},
      {"documents_not_causal", 1, 129, 129, 2, 1, 16, 50, false},
      {"blind", 2, 37, 37, 4, 2, 16, 9, true, true},
      {"bf16", 1, 150, 150, 4, 2, 20, 40, true, true, DType::kBF16},
  };
  return kCases;
}

// The op and its operands in their own dtypes.
struct Call {
  OpRef op;
  std::vector<HostTensor> operands;
};

HostTensor head_tensor(const Case& c,
                       std::string_view name,
                       std::int64_t length,
                       std::int64_t heads) {
  HostTensor tensor(TensorType{.dtype = DType::kF64,
                               .dims = {{.name = "batch", .bound = c.batch},
                                        {.name = "seq", .bound = length},
                                        {.name = "heads", .bound = heads},
                                        {.name = "head_dim", .bound = c.head_dim}}});
  conformance::normal(name == "q" || name == "k" ? c.spread : 1.0)(random_key(7, name), tensor);
  return conformance::rounded(tensor, c.dtype);
}

// Positions or documents of the last `length` keys. Sequence b starts b places into its first
// document; places before it have negative positions.
HostTensor id_tensor(const Case& c, std::int64_t length, bool documents) {
  HostTensor tensor(
      TensorType{.dtype = DType::kI32,
                 .dims = {{.name = "batch", .bound = c.batch}, {.name = "seq", .bound = length}}});
  for (std::int64_t i = 0; i < c.batch * length; ++i) {
    const auto place = static_cast<std::int32_t>(c.keys - length + i % length + i / length);
    const std::int32_t size = c.document_length == 0 ? INT32_MAX : c.document_length;
    std::int32_t& id = tensor.i32()[static_cast<std::size_t>(i)];
    id = documents ? place / size : place % size;
    if (documents && c.blind && length == c.queries && i % length == 0) {
      id = 1000;
    }
  }
  return tensor;
}

Call forward_call(const Case& c) {
  const AttentionAttrs attrs = {.scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim)),
                                .causal = c.causal};
  Case keys = c;
  keys.blind = false;
  return {.op = make_op(attrs),
          .operands = {head_tensor(c, "q", c.queries, c.heads),
                       head_tensor(c, "k", c.keys, c.kv_heads),
                       head_tensor(c, "v", c.keys, c.kv_heads),
                       id_tensor(c, c.queries, false),
                       id_tensor(keys, c.keys, false),
                       id_tensor(c, c.queries, true),
                       id_tensor(keys, c.keys, true)}};
}

std::vector<HostTensor> widened_operands(const Call& call) {
  std::vector<HostTensor> wide;
  std::ranges::transform(call.operands, std::back_inserter(wide), conformance::widened);
  return wide;
}

// By the reference, of the call's operands or others in f64.
std::vector<HostTensor> expected_results(const Call& call, const std::vector<HostTensor>& wide) {
  TensorTypes types;
  std::ranges::transform(
      call.operands, std::back_inserter(types), [](const HostTensor& t) { return t.type(); });
  return conformance::reference_results(*call.op, types, wide, {});
}

std::vector<HostTensor> expected_results(const Call& call) {
  return expected_results(call, widened_operands(call));
}

// The backward op of `forward`, given o and lse by its reference.
Call backward_call(const Case& c, const Call& forward) {
  const auto& in = forward.operands;
  const std::vector<HostTensor> results = expected_results(forward);
  return {.op = make_op(AttentionBackwardAttrs{
              .scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim)), .causal = c.causal}),
          .operands = {head_tensor(c, "do", c.queries, c.heads),
                       in[0],
                       in[1],
                       in[2],
                       conformance::rounded(results[0], c.dtype),
                       conformance::rounded(results[1], DType::kF32),
                       in[3],
                       in[4],
                       in[5],
                       in[6]}};
}

void expect_near(const Outcome& outcome,
                 const std::vector<HostTensor>& expected,
                 std::optional<Tolerance> limit = {}) {
  ASSERT_EQ(outcome.results.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const DType dtype = outcome.results[i].type().dtype;
    const auto wrong =
        difference(outcome.results[i],
                   expected[i],
                   limit.value_or(conformance::tolerance(OpClass::kReduction, dtype)));
    EXPECT_FALSE(wrong) << "result " << i << ": " << wrong.value_or("");
  }
  EXPECT_TRUE(outcome.failures.empty()) << outcome.failures.front();
}

// Restricts Highway's dispatch to one instruction set.
class OnTarget {
 public:
  explicit OnTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  ~OnTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  OnTarget(const OnTarget&) = delete;
  OnTarget& operator=(const OnTarget&) = delete;
};

class AttentionTest : public testing::TestWithParam<Case> {};

// With fused multiply-add, all instruction sets give the same bits.
TEST_P(AttentionTest, MatchesReferenceOnEveryInstructionSet) {
  const Call forward = forward_call(GetParam());
  const Call backward = backward_call(GetParam(), forward);
  const std::int64_t supported = hwy::SupportedTargets();
  for (const Call& call : {forward, backward}) {
    const std::vector<HostTensor> expected = expected_results(call);
    const Outcome best = execute(*call.op, call.operands, {.threads = 1});
    expect_near(best, expected);
    for (const std::int64_t target : {HWY_AVX2, HWY_SCALAR}) {
      const OnTarget on_target((target & supported) == 0 ? supported : target);
      SCOPED_TRACE(hwy::TargetName(target));
      const Outcome outcome = execute(*call.op, call.operands, {.threads = 1});
      expect_near(outcome, expected);
      EXPECT_TRUE(target == HWY_SCALAR || outcome.results == best.results);
    }
  }
}

// Threads choose between the two task lists of the backward pass.
TEST_P(AttentionTest, ThreadsAndLayoutDoNotChangeBits) {
  const Call forward = forward_call(GetParam());
  const Call backward = backward_call(GetParam(), forward);
  for (const Call& call : {forward, backward}) {
    const Outcome expected = execute(*call.op, call.operands, {.threads = 1});
    for (const int threads : {1, 2, 3, 8}) {
      const Outcome outcome =
          execute(*call.op, call.operands, {.threads = threads, .sliced_dim = 2});
      EXPECT_TRUE(outcome.results == expected.results) << threads << " threads";
      EXPECT_TRUE(outcome.failures.empty()) << outcome.failures.front();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, testing::ValuesIn(cases()), [](const auto& shape) {
  return shape.param.name;
});

// sum(o * do) by central differences of the f64 reference against the kernel's gradients.
TEST(AttentionGradient, MatchesFiniteDifferences) {
  const Case c = {
      .name = "tiny", .queries = 5, .keys = 7, .heads = 2, .kv_heads = 1, .head_dim = 4};
  const Call forward = forward_call(c);
  const Call backward = backward_call(c, forward);
  const HostTensor dout = conformance::widened(backward.operands[0]);
  const auto loss = [&](const std::vector<HostTensor>& operands) {
    const HostTensor o = expected_results(forward, operands)[0];
    return std::inner_product(o.f64().begin(), o.f64().end(), dout.f64().begin(), 0.0);
  };
  const Outcome found = execute(*backward.op, backward.operands, {.threads = 1});
  for (std::size_t operand = 0; operand < 3; ++operand) {
    std::vector<HostTensor> moved = widened_operands(forward);
    HostTensor expected = moved[operand];
    for (std::size_t i = 0; i < expected.f64().size(); ++i) {
      constexpr double kStep = 1e-5;
      double& element = moved[operand].f64()[i];
      const double middle = element;
      element = middle + kStep;
      const double above = loss(moved);
      element = middle - kStep;
      expected.f64()[i] = (above - loss(moved)) / (2 * kStep);
      element = middle;
    }
    const auto wrong = difference(
        found.results[operand], expected, conformance::tolerance(OpClass::kReduction, DType::kF32));
    EXPECT_FALSE(wrong) << "operand " << operand << ": " << wrong.value_or("");
  }
}

// Scores of some thousand, whose exponentials overflow unless the maximum is taken off first.
TEST(AttentionExtremes, LargeScores) {
  const Case c = {.name = "large",
                  .queries = 100,
                  .keys = 100,
                  .heads = 2,
                  .kv_heads = 1,
                  .head_dim = 16,
                  .spread = 30.0};
  // Rounding a score of 4e3 to f32 changes its exponential by some ten-thousandths.
  constexpr Tolerance kTolerance = {.relative = 5e-3, .of_rms = 5e-3};
  const Call forward = forward_call(c);
  const Call backward = backward_call(c, forward);
  for (const Call& call : {forward, backward}) {
    expect_near(
        execute(*call.op, call.operands, {.threads = 1}), expected_results(call), kTolerance);
  }
}

// A NaN must reach the loss, or a broken step would be applied.
TEST(AttentionExtremes, NanReachesEveryQueryThatSeesIt) {
  const Case c = {.name = "nan", .queries = 40, .keys = 40, .head_dim = 16};
  Call call = forward_call(c);
  constexpr std::size_t kBroken = 25;
  HostTensor keys = conformance::widened(call.operands[1]);
  keys.f64()[kBroken * 16 + 3] = std::numeric_limits<double>::quiet_NaN();
  call.operands[1] = conformance::rounded(keys, DType::kF32);
  const Outcome outcome = execute(*call.op, call.operands, {.threads = 1});
  const HostTensor o = conformance::widened(outcome.results[0]);
  const HostTensor lse = conformance::widened(outcome.results[1]);
  for (std::size_t query = 0; query < 40; ++query) {
    EXPECT_EQ(std::isnan(lse.f64()[query]), query >= kBroken) << query;
    EXPECT_EQ(std::isnan(o.f64()[query * 16]), query >= kBroken) << query;
  }
}

// Neither pass keeps anything as large as queries x keys.
TEST(AttentionWorkspace, GrowsLinearlyWithTheSequence) {
  cpu::Context context(2);
  const auto bytes = [&](std::int64_t length, auto attrs) {
    const Case c = {.name = "", .queries = length, .keys = length, .head_dim = 16};
    const Call forward = forward_call(c);
    TensorTypes types;
    for (const HostTensor& operand : forward.operands) {
      types.push_back(operand.type());
    }
    if constexpr (std::same_as<decltype(attrs), AttentionBackwardAttrs>) {
      types.insert(types.begin(), types[0]);
    }
    return workspace_bytes(attrs, context, types);
  };
  EXPECT_LE(bytes(8192, AttentionAttrs()), 2 * bytes(4096, AttentionAttrs()));
  EXPECT_LE(bytes(8192, AttentionBackwardAttrs()), 2 * bytes(4096, AttentionBackwardAttrs()));
}

// Of pairs with a query that sees itself and `window - 1` tokens before it, counted one by one.
// Without a window half the diagonal counts.
TEST(AttentionCost, IsThatOfThePairsThatAreSeen) {
  constexpr std::int64_t kHeads = 2;
  constexpr std::int64_t kHeadDim = 4;
  for (const std::int64_t keys : {1, 5, 16}) {
    for (std::int64_t queries = 1; queries <= keys; ++queries) {
      for (const std::int64_t window : {0, 1, 4, 16, 20}) {
        double pairs = window == 0 ? -0.5 * static_cast<double>(queries) : 0.0;
        for (std::int64_t place = keys - queries; place < keys; ++place) {
          pairs += static_cast<double>(window == 0 ? place + 1 : std::min(place + 1, window));
        }
        const auto tensor = [](std::int64_t tokens) {
          return TensorType{.dims = {{.name = "batch", .bound = 1},
                                     {.name = "seq", .bound = tokens},
                                     {.name = "heads", .bound = kHeads},
                                     {.name = "head_dim", .bound = kHeadDim}}};
        };
        const auto ids = [](std::int64_t tokens) {
          return TensorType{
              .dtype = DType::kI32,
              .dims = {{.name = "batch", .bound = 1}, {.name = "seq", .bound = tokens}}};
        };
        const AttentionAttrs attrs = {.window = window};
        const TensorTypes types = {tensor(queries),
                                   tensor(keys),
                                   tensor(keys),
                                   ids(queries),
                                   ids(keys),
                                   ids(queries),
                                   ids(keys)};
        const Cost found = cost(*make_op(attrs), types);
        EXPECT_DOUBLE_EQ(found.flop, 4.0 * kHeads * kHeadDim * pairs)
            << queries << " of " << keys << ", window " << window;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
