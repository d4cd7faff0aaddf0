#include "tessera/hugging_face/files.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/safetensors_index.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/data/byte_stream.h"
#include "tessera/data/file_kind.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::status(path, error).type() != fs::file_type::not_found;
}

// A file of weights; says what else it is, where that is known: clones without their large files
// have pointers in place of them.
SafetensorsFile open_weights(const fs::path& path) {
  std::array<char, kFileKindBytes> front;
  const std::size_t size = ByteStream(path, {.compression = Compression::kNone}).read(front);
  const FileKind kind = known_kind({front.data(), size});
  TESSERA_REQUIRE(!kind.is_of_any_file,
                  ErrorCode::kInvalidData,
                  "{} is {}, expected a safetensors file: {}",
                  path.string(),
                  kind.name,
                  kind.advice);
  return SafetensorsFile(path);
}

// Of a folder without the two files that are read: what it has in their place, and what to do.
std::string other_weights(const fs::path& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  const auto find = [&](std::string_view begin, std::string_view end) {
    const auto found = std::ranges::find_if(names, [&](std::string_view name) {
      return name.starts_with(begin) && name.ends_with(end);
    });
    return found == names.end() ? std::string() : *found;
  };
  if (const std::string shard = find("model-", ".safetensors"); !shard.empty()) {
    return format(": it has {} without the index, which says what each such file holds", shard);
  }
  if (const std::string adapter = find("adapter_model", ""); !adapter.empty()) {
    return format(
        ": it has {}, an adapter, which changes the weights of another model: merge the two",
        adapter);
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOthers = {
      {{"pytorch_model", ".bin"},
       {"", ".pth"},
       {"", ".pt"},
       {"", ".gguf"},
       {"", ".h5"},
       {"", ".msgpack"}}};
  for (const auto& [begin, end] : kOthers) {
    if (const std::string other = find(begin, end); !other.empty()) {
      return format(
          ": it has {}, which is not read: save the model as safetensors (with "
          "transformers: save_pretrained)",
          other);
    }
  }
  return "";
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
                    "{} has neither {} nor {}{}",
                    directory.string(),
                    kSingleFile,
                    kIndexFile,
                    other_weights(directory));
    index_ = directory / kIndexFile;
    open_indexed(directory);
    return;
  }
  files_.push_back({.path = path, .content = open_weights(path)});
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
      problems_.push_back(format("{} is not there, which should hold {}, such as '{}'",
                                 path.string(),
                                 format_plural(std::ssize(tensors), "tensor"),
                                 tensors.front()));
      continue;
    }
    try {
      files_.push_back({.path = path, .content = open_weights(path)});
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
