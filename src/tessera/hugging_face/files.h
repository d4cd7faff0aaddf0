#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/safetensors.h"

namespace tessera {

inline constexpr std::string_view kSingleFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// Whether both are there, of which the index is not looked at.
bool has_stale_index(const std::filesystem::path& directory);

// The files of weights of a Hugging Face directory, mapped: model.safetensors, else, as
// transformers choose, those of model.safetensors.index.json. What is wrong with them is collected,
// so that all of it is told together with what else does not fit.
class HuggingFaceFiles {
 public:
  struct File {
    std::filesystem::path path;
    SafetensorsFile content;
  };

  // A tensor of any dtype.
  struct Tensor {
    std::string_view name;
    const SafetensorsTensor* data = nullptr;  // null where no op has its dtype
    std::span<const std::int64_t> shape;
    std::string type;  // "bf16 (3, 4)"
    std::size_t file = 0;
  };

  // Tensors go by their names without `prefix`, which some files leave out. Reads headers only.
  // Errors: kInvalidData where there is neither file; where the one file cannot be read, or the
  // index is none.
  HuggingFaceFiles(const std::filesystem::path& directory, std::string_view prefix);

  std::span<const File> files() const { return files_; }

  // Empty where there is none.
  const std::filesystem::path& index() const { return index_; }

  // By plain name.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // The names of tensors that the index has and no file that can be read, by plain name; `problems`
  // say why.
  const std::map<std::string, std::string>& absent() const { return absent_; }

  // What is wrong with the index and with files: entries that name none, files that are missing or
  // unreadable, tensors that are not where the index says, or in two files.
  const std::vector<std::string>& problems() const { return problems_; }

  // "FILE: tensor 'NAME' at offset 9", for messages.
  std::string place(const Tensor& tensor) const;

  std::string plain_name(std::string_view name) const;

 private:
  void open_indexed(const std::filesystem::path& directory);
  void add_tensors();
  // Of the file at `path`, that should have these.
  void add_absent(const std::filesystem::path& path, std::span<const std::string> tensors);

  std::string prefix_;
  std::filesystem::path index_;
  std::vector<File> files_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> absent_;
  std::vector<std::string> problems_;
};

}  // namespace tessera
