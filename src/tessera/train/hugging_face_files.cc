#include "tessera/train/hugging_face_files.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/checkpoint/safetensors_index.h"
#include "tessera/checkpoint/tensor_size.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::status(path, error).type() != fs::file_type::not_found;
}

}  // namespace

bool has_stale_index(const fs::path& directory) {
  return is_there(directory / kSingleFile) && is_there(directory / kIndexFile);
}

HuggingFaceFiles::HuggingFaceFiles(const fs::path& directory, std::string_view prefix)
    : prefix_(prefix) {
  const fs::path path = directory / kSingleFile;
  if (!is_there(path)) {
    TESSERA_REQUIRE(is_there(directory / kIndexFile),
                    ErrorCode::kInvalidData,
                    "{} has neither {} nor {}",
                    directory.string(),
                    kSingleFile,
                    kIndexFile);
    index_ = directory / kIndexFile;
    open_indexed(directory);
    return;
  }
  files_.push_back({.path = path, .content = SafetensorsFile(path)});
  add_tensors();
}

void HuggingFaceFiles::open_indexed(const fs::path& directory) {
  const SafetensorsIndex index = parse_safetensors_index(read_file(index_), index_.string());
  for (const auto& [tensor, problem] : index.problems) {
    problems_.push_back(problem);
  }
  for (const auto& [name, tensors] : index.files) {
    const fs::path path = directory / name;
    if (!is_there(path)) {
      problems_.push_back(format("{} is not there, which should hold {} tensors, such as '{}'",
                                 path.string(),
                                 tensors.size(),
                                 tensors.front()));
      continue;
    }
    try {
      files_.push_back({.path = path, .content = SafetensorsFile(path)});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidData) {
        throw;
      }
      problems_.emplace_back(error.what());
    }
  }
  add_tensors();
  for (const auto& [tensor, problem] : index.problems) {
    absent_.emplace(plain_name(tensor), tensor);
  }
  for (const auto& [name, tensors] : index.files) {
    add_absent(directory / name, tensors);
  }
  std::erase_if(absent_, [&](const auto& absent) { return tensors_.contains(absent.first); });
}

void HuggingFaceFiles::add_tensors() {
  const auto add = [&](Tensor tensor) {
    const auto [at, is_new] = tensors_.try_emplace(plain_name(tensor.name), tensor);
    if (!is_new) {
      problems_.push_back(format("{}: tensor '{}' is also in {}",
                                 files_[tensor.file].path.string(),
                                 tensor.name,
                                 files_[at->second.file].path.string()));
    }
  };
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const SafetensorsTensor& tensor : files_[i].content.tensors()) {
      add({.name = tensor.name,
           .data = &tensor,
           .shape = tensor.shape,
           .type = describe(tensor.dtype, tensor.shape),
           .file = i});
    }
    for (const OtherTensor& tensor : files_[i].content.others()) {
      add({.name = tensor.name,
           .data = nullptr,
           .shape = tensor.shape,
           .type = format("{} {}", tensor.dtype, format_shape(tensor.shape)),
           .file = i});
    }
  }
}

void HuggingFaceFiles::add_absent(const fs::path& path, std::span<const std::string> tensors) {
  const auto file = std::ranges::find(files_, path, &File::path);
  for (const std::string& tensor : tensors) {
    if (file != files_.end() && file->content.has(tensor)) {
      continue;
    }
    const std::string plain = plain_name(tensor);
    absent_.emplace(plain, tensor);
    if (file != files_.end()) {
      const auto other = tensors_.find(plain);
      problems_.push_back(
          format("{} has no tensor '{}'{}",
                 path.string(),
                 tensor,
                 other == tensors_.end()
                     ? ""
                     : format(", which is in {}", files_[other->second.file].path.string())));
    }
  }
}

std::string HuggingFaceFiles::place(const Tensor& tensor) const {
  const File& file = files_[tensor.file];
  return format("{}: tensor '{}' at offset {}",
                file.path.string(),
                tensor.name,
                file.content.header_offset(tensor.name));
}

std::string HuggingFaceFiles::plain_name(std::string_view name) const {
  return std::string(name.starts_with(prefix_) ? name.substr(prefix_.size()) : name);
}

}  // namespace tessera
