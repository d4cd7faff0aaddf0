#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/actions/table_places.h"

namespace tessera {

struct ParsedTable {
  ActionTable table;
  std::vector<std::string> notes;  // what of the text is not in the table
  TablePlaces places;
};

// A table as PyTorch writes its schedules (compute_only) and TorchTitan reads them: a row per
// pipeline rank, cells such as "2F0"; those of slices, "2F0.1", are ours. "(0F0;1B1)OVERLAP_F_B"
// stands for its two actions in this order. Cells of communication and sharding ("1RECV_F0",
// "0UNSHARD") are left out, since they follow from the rest. Empty cells are bubbles, which follow
// from it, too: a table has none, and to_csv() writes none. A byte order mark of UTF-8, spaces
// around cells, CRLF, empty last rows and a missing last newline are accepted. Stages are on the
// ranks that have actions of them. check() says whether the table can run. Errors: kInvalidConfig
// with "SOURCE:ROW:COLUMN: ", counted from 1.
ParsedTable parse_table(std::string_view text, std::string_view source);

// Text that parse_table() reads back as the same table, and that is the same as the text that was
// read, if it had only actions, no spaces and a last newline.
std::string to_csv(const ActionTable& table);

}  // namespace tessera
