#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/data/sequence_source.h"
#include "tessera/runtime/executor.h"

namespace tessera {

// Row `row` of an input (batch, seq) i32 of a program, as the host writes it.
std::span<std::int32_t> input_row(Executor& executor,
                                  std::string_view input,
                                  std::int64_t row,
                                  std::int64_t microbatch = 0);

// Writes a sequence into row `row` of a microbatch: tokens, labels, positions and documents.
// Errors: as SequenceSource::read().
void load_row(Executor& executor,
              const SequenceSource& source,
              std::int64_t sequence,
              std::int64_t row,
              std::int64_t microbatch = 0);

// Fills a row of the first microbatch with what does not count: labels that are ignored.
void load_empty_row(Executor& executor, std::int64_t row);

}  // namespace tessera
