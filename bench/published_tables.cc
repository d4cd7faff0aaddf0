#include "bench/published_tables.h"

#include <cstdlib>
#include <system_error>

#include "bench/csv_table.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera {
namespace {

const Cluster& chip_of(const PublishedTable::Row& row, const PublishedConstants& constants) {
  const auto chip = constants.clusters.find(row.run.chip);
  TESSERA_REQUIRE(chip != constants.clusters.end(),
                  ErrorCode::kInvalidConfig,
                  "found no cluster file {}, expected one beside the others",
                  row.run.chip);
  return chip->second;
}

// FLOP of a GPU, of which a forward that is repeated is a third more.
double flop_of(const PublishedTable::Row& row) {
  const Explanation& facts = *row.programs->facts();
  constexpr double kRepeated = 4.0 / 3.0;
  return facts.flop_per_token() * static_cast<double>(facts.tokens_per_step()) /
         static_cast<double>(row.row.gpus) *
         (row.row.recompute.starts_with("full") ? kRepeated : 1.0);
}

}  // namespace

PublishedSet::PublishedSet() {
  std::string name = (std::filesystem::temp_directory_path() / "published-XXXXXX").string();
  TESSERA_CHECK(::mkdtemp(name.data()) != nullptr, "cannot create {}", name);
  directory_ = name;
  programs_ = std::make_unique<PublishedPrograms>(directory_);
}

PublishedSet::~PublishedSet() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

PublishedTable PublishedSet::read(const std::filesystem::path& file,
                                  const PublishedDefaults& defaults) {
  PublishedTable result = {.name = file.stem().string(), .rows = {}};
  const CsvTable table(read_file(file), file.string());
  for (std::size_t i = 0; i < table.num_rows(); ++i) {
    PublishedTable::Row row = {.row = read_published_row(table, i, defaults), .run = {}};
    row.run = express(row.row, defaults);
    row.waits = row.run.waits;
    if (row.waits.empty() && !row.row.seconds) {
      row.waits = "target_step_s, which is empty";
    }
    result.rows.push_back(std::move(row));
  }
  return result;
}

void PublishedSet::simulate(PublishedTable& table, const PublishedConstants& constants) {
  for (PublishedTable::Row& row : table.rows) {
    if (!row.waits.empty()) {
      continue;
    }
    try {
      row.programs = programs_->get(row.run, row_cluster(row.row, chip_of(row, constants)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidConfig &&
          error.code() != ErrorCode::kInvalidArgument) {
        throw;
      }
      row.waits = error.what();
      continue;
    }
    const double gpus = static_cast<double>(row.row.gpus);
    row.score = {.model = row.row.model,
                 .target = *row.row.seconds,
                 .predicted = predicted_seconds(row, constants),
                 .flop = flop_of(row),
                 .work = static_cast<double>(row.row.global_batch * row.row.seq) / gpus,
                 .has_guess = !row.row.guesses.empty()};
  }
}

double predicted_seconds(const PublishedTable::Row& row, const PublishedConstants& constants) {
  const SoftwareStack& stack = constants.stacks.at(row.run.stack);
  const Cluster cluster = with_stack(row_cluster(row.row, chip_of(row, constants)), stack);
  return row.programs->step_seconds(cluster, with_stack(SimulationOptions(), stack));
}

}  // namespace tessera
