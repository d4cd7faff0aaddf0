#include "tessera/ops/cross_entropy/softmax_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/random.h"
#include "tessera/base/thread_team.h"
#include "tessera/ir/dtype.h"

namespace tessera::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of logits with labels, some of which are -1.
struct Problem {
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  std::vector<float> logits;
  std::vector<std::int32_t> labels;

  Problem(std::int64_t num_rows, std::int64_t num_entries, float std, float offset)
      : rows(num_rows),
        vocab(num_entries),
        logits(static_cast<std::size_t>(num_rows * num_entries)) {
    fill_normal(11, 0, {.std = std}, logits);
    for (float& logit : logits) {
      logit += offset;
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      labels.push_back(row % 4 == 3 ? -1 : static_cast<std::int32_t>(row * 31 % vocab));
    }
  }

  SoftmaxRows task() const {
    return {.logits = logits.data(), .labels = labels.data(), .rows = rows, .vocab = vocab};
  }
};

struct Result {
  std::vector<double> loss;
  std::vector<float> gradient;

  friend bool operator==(const Result&, const Result&) = default;
};

constexpr float kSeed = 0.125F;

Result run_f32(const Problem& problem, int threads) {
  Result result = {.loss = std::vector<double>(static_cast<std::size_t>(problem.rows), -1),
                   .gradient = std::vector<float>(problem.logits.size(), -1)};
  SoftmaxRows task = problem.task();
  task.seed = kSeed;
  task.row_loss = result.loss.data();
  task.gradient = result.gradient.data();
  ThreadTeam team(threads);
  softmax_cross_entropy(task, team);
  return result;
}

// Loss and gradient of one row in long double.
void expect_row(const Problem& problem, const Result& result, std::size_t row) {
  const auto vocab = static_cast<std::size_t>(problem.vocab);
  const float* const x = problem.logits.data() + row * vocab;
  const float* const gradient = result.gradient.data() + row * vocab;
  const std::int32_t label = problem.labels[row];
  if (label < 0) {
    EXPECT_EQ(result.loss[row], 0.0);
    EXPECT_TRUE(std::all_of(gradient, gradient + vocab, [](float g) { return g == 0.0F; }));
    return;
  }
  const long double top = *std::max_element(x, x + vocab);
  long double sum = 0;
  for (std::size_t v = 0; v < vocab; ++v) {
    sum += std::exp(static_cast<long double>(x[v]) - top);
  }
  const auto at_label = static_cast<std::size_t>(label);
  const auto loss =
      static_cast<double>(std::log(sum) + top - static_cast<long double>(x[at_label]));
  EXPECT_NEAR(result.loss[row], loss, 1e-6 * std::max(1.0, loss)) << "row " << row;
  for (std::size_t v = 0; v < vocab; ++v) {
    const long double p = std::exp(static_cast<long double>(x[v]) - top) / sum;
    const auto expected = static_cast<double>(kSeed * (p - (v == at_label ? 1 : 0)));
    ASSERT_NEAR(gradient[v], expected, 2e-6 * std::abs(expected) + 1e-12)
        << "row " << row << " entry " << v;
  }
}

struct Distribution {
  float std = 1;
  float offset = 0;
};

class SoftmaxKernel : public testing::TestWithParam<std::tuple<std::int64_t, Distribution>> {
 protected:
  Problem problem() const {
    const auto& [vocab, distribution] = GetParam();
    return {9, vocab, distribution.std, distribution.offset};
  }
};

TEST_P(SoftmaxKernel, IsTheSoftmaxAndItsLoss) {
  const Problem given = problem();
  const Result result = run_f32(given, 2);
  for (std::size_t row = 0; row < static_cast<std::size_t>(given.rows); ++row) {
    expect_row(given, result, row);
  }
}

TEST_P(SoftmaxKernel, BitsDoNotDependOnThreads) {
  EXPECT_EQ(run_f32(problem(), 3), run_f32(problem(), 1));
}

TEST_P(SoftmaxKernel, GradientMayLieOverTheLogits) {
  const Result expected = run_f32(problem(), 2);
  Problem given = problem();
  SoftmaxRows task = given.task();
  task.seed = kSeed;
  task.gradient = given.logits.data();
  ThreadTeam team(2);
  softmax_cross_entropy(task, team);
  EXPECT_EQ(given.logits, expected.gradient);
}

TEST_P(SoftmaxKernel, LossAloneIsTheSameLoss) {
  const Problem given = problem();
  std::vector<double> loss(static_cast<std::size_t>(given.rows), -1);
  SoftmaxRows task = given.task();
  task.row_loss = loss.data();
  ThreadTeam team(2);
  softmax_cross_entropy(task, team);
  EXPECT_EQ(loss, run_f32(given, 2).loss);
}

TEST_P(SoftmaxKernel, BFloat16GradientIsTheRoundedOne) {
  const Problem given = problem();
  const Result expected = run_f32(given, 2);
  std::vector<BFloat16> gradient(given.logits.size(), BFloat16{0x1234});
  SoftmaxRows task = given.task();
  task.seed = kSeed;
  task.gradient = gradient.data();
  task.gradient_dtype = DType::kBF16;
  ThreadTeam team(2);
  softmax_cross_entropy(task, team);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    ASSERT_EQ(gradient[i], to_bfloat16(expected.gradient[i])) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         SoftmaxKernel,
                         testing::Combine(testing::Values(1, 7, 33, 1024, 50257),
                                          testing::Values(Distribution{1, 0},
                                                          Distribution{30, 0},
                                                          Distribution{1, 10000},
                                                          Distribution{1, -10000})));

double loss_of(std::vector<float> logits, std::int32_t label) {
  double loss = -1;
  ThreadTeam caller(1);
  softmax_cross_entropy({.logits = logits.data(),
                         .labels = &label,
                         .rows = 1,
                         .vocab = static_cast<std::int64_t>(logits.size()),
                         .row_loss = &loss},
                        caller);
  return loss;
}

TEST(SoftmaxEdges, MaskedEntriesCountNothing) {
  EXPECT_NEAR(loss_of({-kInfinity, 0.0F, 0.0F}, 1), std::log(2.0), 1e-7);
  EXPECT_EQ(loss_of({-kInfinity, 0.0F}, 0), kInfinity);
  std::vector<float> masked(3000, -kInfinity);  // whole blocks of masked entries first
  masked.push_back(5.0F);
  EXPECT_EQ(loss_of(masked, 3000), 0.0);
}

TEST(SoftmaxEdges, ExtremeLogitsNeitherOverflowNorVanish) {
  EXPECT_EQ(loss_of({3e38F, -3e38F}, 0), 0.0);
  EXPECT_NEAR(loss_of({1000.0F, 0.0F}, 1), 1000.0, 1e-9);
}

TEST(SoftmaxEdges, WhatIsNotANumberStaysOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t place :
       {std::size_t{0}, std::size_t{7}, std::size_t{1023}, std::size_t{2048}}) {
    std::vector<float> logits(2049, 1.0F);
    logits[place] = nan;
    EXPECT_TRUE(std::isnan(loss_of(logits, 5))) << "place " << place;
  }
  EXPECT_TRUE(std::isnan(loss_of(std::vector<float>(100, nan), 5)));
  EXPECT_TRUE(std::isnan(loss_of({kInfinity, 0.0F}, 1)));
}

TEST(SoftmaxErrors, LabelPastTheVocabularyIsAnInternalError) {
  try {
    loss_of({0.0F, 1.0F}, 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.message(), testing::HasSubstr("label 2 of row 0 is outside [0, 2)"));
  }
}

}  // namespace
}  // namespace tessera::cpu
