#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/format.h"

namespace tessera {

// Where the actions of a table are in the text that it was read from, for errors.
struct TablePlaces {
  std::string source = {};                              // empty: the table was made, not read
  std::vector<std::vector<std::int64_t>> columns = {};  // of each action of the rows, from 1

  // "table.csv:2:7: " of an action, "table.csv:2:1: " of a row; "" of a table that was made.
  std::string prefix(std::size_t rank, std::size_t position) const {
    return source.empty() ? "" : format("{}:{}:{}: ", source, rank + 1, columns[rank][position]);
  }

  std::string prefix(std::size_t rank) const {
    return source.empty() ? "" : format("{}:{}:1: ", source, rank + 1);
  }
};

}  // namespace tessera
