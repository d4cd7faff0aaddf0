#include "tessera/checkpoint/safetensors_index.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"

namespace tessera {
namespace {

// A name that leads elsewhere is not followed.
bool is_file_name(const std::string& name) {
  return !name.empty() && std::filesystem::path(name).filename() == name && name != "." &&
         name != "..";
}

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& path) {
  const nlohmann::json json = parse_json(text, {.name = path});
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  TESSERA_REQUIRE(
      map != json.end() && map->is_object() && !map->empty(),
      ErrorCode::kInvalidData,
      "{}: \"weight_map\"{}: found {}, expected an object of tensors and the files that they are "
      "in",
      path,
      map == json.end() ? "" : format(" at byte {}", find_json(text, "/weight_map").value_or(0)),
      map == json.end() ? "none"
      : map->empty()    ? "nothing in it"
                        : format("a JSON {}", map->type_name()));
  // Of a tensor in the map, for messages.
  const auto place = [&](const std::string& tensor) {
    const auto at = find_json(text, "/weight_map/" + json_pointer_part(tensor));
    return format("{}: \"weight_map\": \"{}\" at byte {}", path, tensor, at.value_or(0));
  };
  SafetensorsIndex index;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      index.problems.emplace(
          tensor,
          format("{}: found a JSON {}, expected a file's name", place(tensor), file.type_name()));
    } else if (const auto& name = file.get_ref<const std::string&>(); !is_file_name(name)) {
      index.problems.emplace(
          tensor,
          format("{}: found \"{}\", expected the name of a file beside the index",
                 place(tensor),
                 name));
    } else {
      index.files[name].push_back(tensor);
    }
  }
  return index;
}

}  // namespace tessera
