#include "tessera/weights/export_weights.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/half.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/dataset/run_data.h"
#include "tessera/hugging_face/convert_elements.h"
#include "tessera/models/family.h"
#include "tessera/plan/graphs.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/state/training_state.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/weights/companions.h"
#include "tessera/weights/merge_adapters.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Of the rows that are made at once. Few, since fresh memory can cost as much as the disk.
constexpr std::int64_t kWindowBytes = std::int64_t{4} << 20U;

// Whether it was not there.
bool make_output(const fs::path& output) {
  std::error_code error;
  const bool is_new = fs::create_directories(output, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create directory {}: {}",
                  output.string(),
                  error.message());
  TESSERA_REQUIRE(fs::is_empty(output),
                  ErrorCode::kInvalidConfig,
                  "{} is not empty: choose another directory for the weights",
                  output.string());
  return is_new;
}

// Rows of a weight that are made at once (of a transposed weight all), and what they are made of.
struct Window {
  const HuggingFaceWeight* weight = nullptr;
  std::size_t file = 0;
  std::int64_t row = 0;
  std::int64_t num_rows = 0;

  // Of each part, our rows [first, end): side by side in `ours`, from `place` on.
  struct Rows {
    std::int64_t first = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = 0;
    std::int64_t place = 0;
  };

  std::vector<Rows> parts = {};
  std::vector<std::byte> ours = {};
  std::int64_t num_passed = 0;  // bytes that went on without standing in `ours`
  std::int64_t num_missing = 0;
};

