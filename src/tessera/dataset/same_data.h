#pragma once

#include <cstdint>
#include <string>

#include "tessera/comm/communicator.h"

namespace tessera {

struct RunSequences;

// The sizes of what a run is trained on.
std::string describe_sequences(const RunSequences& sequences);

// What validations read, so that two of their losses can be compared; "" where there are none.
std::string describe_validation(const RunSequences& sequences, std::int64_t num_sequences);

// What `tokenizer_checksum` and the sizes of the data say of a rank's files, line by line.
std::string describe_data(const RunSequences& sequences, const std::string& tokenizer_checksum);

// Every rank of `all` calls it before the first step with its own describe_data(): under one name,
// files may differ between machines. Errors, the same on every rank: kInvalidData naming the first
// rank that has something else than rank 0, and the first line that differs.
void require_same_data(Communicator& all, const std::string& own);

}  // namespace tessera
