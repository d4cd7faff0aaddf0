#include "tessera/train/validator.h"

#include <algorithm>
#include <cstddef>

#include "tessera/dataset/input_rows.h"
#include "tessera/program/step_names.h"

namespace tessera {
std::vector<std::int64_t> evenly_spread(std::int64_t total, std::int64_t count) {
  const std::int64_t taken = count == 0 ? total : std::min(count, total);
  std::vector<std::int64_t> numbers;
  // i * total / taken without an overflow.
  for (std::int64_t i = 0; i < taken; ++i) {
    numbers.push_back(total / taken * i + total % taken * i / taken);
  }
  return numbers;
}

Validator::Validator(LossExecutor& executor,
                     const SequenceSource& source,
                     const ValidationSection& validation,
                     const BatchShare& share)
    : executor_(executor),
      source_(source),
      share_(share),
      sequences_(evenly_spread(source.num_sequences(), validation.sequences)) {
  for (const std::int64_t sequence : sequences_) {
    num_labels_ += source.num_valid_labels(sequence);
  }
}

std::optional<double> Validator::loss(const GoOn& go_on) {
  double sum = 0;
  const auto num_sequences = static_cast<std::int64_t>(sequences_.size());
  const std::int64_t batch = share_.rows * share_.num_data;
  const std::int64_t at_once = batch * executor_.num_microbatches();
  for (std::int64_t first = 0; first < num_sequences; first += at_once) {
    if (first > 0 && !go_on(first, num_sequences)) {
      return std::nullopt;
    }
    const std::int64_t rest = std::min(at_once, num_sequences - first);
    const std::int64_t microbatches = (rest + batch - 1) / batch;
    for (std::int64_t m = 0; m < microbatches; ++m) {
      load(first + m * batch, m);
    }
    executor_.run(microbatches);
    for (std::int64_t m = 0; m < microbatches; ++m) {
      sum += double{executor_.output(step_names::kLoss, m)};
    }
  }
  return sum / static_cast<double>(std::max<std::int64_t>(num_labels_, 1));
}

// This rank's rows of the batch that begins with sequence `first` of the list.
void Validator::load(std::int64_t first, std::int64_t microbatch) {
  for (std::int64_t row = 0; row < share_.rows; ++row) {
    const auto i = static_cast<std::size_t>(first + share_.place * share_.rows + row);
    if (i < sequences_.size()) {
      write_row(
          executor_.executor(), read_row(source_, sequences_[i]), share_.tokens, row, microbatch);
    } else {
      load_empty_row(executor_.executor(), row, microbatch);
    }
  }
}

}  // namespace tessera
