#pragma once

#include <vector>

#include "tessera/config/schema.h"

namespace tessera {

// The parts of schema(), each with its sections in the order of the documentation.

// run, model, tokenizer, data: where a run lives, its model, and the text that it reads.
std::vector<ConfigSection> input_sections();

// train, validation, lora, float8, optimizer, schedule: how weights follow from data.
std::vector<ConfigSection> training_sections();

// parallel, pipeline, state, comm, cluster, memory, checkpoint, log, sample, passes: how ranks
// divide the work, and what a run keeps and shows.
std::vector<ConfigSection> execution_sections();

}  // namespace tessera
