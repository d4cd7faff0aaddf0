#include "tessera/weights/export_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/require_model.h"
#include "tessera/dataset/run_data.h"
#include "tessera/models/family.h"
#include "tessera/plan/graphs.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/resolve/resolve.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/state/training_state.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/weights/companions.h"
#include "tessera/weights/export_files.h"
#include "tessera/weights/export_window.h"
#include "tessera/weights/exported_weight.h"
#include "tessera/weights/merge_adapters.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

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

// Adds what adapters change to our rows of a window.
void merge_adapters(AdapterMerge& adapters, ExportWindow& window) {
  const ExportedWeight& weight = *window.weight;
  const std::int64_t size = weight.row_bytes();
  for (std::size_t part = 0; part < window.parts.size(); ++part) {
    const ExportWindow::Rows& rows = window.parts[part];
    for (std::int64_t row = rows.first; row < rows.end; ++row) {
      const std::int64_t place = rows.place + (row - rows.first) * size;
      adapters.add(weight.form.parts[part].parameter,
                   row,
                   weight.dtype,
                   std::span(window.ours)
                       .subspan(static_cast<std::size_t>(place), static_cast<std::size_t>(size)));
    }
  }
}

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
        adapters_(checkpoint, model),
        weights_(exported_weights(std::move(weights), checkpoint, adapters_, options.dtype)),
        files_(options.output, weights_, options.max_file_bytes) {
    for (std::size_t i = 0; i < files_.weights().size(); ++i) {
      for (const ExportedWeight* weight : files_.weights()[i]) {
        std::ranges::move(windows_of(*weight, i), std::back_inserter(windows_));
      }
    }
  }

  void write() {
    checkpoint_.load(reads());
    TESSERA_CHECK(next_ == windows_.size(), "{} of {} windows", next_, windows_.size());
    // What is damaged has shown before the first file appears.
    files_.commit();
  }

 private:
  std::vector<TensorRead> reads() {
    std::vector<TensorRead> reads;
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const ExportedWeight& weight = *windows_[i].weight;
      for (std::size_t part = 0; part < weight.sources.size(); ++part) {
        const ExportWindow::Rows& rows = windows_[i].parts[part];
        if (rows.first < rows.end) {
          reads.push_back({.tensor = weight.sources[part],
                           .first = rows.first * weight.form.columns(),
                           .num_bytes = (rows.end - rows.first) * weight.row_bytes(),
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
    ExportWindow& window = windows_[index];
    const bool passes = index == next_ && window.ours.empty() && place == window.num_passed &&
                        window.weight->is_as_ours();
    if (passes) {
      files_.append(window.file, bytes);
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

  void finish(ExportWindow& window) {
    if (!window.ours.empty()) {
      merge_adapters(adapters_, window);
      // What passed on was as it is written.
      files_.append(window.file,
                    rows_.make(window).subspan(static_cast<std::size_t>(window.num_passed)));
      spare_ = std::exchange(window.ours, {});
    }
    if (next_ + 1 == windows_.size() || windows_[next_ + 1].file != window.file) {
      files_.finish(window.file);
    }
  }

  const CheckpointReader& checkpoint_;
  AdapterMerge adapters_;
  std::vector<ExportedWeight> weights_;
  ExportFiles files_;
  std::vector<ExportWindow> windows_;
  std::size_t next_ = 0;          // the window that is written next
  std::vector<std::byte> spare_;  // the memory of a window that is written
  ExportRows rows_;
};

}  // namespace

void export_weights(const ExportOptions& options) {
  const fs::path path = require_checkpoint(options.checkpoint);
  const CheckpointReader checkpoint(path, {.verify = Verify::kWhereRead});
  require_known_model(path, checkpoint.meta());
  const RunConfig config = resolve_stored(checkpoint.meta().config);
  const ModelFamily& family = model_family(config.model.name);
  const ModelDescription model = resolve_model(config);
  require_model(checkpoint,
                model.json,
                model_tensors(parameter_inits(training_graph(
                                  model, 1, config.data.sequence_length, config.train.dtype)),
                              config.optimizer.moments),
                ModelScope::kWeights);
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
