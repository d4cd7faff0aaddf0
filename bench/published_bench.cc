// Scores the simulator against training steps that others published.
//
// usage: published_bench [--rows] [--shuffle] DEFAULTS CLUSTERS STACKS FILE.csv...
//
// DEFAULTS is bench/published_defaults.toml, CLUSTERS a directory of cluster files, STACKS a file
// of software stacks. Of each table it prints the mean and the largest error, Kendall's tau over
// the rows of one model, and beside them what one constant times FLOP has that is fitted to the
// table itself; with and without the rows that have guesses. --rows: each row, too. --shuffle: and
// the error where targets are shuffled within the table.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/csv_table.h"
#include "bench/published_defaults.h"
#include "bench/published_row.h"
#include "bench/published_run.h"
#include "bench/published_score.h"
#include "bench/published_tables.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/print.h"

namespace tessera {
namespace {

struct Options {
  bool rows = false;
  bool shuffle = false;
  std::vector<std::string> arguments;
};

Options parse(std::span<char* const> arguments) {
  Options options;
  for (const char* const argument : arguments) {
    const std::string_view text = argument;
    if (text == "--rows") {
      options.rows = true;
    } else if (text == "--shuffle") {
      options.shuffle = true;
    } else {
      TESSERA_REQUIRE(!text.starts_with("-"),
                      ErrorCode::kInvalidArgument,
                      "found {}, expected --rows, --shuffle or a file",
                      text);
      options.arguments.emplace_back(text);
    }
  }
  TESSERA_REQUIRE(options.arguments.size() >= 4,
                  ErrorCode::kInvalidArgument,
                  "usage: published_bench [--rows] [--shuffle] DEFAULTS CLUSTERS STACKS "
                  "FILE.csv...");
  return options;
}

std::string score_text(std::string_view what, std::span<const ScoredRow> rows) {
  const TableScore score = score_of(rows);
  return rows.empty() ? std::string()
                      : format(
                            "  {:<16} {:>4} rows: mean {:5.1f} %, largest {:5.1f} %, bias "
                            "{:+5.1f} %, tau {}; one constant {:5.1f} %\n",
                            what,
                            score.rows,
                            100.0 * score.mean,
                            100.0 * score.largest,
                            100.0 * score.bias,
                            score.tau ? format("{:.2f}", *score.tau) : "none",
                            100.0 * score.bar);
}

std::string row_text(const PublishedTable::Row& row) {
  return format(
      "  {:<28} {:<22} {:>5} GPUs {:>10.4g} s predicted, {:>10.4g} s published, {:+6.1f} %{}\n",
      row.row.id,
      row.row.model,
      row.row.gpus,
      row.score.predicted,
      row.score.target,
      100.0 * (row.score.predicted / row.score.target - 1.0),
      row.score.has_guess ? "  (guesses)" : "");
}

void print_table(const PublishedTable& table, const Options& options) {
  std::string text = format("{}\n", table.name);
  std::vector<ScoredRow> all;
  std::vector<ScoredRow> known;
  std::map<std::string, std::vector<std::string>> waiting;
  std::map<std::string, std::int64_t> assumed;
  for (const PublishedTable::Row& row : table.rows) {
    if (!row.waits.empty()) {
      waiting[row.waits].push_back(row.row.id);
      continue;
    }
    for (const std::string& column : row.row.assumed) {
      ++assumed[column];
    }
    all.push_back(row.score);
    if (!row.score.has_guess) {
      known.push_back(row.score);
    }
    text += options.rows ? row_text(row) : "";
  }
  text += score_text("all", all);
  text += known.size() == all.size() ? "" : score_text("without guesses", known);
  if (options.shuffle && all.size() > 1) {
    constexpr std::uint64_t kShuffles = 20;
    text += format("  shuffled targets: mean {:.1f} %\n", 100.0 * shuffled_error(all, kShuffles));
  }
  for (const auto& [column, count] : assumed) {
    text += format("  {} of {} rows by default\n", column, count);
  }
  for (const auto& [why, ids] : waiting) {
    text += format("  {} rows wait: {}\n   ", ids.size(), why);
    for (const std::string& id : ids) {
      text += " " + id;
    }
    text += "\n";
  }
  print(text);
}

void run(const Options& options) {
  const PublishedDefaults defaults(options.arguments[0]);
  const PublishedConstants constants =
      PublishedConstants::load(options.arguments[1], options.arguments[2]);
  PublishedSet set;
  std::vector<PublishedTable> tables;
  for (std::size_t i = 3; i < options.arguments.size(); ++i) {
    tables.push_back(set.read(options.arguments[i], defaults));
  }
  for (PublishedTable& table : tables) {
    set.simulate(table, constants);
    print_table(table, options);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  tessera::run(tessera::parse(std::span(argv, static_cast<std::size_t>(argc)).subspan(1)));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