// The checkpoint gives its bytes in one pass, checked on the way; windows that have all of theirs
// are made and written in turn. So there stand in memory, beside the buffers of reading and
// writing, the window that is being filled and those that a file of the checkpoint has begun
// because its last chunk went on behind what the others have.
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
        adapters_(checkpoint, model) {
    // As the files of a checkpoint have them, so that a pass through these needs little memory.
    std::ranges::stable_sort(weights_, {}, [&](const HuggingFaceWeight& weight) {
      return std::pair(-element_bytes(weight), &source(weight.parts[0].parameter));
    });
  }

  void write() {
    files_ = split();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const HuggingFaceWeight* weight : files_[i]) {
        add_windows(*weight, i);
      }
    }
    checkpoint_.load(reads());
    TESSERA_CHECK(next_ == windows_.size(), "{} of {} windows", next_, windows_.size());
    // What is damaged has shown before the first file appears.
    for (const auto& writer : writers_) {
      writer->commit();
    }
    if (files_.size() > 1) {
      write_index();
    }
  }

 private:
  // An f32 parameter may have a master that is nearer to what was trained.
  const ManifestTensor& source(const std::string& name) const {
    if (const ManifestTensor* buffer = checkpoint_.find(name, TensorRole::kBuffer)) {
      return *buffer;
    }
    const ManifestTensor* parameter = checkpoint_.find(name, TensorRole::kParameter);
    const ManifestTensor* master = checkpoint_.find(name, TensorRole::kMaster);
    return parameter->dtype == DType::kF32 && master != nullptr ? *master : *parameter;
  }

  DType dtype(const HuggingFaceWeight& weight) const {
    return source(weight.parts[0].parameter).dtype;
  }

  // What it is written as: a buffer as it is.
  DType written_dtype(const HuggingFaceWeight& weight) const {
    const ManifestTensor& from = source(weight.parts[0].parameter);
    return from.role == TensorRole::kBuffer ? from.dtype : options_.dtype.value_or(from.dtype);
  }

  std::int64_t element_bytes(const HuggingFaceWeight& weight) const {
    return static_cast<std::int64_t>(size_bytes(dtype(weight)));
  }

  std::int64_t row_bytes(const HuggingFaceWeight& weight) const {
    return weight.columns() * element_bytes(weight);
  }

  // As it is written.
  std::int64_t num_bytes(const HuggingFaceWeight& weight) const {
    return weight.rows() * weight.columns() *
           static_cast<std::int64_t>(size_bytes(written_dtype(weight)));
  }

  // Whether the rows of the weight are those of one parameter in the same order.
  static bool has_our_rows(const HuggingFaceWeight& weight) {
    return weight.parts.size() == 1 && weight.parts[0].rotary_rows == 0;
  }

  // Whether the bytes of the weight are those of one parameter.
  bool is_as_ours(const HuggingFaceWeight& weight) const {
    return has_our_rows(weight) && !weight.transposed && written_dtype(weight) == dtype(weight) &&
           !adapters_.has(weight.parts[0].parameter);
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

  std::string file_name(std::size_t file) const {
    return files_.size() == 1 ? "model.safetensors"
                              : format("model-{:05}-of-{:05}.safetensors", file + 1, files_.size());
  }

  void write_index() const {
    nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                    {"weight_map", nlohmann::ordered_json::object()}};
    std::int64_t total = 0;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const HuggingFaceWeight* weight : files_[i]) {
        index["weight_map"][weight->name] = file_name(i);
        total += num_bytes(*weight);
      }
    }
    index["metadata"]["total_size"] = total;
    write_file_atomic(options_.output / "model.safetensors.index.json", index.dump(2) + "\n");
  }

  void add_windows(const HuggingFaceWeight& weight, std::size_t file) {
    const std::int64_t rows = weight.transposed
                                  ? weight.rows()
                                  : std::max<std::int64_t>(kWindowBytes / row_bytes(weight), 1);
    for (std::int64_t row = 0; row < weight.rows(); row += rows) {
      Window window{.weight = &weight,
                    .file = file,
                    .row = row,
                    .num_rows = std::min(rows, weight.rows() - row)};
      window.parts.resize(weight.parts.size());
      if (has_our_rows(weight)) {
        window.parts[0] = {.first = row, .end = row + window.num_rows};
      } else {
        for (std::int64_t i = row; i < row + window.num_rows; ++i) {
          const PartRow ours = our_row(weight, i);
          Window::Rows& part = window.parts[ours.part];
          part.first = std::min(part.first, ours.row);
          part.end = std::max(part.end, ours.row + 1);
        }
      }
      for (Window::Rows& part : window.parts) {
        part.place = window.num_missing;
        window.num_missing += std::max<std::int64_t>(part.end - part.first, 0) * row_bytes(weight);
      }
      windows_.push_back(std::move(window));
    }
  }

  std::vector<TensorRead> reads() {
    std::vector<TensorRead> reads;
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const HuggingFaceWeight& weight = *windows_[i].weight;
      for (std::size_t part = 0; part < weight.parts.size(); ++part) {
        const Window::Rows& rows = windows_[i].parts[part];
        if (rows.first < rows.end) {
          reads.push_back({.tensor = &source(weight.parts[part].parameter),
                           .first = rows.first * weight.columns(),
                           .num_bytes = (rows.end - rows.first) * row_bytes(weight),
                           .take = [this, i, place = rows.place](std::int64_t at,
                                                                 std::span<const std::byte> bytes) {
                             take(i, place + at, bytes);
                           }});
        }
      }
    }
    return reads;
  }

  // Bytes of what a window is made of, from `place` on.
  void take(std::size_t index, std::int64_t place, std::span<const std::byte> bytes) {
    Window& window = windows_[index];
    const bool passes = index == next_ && window.ours.empty() && place == window.num_passed &&
                        is_as_ours(*window.weight);
    if (passes) {
      writer(window).append(bytes);
      window.num_passed += std::ssize(bytes);
    } else {
      if (window.ours.empty()) {
        window.ours = std::move(spare_);
        window.ours.resize(static_cast<std::size_t>(window.num_missing + window.num_passed));
      }
      std::ranges::copy(bytes, window.ours.begin() + place);
    }
    window.num_missing -= std::ssize(bytes);
    for (; next_ < windows_.size() && windows_[next_].num_missing == 0; ++next_) {
      finish(windows_[next_]);
    }
  }

  void finish(Window& window) {
    if (!window.ours.empty()) {
      merge_adapters(window);
      // What passed on was as it is written.
      writer(window).append(as_written(*window.weight, produce(window))
                                .subspan(static_cast<std::size_t>(window.num_passed)));
      spare_ = std::exchange(window.ours, {});
    }
    if (next_ + 1 == windows_.size() || windows_[next_ + 1].file != window.file) {
      writer(window).finish();
    }
  }

  void merge_adapters(Window& window) {
    const HuggingFaceWeight& weight = *window.weight;
    const std::int64_t size = row_bytes(weight);
    for (std::size_t part = 0; part < weight.parts.size(); ++part) {
      const Window::Rows& rows = window.parts[part];
      for (std::int64_t row = rows.first; row < rows.end; ++row) {
        const std::int64_t place = rows.place + (row - rows.first) * size;
        adapters_.add(
            weight.parts[part].parameter,
            row,
            dtype(weight),
            std::span(window.ours)
                .subspan(static_cast<std::size_t>(place), static_cast<std::size_t>(size)));
      }
    }
  }

  SafetensorsWriter& writer(const Window& window) {
    while (writers_.size() <= window.file) {
      std::vector<SafetensorsTensor> tensors;
      for (const HuggingFaceWeight* weight : files_[writers_.size()]) {
        tensors.push_back(
            {.name = weight->name, .dtype = written_dtype(*weight), .shape = weight->shape});
      }
      writers_.push_back(std::make_unique<SafetensorsWriter>(
          options_.output / file_name(writers_.size()),
          tensors,
          std::map<std::string, std::string>{{"format", "pt"}}));
    }
    return *writers_[window.file];
  }

  // The rows of the window as the file has them.
  std::span<const std::byte> produce(const Window& window) {
    const HuggingFaceWeight& weight = *window.weight;
    std::span<const std::byte> rows = window.ours;
    if (!has_our_rows(weight)) {
      const std::int64_t size = row_bytes(weight);
      rows_.resize(static_cast<std::size_t>(window.num_rows * size));
      for (std::int64_t i = 0; i < window.num_rows; ++i) {
        const PartRow ours = our_row(weight, window.row + i);
        const Window::Rows& part = window.parts[ours.part];
        std::copy_n(window.ours.begin() + part.place + (ours.row - part.first) * size,
                    size,
                    rows_.begin() + i * size);
      }
      rows = rows_;
    }
    if (!weight.transposed) {
      return rows;
    }
    transposed_.resize(rows.size());
    transpose(
        rows, weight.columns(), weight.rows(), static_cast<std::size_t>(element_bytes(weight)));
    return transposed_;
  }

  // Elements of the weight in the type that the file has.
  std::span<const std::byte> as_written(const HuggingFaceWeight& weight,
                                        std::span<const std::byte> elements) {
    const DType from = dtype(weight);
    const DType to = written_dtype(weight);
    if (from == to) {
      return elements;
    }
    const std::size_t count = elements.size() / size_bytes(from);
    converted_.resize(count * size_bytes(to));
    convert_elements({.dtype = from, .data = elements.data()},
                     count,
                     {.dtype = to,
                      .data = converted_.data(),
                      .stride = static_cast<std::int64_t>(size_bytes(to))});
    if (to == DType::kF16) {
      require_held(weight, elements);
    }
    return converted_;
  }

  // That no number became an infinity.
  void require_held(const HuggingFaceWeight& weight, std::span<const std::byte> elements) const {
    constexpr float kLargest = 65504;
    const std::size_t size = size_bytes(dtype(weight));
    for (std::size_t i = 0; i < elements.size() / size; ++i) {
      Float16 half;
      std::memcpy(&half, converted_.data() + i * sizeof half, sizeof half);
      if (!std::isinf(to_float(half))) {
        continue;
      }
      float value = 0;
      convert_elements({.dtype = dtype(weight), .data = elements.data() + i * size},
                       1,
                       {.dtype = DType::kF32,
                        .data = reinterpret_cast<std::byte*>(&value),
                        .stride = sizeof value});
      TESSERA_REQUIRE(std::isinf(value),
                      ErrorCode::kInvalidConfig,
                      "tensor '{}': found {}, and f16 holds up to {}: choose bf16 or f32",
                      weight.name,
                      value,
                      kLargest);
    }
  }

  // (rows, columns) to transposed_ of (columns, rows), in tiles that fit the caches.
  void transpose(std::span<const std::byte> from,
                 std::int64_t columns,
                 std::int64_t rows,
                 std::size_t size) {
    constexpr std::int64_t kTile = 64;
    for (std::int64_t tile = 0; tile < rows; tile += kTile) {
      for (std::int64_t column = 0; column < columns; ++column) {
        for (std::int64_t row = tile; row < std::min(tile + kTile, rows); ++row) {
          std::memcpy(transposed_.data() + static_cast<std::size_t>(column * rows + row) * size,
                      from.data() + static_cast<std::size_t>(row * columns + column) * size,
                      size);
        }
      }
    }
  }

  const CheckpointReader& checkpoint_;
  const ExportOptions& options_;
  std::vector<HuggingFaceWeight> weights_;
  AdapterMerge adapters_;
  std::vector<std::vector<const HuggingFaceWeight*>> files_;
  std::vector<Window> windows_;
  std::size_t next_ = 0;  // the window that is written next
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
  std::vector<std::byte> spare_;  // the memory of a window that is written
  std::vector<std::byte> rows_;
  std::vector<std::byte> transposed_;
  std::vector<std::byte> converted_;
};

}  // namespace

