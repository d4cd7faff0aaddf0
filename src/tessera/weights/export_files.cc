#include "tessera/weights/export_files.h"

#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"

namespace tessera {

ExportFiles::ExportFiles(std::filesystem::path directory,
                         std::span<const ExportedWeight> weights,
                         std::int64_t max_file_bytes)
    : directory_(std::move(directory)) {
  std::int64_t filled = 0;
  for (const ExportedWeight& weight : weights) {
    if (weights_.empty() || filled > max_file_bytes - weight.num_bytes()) {
      weights_.emplace_back();
      filled = 0;
    }
    weights_.back().push_back(&weight);
    filled += weight.num_bytes();
  }
}

void ExportFiles::append(std::size_t file, std::span<const std::byte> bytes) {
  writer(file).append(bytes);
}

void ExportFiles::finish(std::size_t file) {
  writer(file).finish();
}

void ExportFiles::commit() {
  for (const auto& writer : writers_) {
    writer->commit();
  }
  if (weights_.size() > 1) {
    write_index();
  }
}

std::string ExportFiles::name(std::size_t file) const {
  return weights_.size() == 1
             ? "model.safetensors"
             : format("model-{:05}-of-{:05}.safetensors", file + 1, weights_.size());
}

SafetensorsWriter& ExportFiles::writer(std::size_t file) {
  while (writers_.size() <= file) {
    std::vector<SafetensorsTensor> tensors;
    for (const ExportedWeight* weight : weights_[writers_.size()]) {
      tensors.push_back(
          {.name = weight->form.name, .dtype = weight->written, .shape = weight->form.shape});
    }
    writers_.push_back(
        std::make_unique<SafetensorsWriter>(directory_ / name(writers_.size()),
                                            tensors,
                                            std::map<std::string, std::string>{{"format", "pt"}}));
  }
  return *writers_[file];
}

void ExportFiles::write_index() const {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  std::int64_t total = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    for (const ExportedWeight* weight : weights_[i]) {
      index["weight_map"][weight->form.name] = name(i);
      total += weight->num_bytes();
    }
  }
  index["metadata"]["total_size"] = total;
  write_file_atomic(directory_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace tessera
