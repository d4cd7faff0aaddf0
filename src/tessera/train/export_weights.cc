#include "tessera/train/export_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/config/config.h"
#include "tessera/models/family.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/train/merge_adapters.h"
#include "tessera/train/resolve.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_data.h"
#include "tessera/train/step_program.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Of the rows that are read at once.
constexpr std::int64_t kBufferBytes = std::int64_t{64} << 20U;

void make_output(const fs::path& output) {
  std::error_code error;
  fs::create_directories(output, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create directory {}: {}",
                  output.string(),
                  error.message());
  TESSERA_REQUIRE(fs::is_empty(output),
                  ErrorCode::kInvalidConfig,
                  "{} is not empty: choose another directory for the weights",
                  output.string());
}

class WeightExport {
 public:
  // `model` is that of the checkpoint.
  WeightExport(const CheckpointReader& checkpoint,
               const ModelDescription& model,
               std::vector<HuggingFaceWeight> weights,
               const ExportOptions& options)
      : checkpoint_(checkpoint),
        options_(options),
        weights_(std::move(weights)),
        adapters_(checkpoint, model) {}

  void write() {
    const std::vector<std::vector<const HuggingFaceWeight*>> files = split();
    nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                    {"weight_map", nlohmann::ordered_json::object()}};
    std::int64_t total = 0;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::string name =
          files.size() == 1 ? "model.safetensors"
                            : format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
      write_file(options_.output / name, files[i]);
      for (const HuggingFaceWeight* weight : files[i]) {
        index["weight_map"][weight->name] = name;
        total += num_bytes(*weight);
      }
    }
    if (files.size() > 1) {
      index["metadata"]["total_size"] = total;
      write_file_atomic(options_.output / "model.safetensors.index.json", index.dump(2) + "\n");
    }
  }

 private:
  // An f32 parameter may have a master that is nearer to what was trained.
  const ManifestTensor& source(const std::string& name) const {
    const ManifestTensor* parameter = checkpoint_.find(name, TensorRole::kParameter);
    const ManifestTensor* master = checkpoint_.find(name, TensorRole::kMaster);
    return parameter->dtype == DType::kF32 && master != nullptr ? *master : *parameter;
  }

  DType dtype(const HuggingFaceWeight& weight) const {
    return source(weight.parts[0].parameter).dtype;
  }

  std::int64_t element_bytes(const HuggingFaceWeight& weight) const {
    return static_cast<std::int64_t>(size_bytes(dtype(weight)));
  }

  std::int64_t num_bytes(const HuggingFaceWeight& weight) const {
    return weight.rows() * weight.columns() * element_bytes(weight);
  }

  std::vector<std::vector<const HuggingFaceWeight*>> split() const {
    std::vector<std::vector<const HuggingFaceWeight*>> files;
    std::int64_t filled = 0;
    for (const HuggingFaceWeight& weight : weights_) {
      if (files.empty() || filled > options_.max_file_bytes - num_bytes(weight)) {
        files.emplace_back();
        filled = 0;
      }
      files.back().push_back(&weight);
      filled += num_bytes(weight);
    }
    return files;
  }

  void write_file(const fs::path& path, std::span<const HuggingFaceWeight* const> weights) {
    std::vector<SafetensorsTensor> tensors;
    for (const HuggingFaceWeight* weight : weights) {
      tensors.push_back({.name = weight->name, .dtype = dtype(*weight), .shape = weight->shape});
    }
    SafetensorsWriter writer(path, tensors, {{"format", "pt"}});
    for (const HuggingFaceWeight* weight : weights) {
      std::vector<std::string> parameters;
      for (const HuggingFaceWeight::Part& part : weight->parts) {
        parameters.push_back(part.parameter);
      }
      adapters_.load(parameters);
      if (weight->transposed) {
        copy_transposed(*weight, writer);
      } else {
        copy(*weight, writer);
      }
    }
    writer.commit();
  }

  // Elements [column, column + n) of a row of the weight, to `out`.
  TensorRead read(const HuggingFaceWeight& weight,
                  std::int64_t row,
                  std::int64_t column,
                  std::span<std::byte> out) const {
    const PartRow ours = our_row(weight, row);
    return {.tensor = &source(weight.parts[ours.part].parameter),
            .first = ours.row * weight.columns() + column,
            .out = out};
  }

  // Loads stretches of rows from `row` on, one a read, each from `column` on, and merges adapters.
  void load(const HuggingFaceWeight& weight,
            std::int64_t row,
            std::int64_t column,
            std::span<const TensorRead> reads) {
    checkpoint_.load(reads);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      const PartRow ours = our_row(weight, row + static_cast<std::int64_t>(i));
      adapters_.add(
          weight.parts[ours.part].parameter,
          {.row = ours.row, .first = column, .dtype = dtype(weight), .elements = reads[i].out});
    }
  }

  // Some rows at a time.
  void copy(const HuggingFaceWeight& weight, SafetensorsWriter& writer) {
    const std::int64_t size = weight.columns() * element_bytes(weight);
    const std::int64_t rows = std::max<std::int64_t>(kBufferBytes / size, 1);
    for (std::int64_t row = 0; row < weight.rows(); row += rows) {
      const std::int64_t count = std::min(rows, weight.rows() - row);
      buffer_.resize(static_cast<std::size_t>(count * size));
      std::vector<TensorRead> reads;
      for (std::int64_t i = 0; i < count; ++i) {
        reads.push_back(read(weight,
                             row + i,
                             0,
                             std::span(buffer_).subspan(static_cast<std::size_t>(i * size),
                                                        static_cast<std::size_t>(size))));
      }
      load(weight, row, 0, reads);
      writer.append(buffer_);
    }
  }

  // Some columns at a time, which are rows of the file.
  void copy_transposed(const HuggingFaceWeight& weight, SafetensorsWriter& writer) {
    const std::int64_t size = element_bytes(weight);
    const std::int64_t rows = weight.rows();
    const std::int64_t columns = std::max<std::int64_t>(kBufferBytes / (rows * size), 1);
    for (std::int64_t column = 0; column < weight.columns(); column += columns) {
      const std::int64_t count = std::min(columns, weight.columns() - column);
      buffer_.resize(static_cast<std::size_t>(count * rows * size));
      std::vector<TensorRead> reads;
      for (std::int64_t row = 0; row < rows; ++row) {
        reads.push_back(
            read(weight,
                 row,
                 column,
                 std::span(buffer_).subspan(static_cast<std::size_t>(row * count * size),
                                            static_cast<std::size_t>(count * size))));
      }
      load(weight, 0, column, reads);
      transposed_.resize(buffer_.size());
      transpose(count, rows, static_cast<std::size_t>(size));
      writer.append(transposed_);
    }
  }

  // buffer_ of (rows, columns) to transposed_ of (columns, rows), in tiles that fit the caches.
  void transpose(std::int64_t columns, std::int64_t rows, std::size_t size) {
    constexpr std::int64_t kTile = 64;
    for (std::int64_t tile = 0; tile < rows; tile += kTile) {
      for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t row = tile; row < std::min(tile + kTile, rows); ++row) {
          std::memcpy(transposed_.data() + static_cast<std::size_t>(column * rows + row) * size,
                      buffer_.data() + static_cast<std::size_t>(row * columns + column) * size,
                      size);
        }
      }
    }
  }

  const CheckpointReader& checkpoint_;
  const ExportOptions& options_;
  std::vector<HuggingFaceWeight> weights_;
  AdapterMerge adapters_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> transposed_;
};

}  // namespace