void export_weights(const ExportOptions& options) {
  const fs::path path = require_checkpoint(options.checkpoint);
  const CheckpointReader checkpoint(path, {.verify = Verify::kWhereRead});
  require_known_model(path, checkpoint.meta());
  const RunConfig config = resolve_stored(checkpoint.meta().config);
  const ModelFamily& family = model_family(config.model.name);
  const ModelDescription model = resolve_model(config);
  checkpoint.require_model(
      model.json,
      model_tensors(parameter_inits(
                        training_graph(model, 1, config.data.sequence_length, config.train.dtype)),
                    config.optimizer.moments),
      CheckpointReader::Scope::kWeights);
  HuggingFaceFacts facts{.dtype = options.dtype.value_or(config.train.dtype),
                         .sequence_length = config.data.sequence_length};
  const fs::path tokenizer = checkpoint_tokenizer(path, config.tokenizer.path);
  std::optional<Tokenizer> loaded;
  if (std::error_code error; fs::exists(tokenizer, error)) {
    require_tokenizer(tokenizer, path, checkpoint.meta());
    loaded = with_configured_marks(load_tokenizer(tokenizer, model.vocab), config);
    if (const auto bos = loaded->bos()) {
      facts.bos = {*bos};
    }
    facts.eos = loaded->marks().eos;
  } else {
    log_warning(
        config.tokenizer.path.empty()
            ? "the weights go without a tokenizer: their run had none"
            : format("the weights go without a tokenizer: {} is not there", tokenizer.string()));
  }
  const ExportCompanions companions(path, config, loaded, facts);
  const bool is_new = make_output(options.output);
  try {
    WeightExport(checkpoint, model, family.hugging_face_weights(config.model), options).write();
  } catch (...) {
    if (std::error_code error; is_new && fs::is_empty(options.output, error)) {
      fs::remove(options.output, error);
    }
    throw;
  }
  if (loaded) {
    export_tokenizer(tokenizer, options.output);
  }
  companions.write(options.output);
  // Last, since nothing loads a directory without it.
  write_file_atomic(options.output / "config.json",
                    family.hugging_face_config(config.model, facts));
}

}  // namespace tessera
