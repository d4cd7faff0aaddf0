#include "tests/cli/mpi_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"

namespace tessera {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += word + " ";
  }
  return text;
}

void MpiTest::SetUp() {
  if (!has_mpi()) {
    GTEST_SKIP() << "no Open MPI: install openmpi-bin and libopenmpi-dev, and build again";
  }
}

std::string MpiTest::mpirun(const std::string& options,
                            const std::string& overrides,
                            const std::string& library) {
  return TrainingTest::mpirun(options, "train run.toml " + overrides, library);
}

Outcome MpiTest::run_and(const std::string& act,
                         const std::string& options,
                         const std::string& overrides,
                         const std::string& library) const {
  return shell(format(
      "find_rank() {{\n"
      "  for process in /proc/[0-9]*; do\n"
      "    if grep -qzE \"^(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1$\" $process/environ "
      "2>/dev/null &&\n"
      "      test \"$(cat $process/comm)\" = tessera &&\n"
      "      test \"$(readlink $process/cwd)\" = \"$PWD\"; then\n"
      "      echo ${{process#/proc/}}\n"
      "    fi\n"
      "  done\n"
      "}}\n"
      "wait_for() {{\n"
      "  while kill -0 $launch 2>/dev/null && ! test -s $1; do sleep 0.05; done\n"
      "}}\n"
      "{} & launch=$!\n"
      "wait_for run/metrics.jsonl\n"
      "first=$(find_rank 0); rank=$(find_rank 1)\n"
      "mpirun=$(cat /proc/$launch/task/$launch/children)\n"
      "{}\n"
      "wait $launch; code=$?; kill -9 $rank 2>/dev/null; exit $code",
      mpirun(
          options,
          // Few lines: Open MPI's launcher reads none from Ctrl-C on, and waits for as
          // long as it is to be patient before it tells the ranks.
          format("--run.dir=run --train.steps=1000000 --log.every=1000 {} {}", kSteady, overrides),
          library),
      act));
}

void MpiTest::expect_no_process() const {
  EXPECT_EQ(shell("find_processes() {\n"
                  "  for process in /proc/[0-9]*; do\n"
                  "    test \"$(readlink $process/cwd)\" = \"$PWD\" &&\n"
                  "      grep -qE '^(tessera|training_with_k)' $process/comm && echo $process\n"
                  "  done\n"
                  "}\n"
                  "for i in $(seq 100); do\n"
                  "  left=$(find_processes)\n"
                  "  test -z \"$left\" && break; sleep 0.1\n"
                  "done\n"
                  "echo $left")
                .out,
            "\n")
      << "processes are left";
}

void MpiTest::make_tokenizer() const {
  ASSERT_EQ(train("first", {"--train.steps=2", "--schedule.decay_ratio=0"}).code, 0);
}

void MpiTest::expect_to_go_on(const std::string& run,
                              std::size_t most_unnoted,
                              const std::vector<std::string>& overrides) const {
  const std::size_t done = metrics(run).size();
  std::vector<std::string> all = {format("--train.steps={}", done + 2),
                                  "--schedule.warmup=1",
                                  "--schedule.decay_ratio=0",
                                  "--parallel.ranks=2",
                                  "--train.microbatch=1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  const Outcome resumed = train(run, all);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err,
              AllOf(HasSubstr("was written when the run was interrupted"),
                    ContainsRegex(format(
                        "resuming from .* after step ({}|{})\n", done, done + most_unnoted))));
  EXPECT_EQ(metrics(run).size(), done + 2);
}

std::string MpiTest::message_of(int rank, const std::string& run) const {
  const auto record = nlohmann::json::parse(read_file(path(format("{}/exit-{}.json", run, rank))));
  EXPECT_EQ(record["rank"], rank);
  EXPECT_EQ(record["exit_code"], 5);
  return record["message"];
}

}  // namespace tessera
