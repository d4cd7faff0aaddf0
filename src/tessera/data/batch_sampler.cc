#include "tessera/data/batch_sampler.h"

#include <cstddef>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/data/permutation.h"

namespace tessera {
namespace {

// Draws the sequences of one source; neighbours are mostly of one epoch, whose order is kept.
class SourceOrder {
 public:
  SourceOrder(const BatchSamplerOptions& options, std::size_t source)
      : options_(options),
        size_(options.sources[source].num_sequences),
        // The first source has the names that a run of one source has.
        name_(source == 0 ? "data" : format("data.source.{}", source)),
        order_(epoch_order(0)) {}

  std::int64_t operator()(std::int64_t number) {
    if (!options_.shuffle) {
      return number % size_;
    }
    if (number / size_ != epoch_) {
      epoch_ = number / size_;
      order_ = epoch_order(epoch_);
    }
    return order_(number % size_);
  }

 private:
  Permutation epoch_order(std::int64_t epoch) const {
    return {random_key(options_.seed, format("{}.epoch.{}", name_, epoch)), size_};
  }

  const BatchSamplerOptions& options_;
  std::int64_t size_;
  std::string name_;
  std::int64_t epoch_ = 0;
  Permutation order_;
};

std::vector<double> weights(const BatchSamplerOptions& options) {
  std::vector<double> result;
  for (const SampledSource& source : options.sources) {
    result.push_back(source.weight);
  }
  return result;
}

}  // namespace

BatchSampler::BatchSampler(const BatchSamplerOptions& options)
    : options_(options), rotation_(weights(options), random_key(options.seed, "data.sources")) {
  for (const SampledSource& source : options_.sources) {
    TESSERA_REQUIRE(source.num_sequences >= 1 && options_.global_batch >= 1,
                    ErrorCode::kInvalidArgument,
                    "batches of {} from {} sequences: expected at least 1 of both",
                    options_.global_batch,
                    source.num_sequences);
  }
}

std::vector<std::int64_t> BatchSampler::batch(std::int64_t step) const {
  TESSERA_REQUIRE(
      step >= 1, ErrorCode::kInvalidArgument, "step {}: expected to count from 1", step);
  std::vector<SourceOrder> orders;
  std::vector<std::int64_t> first_sequence;
  std::int64_t num_sequences = 0;
  for (std::size_t i = 0; i < options_.sources.size(); ++i) {
    orders.emplace_back(options_, i);
    first_sequence.push_back(num_sequences);
    num_sequences += options_.sources[i].num_sequences;
  }
  std::vector<std::int64_t> sequences(static_cast<std::size_t>(options_.global_batch));
  std::int64_t number = (step - 1) * options_.global_batch;
  for (std::int64_t& sequence : sequences) {
    const Rotation::Draw draw = rotation_(number++);
    sequence = first_sequence[draw.choice] + orders[draw.choice](draw.earlier);
  }
  return sequences;
}

std::span<const std::int64_t> share_of(std::span<const std::int64_t> batch,
                                       const BatchShare& share,
                                       std::int64_t microbatch) {
  const std::int64_t first = (microbatch * share.num_data + share.place) * share.rows;
  TESSERA_REQUIRE(
      first >= 0 && first + share.rows <= std::ssize(batch),
      ErrorCode::kInvalidArgument,
      "microbatch {} of place {} of {}, {} rows each: expected to lie in a batch of {} sequences",
      microbatch,
      share.place,
      share.num_data,
      share.rows,
      batch.size());
  return batch.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(share.rows));
}

}  // namespace tessera
