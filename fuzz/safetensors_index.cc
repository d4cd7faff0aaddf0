// The index of a model in several files: whatever the bytes, each tensor is in one file beside it,
// or the error names the byte or the key.

#include "tessera/checkpoint/safetensors_index.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "fuzz/check.h"
#include "tessera/base/error.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tessera::require;
  try {
    const tessera::SafetensorsIndex index =
        tessera::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "i.json");
    std::set<std::string> tensors;
    for (const auto& [file, names] : index.files) {
      require(!file.empty() && file.find('/') == std::string::npos && file != "." && file != "..");
      require(!names.empty());
      for (const std::string& name : names) {
        require(tensors.insert(name).second);
      }
    }
    for (const auto& [name, problem] : index.problems) {
      require(tensors.insert(name).second);
      const std::string place = "i.json: \"weight_map\": \"" + name + "\" at byte ";
      require(problem.starts_with(place) && tessera::has_number_behind(problem, place));
    }
    require(!tensors.empty());
  } catch (const tessera::Error& error) {
    const std::string_view what = error.what();
    require(error.code() == tessera::ErrorCode::kInvalidData);
    require(tessera::has_number_behind(what, "i.json: not JSON at byte ") ||
            tessera::has_number_behind(what, "i.json: byte ") ||
            tessera::has_number_behind(what, "i.json: \"weight_map\" at byte ") ||
            what.starts_with("i.json: \"weight_map\": found none") ||
            tessera::names_encoding(what));
  }
  return 0;
}
