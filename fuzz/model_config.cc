// The config.json of a Hugging Face model: whatever the bytes, it is refused with the byte or the
// key, or it is a model whose weights can be listed and whose own config.json says the same.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/check.h"
#include "tessera/base/error.h"
#include "tessera/models/family.h"

namespace {

// So that what lists the weights takes no time.
constexpr std::int64_t kMaxListedLayers = 64;

void check(const tessera::HuggingFaceModel& model) {
  using tessera::require;
  const tessera::ModelFamily& family = tessera::model_family(model.section.name);
  const tessera::HuggingFaceConfig again(family.hugging_face_config(model.section, model.facts),
                                         "again.json");
  require(tessera::hugging_face_model(again).section == model.section);
  if (model.section.layers.value_or(0) > kMaxListedLayers) {
    return;
  }
  for (const tessera::HuggingFaceWeight& weight : family.hugging_face_weights(model.section)) {
    require(!weight.name.empty() && !weight.parts.empty());
    require(std::ranges::all_of(weight.shape, [](std::int64_t dim) { return dim > 0; }));
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tessera::require;
  try {
    check(
        tessera::hugging_face_model({{reinterpret_cast<const char*>(data), size}, "config.json"}));
  } catch (const tessera::Error& error) {
    const std::string_view what = error.what();
    require(error.code() == tessera::ErrorCode::kInvalidData);
    require(tessera::has_number_behind(what, "config.json: not JSON at byte ") ||
            tessera::has_number_behind(what, "config.json: byte ") ||
            what.starts_with("config.json: \"") || tessera::names_encoding(what));
  }
  return 0;
}
