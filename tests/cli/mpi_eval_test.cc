// `tessera eval` whose ranks are processes: they compute the bits of threads, and one of them
// speaks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/eval_test.h"
#include "tests/cli/process.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST_F(EvalTest, RunsUnderMpirun) {
  if (!has_mpi()) {
    GTEST_SKIP() << "no Open MPI: install openmpi-bin and libopenmpi-dev, and build again";
  }
  import_model();
  const std::string data = "eval model --json --data " + eval_golden("text.txt");
  const Outcome outcome = shell(mpirun("-n 2", data));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out, nullptr, false),
            eval({"model", "--data", eval_golden("text.txt"), "--parallel.ranks=2"}));
  const Outcome tensor = shell(mpirun("-n 2", data + " --parallel.tensor=2"));
  EXPECT_EQ(json::parse(tensor.out, nullptr, false),
            eval({"model", "--data", eval_golden("text.txt"), "--parallel.tensor=2"}));
  const Outcome pipeline = shell(mpirun("-n 2", data + " --parallel.pipeline=2"));
  EXPECT_EQ(pipeline.code, 0) << pipeline.err;
  EXPECT_EQ(json::parse(pipeline.out, nullptr, false),
            eval({"model", "--data", eval_golden("text.txt"), "--parallel.pipeline=2"}));
  const Outcome scores = shell(
      mpirun("-n 2", "eval model --output=scores.jsonl --choices=" + eval_golden("choices.jsonl")));
  ASSERT_EQ(scores.code, 0) << scores.err;
  EXPECT_THAT(scores.out, HasSubstr("questions: 13; with a label: 12\nacc: 0.3333 (4 of 12)\n"));
  EXPECT_EQ(lines_of("scores.jsonl").size(), 13);
  const Outcome refused = shell(mpirun("-n 2", data + " --parallel.ranks=4"));
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err,
              HasSubstr("parallel.ranks: found 4, but the launcher started 2 processes: start 4"));
  const Outcome missing = shell(mpirun("-n 2", "eval model --data=nothing.txt"));
  EXPECT_NE(missing.code, 0);
  EXPECT_THAT(missing.err, HasSubstr("nothing.txt"));
}

}  // namespace
}  // namespace tessera
