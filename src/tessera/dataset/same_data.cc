#include "tessera/dataset/same_data.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/texts.h"
#include "tessera/dataset/run_data.h"

namespace tessera {
namespace {

std::string describe(std::string_view what, const SequenceSource& source) {
  std::string sequences;
  for (const std::int64_t count : source.part_sequences()) {
    sequences += format("{}{}", sequences.empty() ? "" : " + ", count);
  }
  return format("{}: {} tokens in {} documents, {} sequences\n",
                what,
                source.num_tokens(),
                source.num_documents(),
                sequences);
}

struct Difference {
  std::string own;
  std::string other;
};

// The first lines of two texts that differ.
Difference first_difference(const std::string& own, const std::string& other) {
  std::istringstream own_lines(own);
  std::istringstream other_lines(other);
  Difference lines;
  do {
    std::getline(own_lines, lines.own);
    std::getline(other_lines, lines.other);
  } while (own_lines && other_lines && lines.own == lines.other);
  return lines;
}

}  // namespace

std::string describe_sequences(const RunSequences& sequences) {
  return format(
      "{} tokens in {} documents", sequences.train.num_tokens(), sequences.train.num_documents());
}

std::string describe_validation(const RunSequences& sequences, std::int64_t num_sequences) {
  if (!sequences.validation) {
    return "";
  }
  const SequenceSource& source = *sequences.validation;
  std::int64_t all = 0;
  for (const std::int64_t count : source.part_sequences()) {
    all += count;
  }
  return format("{} tokens in {} documents, {} of {} sequences",
                source.num_tokens(),
                source.num_documents(),
                num_sequences == 0 ? all : std::min(num_sequences, all),
                all);
}

std::string describe_data(const RunSequences& sequences, const std::string& tokenizer_checksum) {
  return format("tokenizer: checksum {}\n", tokenizer_checksum) +
         describe("training data", sequences.train) +
         (sequences.validation ? describe("validation data", *sequences.validation) : "");
}

void require_same_data(Communicator& all, const std::string& own) {
  const std::vector<std::string> texts = gather_texts(all, own);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) {
      continue;
    }
    const Difference lines = first_difference(texts[rank], texts[0]);
    fail(ErrorCode::kInvalidData,
         "rank {} has other files than rank 0: {}; rank 0: {}: give all ranks the same files",
         rank,
         lines.own,
         lines.other);
  }
}

}  // namespace tessera
