#include "tessera/train/step_program.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/config/run_config.h"
#include "tessera/train/test_training.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string program_of(bool document_mask, bool deterministic) {
  RunConfig config;
  config.data.sequence_length = 6;
  config.data.document_mask = document_mask;
  config.run.deterministic = deterministic;
  return to_string(compile_step(config, tiny_llama(), {}));
}

TEST(StepProgram, TellsAttentionWhatTheConfigSays) {
  EXPECT_THAT(program_of(true, true), Not(HasSubstr("whole_rows")));
  EXPECT_THAT(program_of(true, true), Not(HasSubstr("any_order")));
  EXPECT_THAT(program_of(false, true), HasSubstr("whole_rows=true"));
  EXPECT_THAT(program_of(true, false), HasSubstr("any_order=true"));
}

}  // namespace
}  // namespace tessera
