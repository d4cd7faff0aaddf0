// Training with products in 8-bit floats, from outside: it ends where full precision does, goes on
// under another layout, and its memory is known before.

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Float8Test : public TrainingTest {
 protected:
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> result;
    for (const std::string& line : metrics(run)) {
      result.push_back(nlohmann::json::parse(line).at("loss"));
    }
    return result;
  }

  // The mean loss of the last 50 of 200 steps.
  double end_of(const std::string& run, const std::vector<std::string>& overrides) const {
    std::vector<std::string> all = {"--train.steps=200"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Outcome outcome = train(run, all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<double> steps = losses(run);
    EXPECT_EQ(steps.size(), 200U);
    double sum = 0;
    for (std::size_t i = steps.size() - 50; i < steps.size(); ++i) {
      sum += steps[i];
    }
    return sum / 50;
  }
};

TEST_F(Float8Test, EndsWhereFullPrecisionDoes) {
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string option = format("--train.dtype={}", dtype);
    const double full = end_of(format("{}", dtype), {option});
    for (const std::string recipe : {"tensorwise", "rowwise"}) {
      const std::string head = format("--float8.head={}", recipe == "rowwise");
      const double loss = end_of(format("{}_{}", dtype, recipe),
                                 {option, format("--float8.recipe={}", recipe), head});
      EXPECT_NEAR(loss, full, 0.02 * full) << dtype << ", " << recipe;
      EXPECT_NE(loss, full);
    }
  }
}

TEST_F(Float8Test, GoesOnUnderAnotherLayoutAndValidates) {
  const std::vector<std::string> options = {"--float8.recipe=rowwise",
                                            "--float8.gradients=f8e5m2",
                                            "--float8.skip_last=1",
                                            "--float8.head=true",
                                            "--train.microbatch=1",
                                            "--data.validation_share=0.1",
                                            "--validation.every=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), options.begin(), options.end());
    return more;
  };
  ASSERT_EQ(train("whole", with({})).code, 0);
  ASSERT_EQ(train("parts", with({"--train.steps=6", "--schedule.decay_ratio=0"})).code, 0);
  const Outcome later = train("parts", with({"--parallel.tensor=2", "--schedule.decay_ratio=0.5"}));
  ASSERT_EQ(later.code, 0) << later.err;
  EXPECT_NEAR(losses("parts").back(), losses("whole").back(), 1e-2 * losses("whole").back());
  const auto last = nlohmann::json::parse(metrics("parts").back());
  EXPECT_NEAR(last.at("validation_loss"), last.at("loss"), 0.2 * last.at("loss").get<double>());
}

TEST_F(Float8Test, ExplainKnowsOpsAndMemory) {
  const Outcome plain = tessera({"explain", "run.toml", "--ops"});
  EXPECT_THAT(plain.out, Not(HasSubstr("scaled_matmul")));
  const std::vector<std::string> options = {"--float8.recipe=tensorwise"};
  const Outcome explained = tessera({"explain", "run.toml", options[0]});
  ASSERT_EQ(explained.code, 0) << explained.err;
  const Outcome ops = tessera({"explain", "run.toml", options[0], "--ops"});
  ASSERT_EQ(train("run", options).code, 0);
  const std::int64_t used = nlohmann::json::parse(metrics("run").back())["memory_bytes"];
  EXPECT_THAT(explained.out, HasSubstr(format("({} bytes; ", format_grouped(used))));
  EXPECT_THAT(ops.out,
              AllOf(HasSubstr("scaled_matmul"), HasSubstr("quantize_float8"), HasSubstr("amax")));
}

}  // namespace
}  // namespace tessera
