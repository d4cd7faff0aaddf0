#pragma once

#include <string>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"

namespace tessera {

// What GoogleTest may call a case of a schedule: its name without dashes.
inline std::string schedule_name(const testing::TestParamInfo<PipelineSchedule>& test) {
  std::string text(name(test.param));
  std::erase(text, '-');
  return text;
}

}  // namespace tessera
