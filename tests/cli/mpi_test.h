#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/training_test.h"

namespace tessera {

// Of `timeout`: the launch did not end.
inline constexpr int kTimedOut = 124;

// Longer than a rank of a busy machine, or its disk, stands still.
inline constexpr const char* kShortDeadline = "--comm.deadline_seconds=10";

// What makes a step the same however many are to come.
inline constexpr const char* kSteady = "--schedule.warmup=1 --schedule.decay_ratio=0";

// Words of a line of the shell, each with a space after it.
std::string joined(const std::vector<std::string>& words);

// Runs whose ranks are processes, started by mpirun; without Open MPI they are skipped.
class MpiTest : public TrainingTest {
 protected:
  void SetUp() override;

  // `mpirun OPTIONS tessera train run.toml OVERRIDES` as a line of the shell.
  static std::string mpirun(const std::string& options,
                            const std::string& overrides,
                            const std::string& library = "openmpi");

  // A run that goes on until somebody ends it; `act` is a line of the shell that then does it to
  // "$rank", the process of rank 1, to "$first", that of rank 0, to "$mpirun", which started them,
  // or to "$launch", which started that. `wait_for FILE` waits for a file, or for the end of the
  // launch.
  Outcome run_and(const std::string& act,
                  const std::string& options,
                  const std::string& overrides,
                  const std::string& library = "openmpi") const;

  // Of the program, in this test's directory; one that was killed takes a moment to be gone.
  void expect_no_process() const;

  void make_tokenizer() const;

  // From the last step of which there are metrics, or one that rank 0 did not come to note, for a
  // few steps more.
  void expect_to_go_on(const std::string& run,
                       std::size_t most_unnoted = 0,
                       const std::vector<std::string>& overrides = {}) const;

  // What the exit record of a rank says, which failed because of the machine.
  std::string message_of(int rank, const std::string& run = "run") const;
};

}  // namespace tessera