void export_weights(const ExportOptions& options) {
  const fs::path path = require_checkpoint(options.checkpoint);
  const CheckpointReader checkpoint(path);
  const RunConfig config =
      resolve(parse_run_config(checkpoint.meta().config, "the checkpoint's config"));
  const ModelFamily& family = model_family(config.model.name);
  const ModelDescription model = resolve_model(config);
  checkpoint.require_model(model.json,
                           model_tensors(parameter_inits(training_graph(
                               model, 1, config.data.sequence_length, config.train.dtype))),
                           CheckpointReader::Scope::kWeights);
  HuggingFaceFacts facts{.dtype = config.train.dtype,
                         .sequence_length = config.data.sequence_length};
  const fs::path tokenizer = checkpoint_tokenizer(path, config.tokenizer.path);
  std::error_code error;
  const bool has_tokenizer = fs::exists(tokenizer, error);
  if (has_tokenizer) {
    require_tokenizer(tokenizer, path, checkpoint.meta());
    const Tokenizer loaded = load_tokenizer(tokenizer, model.vocab);
    facts.bos = loaded.bos();
    facts.eos = loaded.eos();
  } else {
    log_warning(format("the weights go without a tokenizer: {} is not there", tokenizer.string()));
  }
  make_output(options.output);
  WeightExport(checkpoint, model, family.hugging_face_weights(config.model), options).write();
  if (has_tokenizer) {
    export_tokenizer(tokenizer, options.output);
  }
  // Last, since nothing loads a directory without it.
  write_file_atomic(options.output / "config.json",
                    family.hugging_face_config(config.model, facts));
}

}  // namespace tessera
