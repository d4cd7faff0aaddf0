#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/csv_table.h"
#include "bench/published_defaults.h"

namespace tessera {

// A row of a table of training steps that others published, with defaults where cells are empty.
// Words are those of the tables' README.
struct PublishedRow {
  std::string id;
  std::string system;
  std::string chip;
  std::int64_t gpus = 1;
  std::optional<std::int64_t> gpus_per_node;
  std::optional<double> intra_bandwidth;  // bytes/s of a GPU, in each direction
  std::optional<double> inter_bandwidth;
  std::string family;
  std::string model;
  std::int64_t layers = 1;
  std::int64_t hidden = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t ffn = 1;
  std::string mlp;
  std::int64_t vocab = 1;
  bool tied = false;
  std::int64_t seq = 1;
  std::int64_t global_batch = 1;  // sequences
  std::int64_t microbatch = 1;
  std::int64_t tp = 1;
  bool sp = false;
  std::int64_t cp = 1;
  std::int64_t pp = 1;
  std::int64_t vpp = 1;
  std::int64_t ep = 1;
  std::optional<std::int64_t> dp;
  std::string state;
  std::optional<std::int64_t> shard_ranks;
  std::string recompute;
  std::string attention;
  std::string compiled;
  std::string dtype;
  std::string grad_reduce_dtype;
  bool has_dropout = false;
  std::vector<std::string> guesses;  // columns whose values are the table's own guesses
  std::vector<std::string> assumed;  // columns whose cells are empty, so that a default is here
  std::vector<std::string> traits;   // beside those that follow from columns
  std::optional<double> seconds;     // of a step; none where only a ratio is known
};

// Errors: kInvalidData with the file, row and column, what was found and what was expected, for
// words that the README has not, numbers that are none, and empty cells that have no default.
PublishedRow read_published_row(const CsvTable& table,
                                std::size_t number,
                                const PublishedDefaults& defaults);

}  // namespace tessera
