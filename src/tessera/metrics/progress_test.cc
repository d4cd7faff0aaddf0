#include "tessera/metrics/progress.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/metrics/moving_mean.h"

namespace tessera {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

ProgressValues values_at(std::int64_t step) {
  return {.step = step,
          .num_steps = 400,
          .loss = 4.12345,
          .grad_norm = 1.0249,
          .tokens_per_second = 12345.0,
          .flop_per_second = 4.1e11,
          .share_of_peak = 0.876,
          .memory_bytes = 536870912,
          .seconds_left = 65.0};
}

// What a FILE* got.
class Output {
 public:
  Output() : file_(::open_memstream(&data_, &size_)) {}

  ~Output() {
    std::fclose(file_);
    std::free(data_);
  }

  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  std::FILE* file() const { return file_; }

  std::string text() const {
    std::fflush(file_);
    return {data_, size_};
  }

 private:
  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

Progress::Clock::time_point at(double seconds) {
  return Progress::Clock::time_point() + std::chrono::duration_cast<Progress::Clock::duration>(
                                             std::chrono::duration<double>(seconds));
}

TEST(FormatProgress, ShowsEverythingThatIsKnown) {
  EXPECT_EQ(format_progress(values_at(120), 0),
            "step 120/400  loss 4.1235  grad norm 1.02  12,345 tok/s  410 GFLOP/s  88 % of peak  "
            "512 MiB  1m05s left");
  EXPECT_EQ(
      format_progress(
          {.step = 1, .num_steps = 2, .loss = 8.0, .grad_norm = 2.5, .tokens_per_second = 100.0},
          0),
      "step 1/2  loss 8.0000  grad norm 2.5  100 tok/s");
}

// The peak was measured while something else took the machine.
TEST(FormatProgress, LeavesOutMoreThanThePeak) {
  ProgressValues values = values_at(120);
  values.share_of_peak = 4.8;
  EXPECT_THAT(format_progress(values, 0), testing::Not(testing::HasSubstr("of peak")));
}

TEST(MovingMean, IsOfTheLastOnes) {
  MovingMean mean(3);
  EXPECT_EQ(mean.add(9.0), 9.0);
  EXPECT_EQ(mean.add(3.0), 6.0);
  EXPECT_EQ(mean.add(6.0), 6.0);
  EXPECT_EQ(mean.add(0.0), 3.0) << "9 has left";
  EXPECT_EQ(mean.add(0.0), 2.0);
}

TEST(FormatProgress, LeavesOutTheLeastImportantFirst) {
  const ProgressValues values = values_at(120);
  const std::string full = format_progress(values, 0);
  std::string last = full;
  for (int width = static_cast<int>(full.size()); width > 0; --width) {
    const std::string line = format_progress(values, width);
    ASSERT_LE(line.size(), static_cast<std::size_t>(width));
    ASSERT_LE(line.size(), last.size());
    last = line;
  }
  EXPECT_EQ(format_progress(values, static_cast<int>(full.size())), full);
  EXPECT_EQ(format_progress(values, 60), "step 120/400  loss 4.1235  12,345 tok/s  1m05s left");
  EXPECT_EQ(format_progress(values, 30), "step 120/400  loss 4.1235");
  EXPECT_EQ(format_progress(values, 8), "step 120");
}

TEST(Progress, OnATerminalOneLineIsRedrawnAtALimitedRate) {
  const Output output;
  Progress progress({.out = output.file(), .terminal = true, .width = 31});
  progress.update(values_at(1), at(10.0));
  EXPECT_EQ(output.text(), "\rstep 1/400  loss 4.1235\x1b[K");
  for (int i = 2; i <= 9; ++i) {
    progress.update(values_at(i), at(10.0 + 0.01 * i));
  }
  EXPECT_EQ(output.text(), "\rstep 1/400  loss 4.1235\x1b[K");
  progress.update(values_at(10), at(10.1));
  EXPECT_EQ(output.text(), "\rstep 1/400  loss 4.1235\x1b[K\rstep 10/400  loss 4.1235\x1b[K");
}

TEST(Progress, OnATerminalTheLastValuesStay) {
  const Output output;
  {
    Progress progress({.out = output.file(), .terminal = true, .width = 31});
    progress.update(values_at(1), at(0.0));
    progress.update(values_at(2), at(0.01));
    progress.finish();
    EXPECT_THAT(output.text(), EndsWith("\rstep 2/400  loss 4.1235\x1b[K\n"));
  }
  EXPECT_THAT(output.text(), EndsWith("\rstep 2/400  loss 4.1235\x1b[K\n")) << "finished once";
  Progress progress({.out = output.file(), .terminal = true, .width = 31});
  progress.update(values_at(399), at(0.0));
  progress.update(values_at(400), at(0.01));
  EXPECT_THAT(output.text(), EndsWith("\rstep 400/400  loss 4.1235\x1b[K")) << "the last is shown";
}

TEST(Progress, OnATerminalWhatGoesOnBetweenTwoStepsIsShown) {
  const Output output;
  Progress progress({.out = output.file(), .terminal = true, .width = 31});
  progress.show_activity("validation 1/8", at(0.0));
  EXPECT_EQ(output.text(), "") << "no step is known";
  progress.update(values_at(1), at(0.0));
  progress.show_activity("validation 1/8", at(0.01));
  EXPECT_THAT(output.text(), EndsWith("\rstep 1/400  loss 4.1235\x1b[K"));
  progress.show_activity("validation 2/8", at(0.2));
  EXPECT_THAT(output.text(), EndsWith("\rstep 1/400  validation 2/8\x1b[K"));
  progress.finish();
  EXPECT_THAT(output.text(), EndsWith("\rstep 1/400  loss 4.1235\x1b[K\n"));

  const Output plain;
  Progress elsewhere({.out = plain.file(), .terminal = false});
  elsewhere.update(values_at(1), at(0.0));
  elsewhere.show_activity("validation 2/8", at(100.0));
  EXPECT_EQ(plain.text(), format_progress(values_at(1), 0) + "\n");
}

TEST(Progress, ClearTakesTheLineAwayUntilTheNextUpdate) {
  const Output output;
  Progress progress({.out = output.file(), .terminal = true, .width = 31});
  progress.clear();
  EXPECT_EQ(output.text(), "");
  progress.update(values_at(1), at(0.0));
  progress.clear();
  EXPECT_THAT(output.text(), EndsWith("\x1b[K\r\x1b[K"));
  progress.update(values_at(2), at(0.01));
  EXPECT_THAT(output.text(), EndsWith("\r\x1b[K\rstep 2/400  loss 4.1235\x1b[K"));
  progress.clear();
  progress.finish();
  EXPECT_THAT(output.text(), EndsWith("\r\x1b[K\rstep 2/400  loss 4.1235\x1b[K\n"));
}

TEST(Progress, ElsewhereItIsPlainLines) {
  const Output output;
  {
    Progress progress({.out = output.file(), .terminal = false, .width = 5, .plain_every = 100});
    for (int step = 51; step <= 220; ++step) {
      progress.update(values_at(step), at(0.0));
    }
    progress.clear();
  }
  const auto line = [](int step) { return format_progress(values_at(step), 0) + "\n"; };
  EXPECT_EQ(output.text(), line(51) + line(100) + line(200) + line(220));
}

TEST(Progress, ElsewhereTheLastStepHasALine) {
  const Output output;
  Progress progress({.out = output.file(), .terminal = false, .plain_every = 1000});
  progress.update(values_at(399), at(0.0));
  progress.update(values_at(400), at(0.0));
  progress.finish();
  EXPECT_EQ(output.text(),
            format_progress(values_at(399), 0) + "\n" + format_progress(values_at(400), 0) + "\n");
}

TEST(Progress, AFileIsNoTerminal) {
  const Output output;
  Progress progress({.out = output.file()});
  progress.update(values_at(1), at(0.0));
  EXPECT_THAT(output.text(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace tessera
