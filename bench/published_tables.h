#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/published_run.h"
#include "bench/published_score.h"

namespace tessera {

// A table of training steps, read and simulated.
struct PublishedTable {
  struct Row {
    PublishedRow row;
    PublishedRun run;
    std::string waits = {};  // why it is not simulated; empty: it is
    std::shared_ptr<const SimulatedRun> programs = {};
    ScoredRow score = {};
  };

  std::string name;
  std::vector<Row> rows;
};

// Tables whose equal programs are compiled once.
class PublishedSet {
 public:
  PublishedSet();
  ~PublishedSet();
  PublishedSet(const PublishedSet&) = delete;
  PublishedSet& operator=(const PublishedSet&) = delete;

  // Errors: kInvalidData with file, row and column (read_published_row()).
  PublishedTable read(const std::filesystem::path& file, const PublishedDefaults& defaults);

  // Compiles what is not yet, and predicts each row's step. A row that has no run waits, with what
  // its run's error says.
  void simulate(PublishedTable& table, const PublishedConstants& constants);

 private:
  std::filesystem::path directory_;
  std::unique_ptr<PublishedPrograms> programs_;
};

// The step of a row that is compiled.
double predicted_seconds(const PublishedTable::Row& row, const PublishedConstants& constants);

}  // namespace tessera
