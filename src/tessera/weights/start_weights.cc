#include "tessera/weights/start_weights.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/hugging_face/convert_elements.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/models/family.h"
#include "tessera/resolve/weights_section.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The parameters of a checkpoint, from f32 masters where it has them, and its buffers.
class CheckpointWeights final : public WeightSource {
 public:
  CheckpointWeights(const fs::path& path, const ModelSection& section, const WeightsReader& reader)
      : reader_(path,
                {.verify = Verify::kOnLoad, .rank = reader.rank, .num_ranks = reader.num_ranks}),
        path_(path),
        vocab_(section.vocab.value_or(0)) {}

  void load(std::span<const WeightRead> reads) const override {
    std::vector<TensorRead> direct;
    std::vector<const WeightRead*> converted;
    for (const WeightRead& read : reads) {
      const ManifestTensor& tensor = at(read);
      if (tensor.dtype != read.dtype) {
        converted.push_back(&read);
        continue;
      }
      direct.push_back({.tensor = &tensor, .first = read.first, .out = known(read, tensor)});
    }
    reader_.load(direct);
    for (const WeightRead* const read : converted) {
      this->read(*read);
    }
  }

  void read(const WeightRead& read) const override {
    const ManifestTensor& tensor = at(read);
    const std::span<std::byte> out = known(read, tensor);
    const auto wide = static_cast<std::int64_t>(size_bytes(read.dtype));
    const auto narrow = static_cast<std::int64_t>(size_bytes(tensor.dtype));
    constexpr std::int64_t kBlock = std::int64_t{1} << 18U;
    std::vector<std::byte> block;
    const std::int64_t count = std::ssize(out) / wide;
    for (std::int64_t done = 0; done < count; done += kBlock) {
      const std::int64_t now = std::min(kBlock, count - done);
      block.resize(static_cast<std::size_t>(now * narrow));
      reader_.read(tensor.name, tensor.role, read.first + done, block);
      convert_elements({.dtype = tensor.dtype, .data = block.data()},
                       static_cast<std::size_t>(now),
                       {.dtype = read.dtype, .data = out.data() + done * wide, .stride = wide});
    }
  }

 private:
  const ManifestTensor& at(const WeightRead& read) const {
    const ManifestTensor* found =
        read.dtype == DType::kF32 ? reader_.find(read.parameter, TensorRole::kMaster) : nullptr;
    for (const TensorRole role : {TensorRole::kParameter, TensorRole::kBuffer}) {
      found = found == nullptr ? reader_.find(read.parameter, role) : found;
    }
    TESSERA_REQUIRE(found != nullptr,
                    ErrorCode::kInvalidData,
                    "{} has no parameter \"{}\"",
                    path_.string(),
                    read.parameter);
    return *found;
  }

  // The bytes of what the checkpoint has; the others become zero.
  std::span<std::byte> known(const WeightRead& read, const ManifestTensor& tensor) const {
    std::int64_t end = 1;
    for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      end *= dim == 0 && is_vocab_table(read.parameter) ? vocab_ : tensor.shape[dim];
    }
    const auto size = static_cast<std::int64_t>(size_bytes(read.dtype));
    const std::int64_t bytes =
        std::clamp<std::int64_t>((end - read.first) * size, 0, std::ssize(read.out));
    std::ranges::fill(read.out.subspan(static_cast<std::size_t>(bytes)), std::byte{0});
    return read.out.first(static_cast<std::size_t>(bytes));
  }

  CheckpointReader reader_;
  fs::path path_;
  std::int64_t vocab_;  // the rows beyond are padding
};

// Weights with rows for more ids.
class GrownWeights final : public WeightSource {
 public:
  GrownWeights(std::unique_ptr<const WeightSource> weights,
               std::int64_t known,
               std::int64_t vocab,
               std::int64_t columns)
      : weights_(std::move(weights)), known_(known), vocab_(vocab), columns_(columns) {}

  void load(std::span<const WeightRead> reads) const override {
    weights_->load(reads);
    for (const WeightRead& read : reads) {
      fill(read);
    }
  }

