#include "tessera/train/validator.h"

#include <algorithm>
#include <cstddef>

#include "tessera/dataset/input_rows.h"
#include "tessera/program/step_names.h"
#include "tessera/runtime/training_step.h"

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

Validator::Validator(Executor& executor,
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
  for (std::int64_t first = 0; first < num_sequences; first += share_.rows * share_.num_data) {
    if (first > 0 && !go_on(first, num_sequences)) {
      return std::nullopt;
    }
    load(first);
    run_losses(executor_);
    sum += double{executor_.output_scalar(step_names::kLoss)};
  }
  return sum / static_cast<double>(std::max<std::int64_t>(num_labels_, 1));
}

// This rank's rows of the batch that begins with sequence `first` of the list.
void Validator::load(std::int64_t first) {
  for (std::int64_t row = 0; row < share_.rows; ++row) {
    const auto i = static_cast<std::size_t>(first + share_.place * share_.rows + row);
    if (i < sequences_.size()) {
      load_row(executor_, source_, sequences_[i], row);
    } else {
      load_empty_row(executor_, row);
    }
  }
}

}  // namespace tessera
