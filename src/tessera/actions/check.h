#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/actions/action_table.h"
#include "tessera/actions/table_places.h"

namespace tessera {

// What every table must be: each stage is on one rank and each rank has a stage; each stage has of
// each slice of each microbatch one F and either one B or one I and one W, in this order; slices of
// a microbatch go forward in rising order, backward in falling order; and the ranks, doing their
// actions in order, never wait for each other in a cycle. Returns the notes of notes.h.
// Errors: kInvalidConfig naming stage and microbatch, or the shortest cycle ("rank 1 waits at 4:2B0
// for 3B0", 4: the fourth action of its row), after "SOURCE:ROW:COLUMN: " of the first action that
// is wrong, or of the row that lacks one, where the table was read.
std::vector<std::string> check(const ActionTable& table, const TablePlaces& places = {});

// A checked table against a run. `source` names the table. Errors: kInvalidConfig naming both
// counts.
void require_run(const ActionTable& table,
                 std::string_view source,
                 std::int64_t ranks,
                 std::int64_t microbatches);

}  // namespace tessera
