#include "tessera/resolve/require_checkpoint.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

// A run with the checkpoints of steps 1 and 2, of this family.
class CheckpointsOfARun : public testing::Test {
 protected:
  void save(const std::string& family) const {
    for (const std::int64_t step : {1, 2}) {
      CheckpointMeta meta;
      meta.step = step;
      meta.model = "{\"family\":\"" + family + "\"}";
      save_checkpoint(at(step), meta, {});
    }
  }

  fs::path at(std::int64_t step) const {
    return checkpoint_directory(directory_.path() / "checkpoints", step);
  }

  TestDirectory directory_;
};

// A run that trains removes what it does not keep at any instant.
TEST_F(CheckpointsOfARun, ANewerOneReplacesOneThatIsRemoved) {
  save("llama");
  std::vector<fs::path> seen;
  const int result = with_checkpoint(directory_.path(), [&](const fs::path& found) {
    seen.push_back(found);
    if (seen.size() == 1) {
      fs::remove_all(found);
      fail(ErrorCode::kInvalidData, "cannot open it");
    }
    return 7;
  });
  EXPECT_EQ(result, 7);
  EXPECT_THAT(seen, ElementsAre(at(2), at(1)));
}

TEST_F(CheckpointsOfARun, WhatIsWrongWithOneThatStaysIsSaid) {
  save("llama");
  int tries = 0;
  EXPECT_EQ(error_of(ErrorCode::kInvalidData,
                     [&] {
                       with_checkpoint(directory_.path(), [&](const fs::path& /*found*/) {
                         ++tries;
                         fail(ErrorCode::kInvalidData, "damaged");
                       });
                     }),
            "damaged");
  EXPECT_EQ(tries, 1);
}

TEST_F(CheckpointsOfARun, AnotherProgramsModelIsTold) {
  require_known_run(directory_.path());  // which has none
  save("llama");
  require_known_run(directory_.path());
  save("my own");
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig, [&] { require_known_run(directory_.path()); }),
              HasSubstr("step-00000002 is of a model of its own, family \"my own\""));
  const CheckpointMeta own = CheckpointReader(at(2)).meta();
  require_known_model(at(2), own, R"({"family":"my own","sizes":3})");
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig,
                       [&] { require_known_model(at(2), own, R"({"family":"llama"})"); }),
              HasSubstr("is of a model of its own"));
}

}  // namespace
}  // namespace tessera
