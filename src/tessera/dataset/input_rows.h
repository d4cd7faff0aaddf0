#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/data/sequence_source.h"
#include "tessera/runtime/training_step.h"

namespace tessera {

// Writes a sequence into row `row` of a microbatch: those of tokens, labels, positions and
// documents that the program has. Errors: as SequenceSource::read().
void load_row(Executor& executor,
              const SequenceSource& source,
              std::int64_t sequence,
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

// A row of an input as input_row(); empty where the program has no such input.
std::span<std::int32_t> find_input_row(Executor& executor,
                                       std::string_view input,
                                       std::int64_t row,
                                       std::int64_t microbatch);

}  // namespace tessera
