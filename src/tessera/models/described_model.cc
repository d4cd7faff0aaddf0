#include "tessera/models/described_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/models/family.h"
#include "tessera/models/model_keys.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFamily = "family";
constexpr std::string_view kLora = "lora";

Json parse_description(std::string_view json) {
  try {
    Json parsed = parse_json(json, {});
    TESSERA_REQUIRE(parsed.is_object() && parsed.contains(kFamily) &&
                        parsed.at(std::string(kFamily)).is_string(),
                    ErrorCode::kInvalidArgument,
                    "a model described as {}: expected an object with \"{}\", as models of the "
                    "families have; a model of one's own is none of them",
                    json,
                    kFamily);
    return parsed;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) {
      throw;
    }
    fail(ErrorCode::kInvalidArgument, "a model described as {}: {}", json, error.message());
  }
}

const ModelFamily& described_family(const Json& json) {
  const auto name = json.at(std::string(kFamily)).get<std::string>();
  std::string known;
  for (const ModelFamily& family : model_families()) {
    if (family.described == name) {
      return family;
    }
    known += format("{}\"{}\"", known.empty() ? "" : ", ", family.described);
  }
  fail(
      ErrorCode::kInvalidArgument, "a model of the family \"{}\", expected one of {}", name, known);
}

template <class T>
bool has_type(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean();
  } else if constexpr (std::is_same_v<T, double>) {
    return value.is_number();
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    return value.is_array() && std::ranges::all_of(value, &Json::is_number);
  } else {
    return value.is_number_integer();
  }
}

void set_size(ModelSection& section, const std::string& key, const Json& value) {
  const auto keys = model_keys();
  const auto size = std::ranges::find(keys, key, &ModelKey::name);
  TESSERA_REQUIRE(size != keys.end(),
                  ErrorCode::kInvalidArgument,
                  "a model described with \"{}\": {}, which no family has",
                  key,
                  value.dump());
  std::visit(
      [&]<class T>(std::optional<T> ModelSection::* member) {
        TESSERA_REQUIRE(has_type<T>(value),
                        ErrorCode::kInvalidArgument,
                        "a model described with \"{}\": {}, expected {}",
                        key,
                        value.dump(),
                        std::is_same_v<T, bool>                  ? "true or false"
                        : std::is_same_v<T, double>              ? "a number"
                        : std::is_same_v<T, std::vector<double>> ? "a list of numbers"
                                                                 : "an integer");
        section.*member = value.get<T>();
      },
      size->member);
}

AdapterOptions described_adapters(const Json& lora) {
  try {
    return {.rank = lora.at("rank").get<std::int64_t>(),
            .alpha = lora.at("alpha").get<double>(),
            .targets = lora.at("targets").get<std::vector<std::string>>()};
  } catch (const Json::exception& error) {
    fail(ErrorCode::kInvalidArgument,
         "a model described with \"{}\": {}, expected rank, alpha and targets ({})",
         kLora,
         lora.dump(),
         error.what());
  }
}

ModelSection section_of(const Json& json) {
  ModelSection section{.name = std::string(described_family(json).name)};
  for (const auto& [key, value] : json.items()) {
    if (key != kFamily && key != kLora) {
      set_size(section, key, value);
    }
  }
  return section;
}

}  // namespace

ModelDescription described_model(std::string_view json) {
  const Json parsed = parse_description(json);
  const ModelFamily& family = described_family(parsed);
  ModelDescription model = family.describe(family.resolve(section_of(parsed)));
  if (const auto lora = parsed.find(kLora); lora != parsed.end()) {
    model.adapters = described_adapters(*lora);
    model.json = json;
  }
  return model;
}

}  // namespace tessera
