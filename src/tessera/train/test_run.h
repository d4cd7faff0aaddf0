#pragma once

#include <filesystem>
#include <string>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/config/run_config.h"

namespace tessera {

// For tests: a folder with a corpus, in which runs of six small steps, of two microbatches on one
// rank, may be trained.
class TestRun {
 public:
  TestRun() {
    std::string text;
    for (int line = 0; line < 100; ++line) {
      text += format("Line {} of {}: {}\n", line, line * line % 97, line * 7 % 31);
    }
    write_test_file(directory_.path() / "corpus.txt", text);
  }

  std::filesystem::path run(const std::string& name) const { return directory_.path() / name; }

  RunConfig config(const std::string& name) const {
    RunConfig config;
    config.run.dir = run(name);
    config.run.threads = 1;
    config.tokenizer = {.path = directory_.path() / "tokenizer.json", .train_vocab = 300};
    config.data.files = {directory_.path() / "corpus.txt"};
    config.data.sequence_length = 16;
    config.train.steps = 6;
    config.train.global_batch = 4;
    config.train.microbatch = 2;
    config.schedule.warmup = 1;
    config.schedule.decay_ratio = 0;
    return config;
  }

 private:
  TestDirectory directory_;
};

}  // namespace tessera
