#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A model.safetensors.index.json, which says in what file each tensor is.
struct SafetensorsIndex {
  std::map<std::string, std::vector<std::string>> files;  // names, with the tensors of each
  std::map<std::string, std::string> problems;  // of tensors for which no file beside it is named
};

// `path` is for messages. Errors: kInvalidData naming the file and the byte for what is no JSON or
// has a key twice, and the key for what has no "weight_map".
// Source: huggingface_hub, "serialization": split_state_dict_into_shards.
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& path);

}  // namespace tessera
