#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/weights/exported_weight.h"

namespace tessera {

// The files of weights of an export: model.safetensors, or several with
// model.safetensors.index.json. None appears before commit().
class ExportFiles {
 public:
  // The weights in the order in which their bytes will come, which it borrows for its life: as many
  // in each file as `max_file_bytes` hold, at least one.
  ExportFiles(std::filesystem::path directory,
              std::span<const ExportedWeight> weights,
              std::int64_t max_file_bytes);

  // The weights of each file, in order.
  const std::vector<std::vector<const ExportedWeight*>>& weights() const { return weights_; }

  // The next bytes of a file, and the end of it. Files come in order.
  // Errors: as SafetensorsWriter.
  void append(std::size_t file, std::span<const std::byte> bytes);
  void finish(std::size_t file);

  // All files appear. Errors: kDeviceError.
  void commit();

 private:
  std::string name(std::size_t file) const;
  SafetensorsWriter& writer(std::size_t file);
  void write_index() const;

  std::filesystem::path directory_;
  std::vector<std::vector<const ExportedWeight*>> weights_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;
};

}  // namespace tessera
