#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/test_directory.h"
#include "tests/cli/process.h"

namespace tessera {

// The small run of these tests: a step of it sees 4 sequences of 32 tokens.
inline constexpr std::int64_t kTokensPerStep = 128;

// The program itself, run in a directory of its own that holds a text (corpus.txt) and a run file
// (run.toml) of a tiny model: tokenizer.json is made by the first run.
class TrainingTest : public testing::Test {
 protected:
  TrainingTest();

  // Holds every run that the test has left, however it was started, to what follows.
  void TearDown() override;

  // The texts of the plan and the target of the run with this config, read back, are compiled to
  // its programs.
  static void expect_plan_is_all(const std::filesystem::path& config_path);

  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }

  // `build/tessera ARGUMENTS` in the directory.
  Outcome tessera(std::vector<std::string> arguments) const;

  // A line of /bin/sh there, in which "$tessera" is the program.
  Outcome shell(const std::string& line) const;

  // `env` before the program, in a line for shell(): its calls meet these faults of files (see
  // base/testing/faults.h), and are listed in `log` where one is named.
  static std::string with_faults(const std::string& faults, const std::string& log = "");

  // Whether processes of that MPI library, "openmpi" or "mpich", can be ranks here.
  bool has_mpi(const std::string& library = "openmpi") const;

  // `mpirun OPTIONS tessera COMMAND` as a line for shell(), which ends after two minutes with 124.
  // In a build with the address sanitizer, what MPI does not free is not ours.
  static std::string mpirun(const std::string& options,
                            const std::string& command,
                            const std::string& library = "openmpi");

  // `tessera train run.toml --run.dir=RUN OVERRIDES`.
  Outcome train(const std::string& run, std::vector<std::string> overrides = {}) const;

  // `tessera train` beside the test, with a line of progress for every step.
  Process start_training(const std::string& run, std::vector<std::string> overrides = {}) const;

  // The run's newest checkpoint, or the one after `step`.
  std::filesystem::path checkpoint(const std::string& run) const;
  std::filesystem::path checkpoint(const std::string& run, std::int64_t step) const;

  // Lines of the run's metrics.jsonl.
  std::vector<std::string> metrics(const std::string& run) const;

  // The steps that the run's TensorBoard event files hold, in the order in which they are read;
  // all of their bytes must be whole records.
  std::vector<std::int64_t> event_steps(const std::string& run) const;

  // Writes what tokenizer.json is as GPT-2's pair of files: ids by token, and merges. The last
  // token is <|endoftext|> there.
  void write_gpt2_files(const std::string& ids_name, const std::string& merges_name) const;

  // What the training computed, by step: the metrics without times, memory and traffic.
  std::vector<std::string> numbers(const std::string& run) const;

  // Metrics and newest checkpoint of the runs are the same, bit by bit.
  void expect_same_training(const std::string& run, const std::string& expected) const;

 private:
  TestDirectory directory_;
};

// The corpus of these tests: the same 400 lines every time, without any 'Z'.
std::string corpus_text();

// The override that names the test cluster of so many ranks.
std::string virtual_cluster(int ranks);

// The tensors that are not in both checkpoints with the same type, shape and bits.
std::vector<std::string> differing_tensors(const std::filesystem::path& a,
                                           const std::filesystem::path& b);

}  // namespace tessera
