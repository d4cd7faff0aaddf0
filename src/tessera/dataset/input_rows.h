#pragma once

#include <cstdint>
#include <vector>

#include "tessera/data/sequence_source.h"
#include "tessera/mesh/context_order.h"
#include "tessera/runtime/training_step.h"

namespace tessera {

// The ids of one sequence, as SequenceBuffers.
struct SequenceRow {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> documents;
};

// Errors: as SequenceSource::read().
SequenceRow read_row(const SequenceSource& source, std::int64_t sequence);

// Positions from 0 on, and no label that counts.
SequenceRow empty_row(std::int64_t length);

// Writes a rank's part of a sequence into row `row` of a microbatch: those of tokens, labels,
// positions and documents that the program has, and of the ids of all keys, which lie as the parts
// of all ranks do, one after the other. Errors: as context_order().
void write_row(Executor& executor,
               const SequenceRow& sequence,
               const ContextPart& part,
               std::int64_t row,
               std::int64_t microbatch = 0);

// Writes the number of a row's sequence, which decides its dropout, where the program has that
// input. Of all numbers of a run, no two are equal; another seed gives others.
void load_number(Executor& executor,
                 std::uint64_t seed,
                 std::int64_t number,
                 std::int64_t row,
                 std::int64_t microbatch = 0);

// Fills a row of a microbatch with what does not count: labels that are ignored.
void load_empty_row(Executor& executor, std::int64_t row, std::int64_t microbatch = 0);

}  // namespace tessera