  void read(const WeightRead& read) const override {
    weights_->read(read);
    fill(read);
  }

 private:
  void fill(const WeightRead& read) const {
    const auto size = static_cast<std::int64_t>(size_bytes(read.dtype));
    const std::int64_t end = std::min(read.first + std::ssize(read.out) / size, vocab_ * columns_);
    const std::int64_t begin = std::max(read.first, known_ * columns_);
    if (!is_vocab_table(read.parameter) || begin >= end) {
      return;
    }
    const std::vector<float>& mean = mean_row(read.parameter);
    for (std::int64_t at = begin; at < end; ++at) {
      convert_elements({.data = reinterpret_cast<const std::byte*>(
                            &mean[static_cast<std::size_t>(at % columns_)])},
                       1,
                       {.dtype = read.dtype,
                        .data = read.out.data() + (at - read.first) * size,
                        .stride = size});
    }
  }

  // In f64 and in order of the rows: the same on every rank.
  const std::vector<float>& mean_row(const std::string& parameter) const {
    const auto [at, is_new] = means_.try_emplace(parameter);
    if (!is_new) {
      return at->second;
    }
    std::vector<double> sums(static_cast<std::size_t>(columns_));
    const std::int64_t rows = std::max<std::int64_t>(1, (std::int64_t{1} << 18U) / columns_);
    std::vector<float> block;
    for (std::int64_t row = 0; row < known_; row += rows) {
      block.resize(static_cast<std::size_t>(std::min(rows, known_ - row) * columns_));
      weights_->read({.parameter = parameter,
                      .dtype = DType::kF32,
                      .first = row * columns_,
                      .out = std::as_writable_bytes(std::span(block))});
      for (std::size_t i = 0; i < block.size(); ++i) {
        sums[i % sums.size()] += static_cast<double>(block[i]);
      }
    }
    for (const double sum : sums) {
      at->second.push_back(static_cast<float>(sum / static_cast<double>(known_)));
    }
    return at->second;
  }

  std::unique_ptr<const WeightSource> weights_;
  std::int64_t known_;
  std::int64_t vocab_;
  std::int64_t columns_;
  mutable std::map<std::string, std::vector<float>> means_;
};

}  // namespace

std::unique_ptr<const WeightSource> open_start_weights(const RunConfig& config,
                                                       const WeightsReader& reader) {
  const fs::path path = config.model.weights;
  const ModelSection section = weights_section(path);
  require_same_model(config, section);
  std::unique_ptr<const WeightSource> weights;
  if (const std::optional<fs::path> checkpoint = weights_checkpoint(path)) {
    weights = std::make_unique<CheckpointWeights>(*checkpoint, section, reader);
  } else {
    weights = std::make_unique<HuggingFaceWeights>(path, section);
  }
  const std::int64_t known = section.vocab.value_or(0);
  const std::int64_t vocab = config.model.vocab.value_or(known);
  if (vocab > known) {
    weights = std::make_unique<GrownWeights>(
        std::move(weights), known, vocab, config.model.dim.value_or(0));
  }
  return weights;
}

void log_start_weights(const RunConfig& config) {
  const fs::path path = config.model.weights;
  const std::optional<fs::path> checkpoint = weights_checkpoint(path);
  log_info(format("starting from the weights of {}", (checkpoint ? *checkpoint : path).string()));
  if (!checkpoint) {
    warn_of_oddities(path, read_hugging_face_model(path));
  }
  const std::int64_t known = weights_section(path).vocab.value_or(0);
  const std::int64_t added = config.model.vocab.value_or(known) - known;
  if (added > 0) {
    log_info(
        format("the weights have {} ids, the model {}: the rows of the {} new ones start as the "
               "mean of the others",
               format_grouped(known),
               format_grouped(known + added),
               format_grouped(added)));
  }
  if (added > 0 && config.lora.rank > 0) {
    log_warning(
        "adapters train neither embedding nor head: the rows of the new ids stay as they "
        "start, all alike");
  }
}

}  // namespace tessera
