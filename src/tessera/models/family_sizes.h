#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/models/family.h"
#include "tessera/models/hugging_face_config.h"
#include "tessera/models/hugging_face_config_text.h"
#include "tessera/models/model_keys.h"

namespace tessera {

// A size that a family has: a key of [model], the member of its config, and the key of config.json
// that has the same value.
template <class Config>
struct FamilySize {
  // How config.json has it.
  enum class File : std::uint8_t {
    kSame,     // under `file_key`, read and written
    kWritten,  // written so; the family reads it, since what stands for an absent key depends
    kNowhere,  // only where the family itself reads and writes it
  };

  using Member = std::variant<std::int64_t Config::*,
                              bool Config::*,
                              double Config::*,
                              std::vector<double> Config::*>;

  std::string_view key;
  Member member;
  std::string_view file_key = {};
  std::optional<double> file_default = {};  // of an absent key; none: it must be there
  File file = File::kSame;
  bool (*is_usual)(const Config&) = nullptr;  // where descriptions leave it out; null: nowhere
};

template <class Config>
struct Flavor {
  std::string_view name;
  Config config;
};

// A family's table of sizes, and all that follows from it.
template <class Config>
class FamilySizes {
 public:
  using Size = FamilySize<Config>;

  // `name` is model.name, `described` the "family" of descriptions. The order is that of the
  // description's JSON. What a flavor does not say, or no flavor, is as in `defaults`.
  FamilySizes(std::string_view name,
              std::string_view described,
              std::vector<Size> sizes,
              std::vector<Flavor<Config>> flavors,
              Config defaults = {})
      : name_(name),
        described_(described),
        sizes_(std::move(sizes)),
        flavors_(std::move(flavors)),
        defaults_(std::move(defaults)) {}

  std::string_view name() const { return name_; }

  std::string_view described() const { return described_; }

  std::vector<std::string_view> flavor_names() const {
    std::vector<std::string_view> names;
    for (const Flavor<Config>& flavor : flavors_) {
      names.push_back(flavor.name);
    }
    return names;
  }

  // The published sizes of that name, or the defaults.
  Config flavor(std::string_view flavor_name) const {
    for (const Flavor<Config>& flavor : flavors_) {
      if (flavor.name == flavor_name) {
        return flavor.config;
      }
    }
    return defaults_;
  }

  // The flavor's sizes, replaced by those that `section` has. Errors: kInvalidConfig for a key that
  // the family has no use for, `others` aside.
  Config config(const ModelSection& section, std::initializer_list<std::string_view> others) const {
    for (const ModelKey& key : model_keys()) {
      const bool is_known =
          find(key.name) != nullptr || std::ranges::find(others, key.name) != others.end();
      refuse_key(!is_known && is_set(section, key), name_, key.name);
    }
    Config result = flavor(section.flavor);
    // The padding belongs to the flavor's own vocabulary.
    if (const Size* const padded = find("padded_vocab"); padded != nullptr && section.vocab) {
      set(*padded, result, *section.vocab);
    }
    for (const Size& size : sizes_) {
      each(size, [&](auto of_section, auto of_config) {
        if (section.*of_section) {
          result.*of_config = *(section.*of_section);
        }
      });
    }
    return result;
  }

  // `section` with every size written out.
  ModelSection section(ModelSection section, const Config& config) const {
    for (const Size& size : sizes_) {
      each(size, [&](auto of_section, auto of_config) { section.*of_section = config.*of_config; });
    }
    return section;
  }

  // ModelDescription::json.
  std::string describe(const Config& config) const {
    std::string json = format("{{\"family\":\"{}\"", described_);
    for (const Size& size : sizes_) {
      std::visit(
          [&](const auto member) {
            if (size.is_usual == nullptr || !size.is_usual(config)) {
              json += format(",\"{}\":{}", size.key, json_of(config.*member));
            }
          },
          size.member);
    }
    return json + "}";
  }

  // What config.json says under keys of the table. Errors: kInvalidData naming file and key.
  Config read(const HuggingFaceConfig& file) const {
    Config config;
    for (const Size& size : sizes_) {
      if (size.file == Size::File::kSame) {
        std::visit([&](const auto member) { config.*member = read_as(file, size, member); },
                   size.member);
      }
    }
    return config;
  }

  void write(HuggingFaceConfigText& text, const Config& config) const {
    for (const Size& size : sizes_) {
      if (size.file != Size::File::kNowhere) {
        std::visit([&](const auto member) { write_as(text, size.file_key, config.*member); },
                   size.member);
      }
    }
  }

 private:
  const Size* find(std::string_view key) const {
    const auto found = std::ranges::find(sizes_, key, &Size::key);
    return found == sizes_.end() ? nullptr : &*found;
  }

  static void set(const Size& size, Config& config, std::int64_t value) {
    config.*std::get<std::int64_t Config::*>(size.member) = value;
  }

  // body(member of ModelSection, member of Config), of one type.
  template <class Body>
  static void each(const Size& size, const Body& body) {
    std::visit(
        [&]<class T>(T Config::* of_config) {
          body(std::get<std::optional<T> ModelSection::*>(model_key(size.key).member), of_config);
        },
        size.member);
  }

  static std::int64_t read_as(const HuggingFaceConfig& file,
                              const Size& size,
                              std::int64_t Config::* /*member*/) {
    if (model_key(size.key).range == SizeRange::kLayers) {
      return file.layers(size.file_key);
    }
    return size.file_default
               ? file.size(size.file_key, static_cast<std::int64_t>(*size.file_default))
               : file.size(size.file_key);
  }

  static double read_as(const HuggingFaceConfig& file,
                        const Size& size,
                        double Config::* /*member*/) {
    return file.real(size.file_key, size.file_default);
  }

  static bool read_as(const HuggingFaceConfig& file, const Size& size, bool Config::* /*member*/) {
    return file.flag(size.file_key, size.file_default.value_or(0) != 0);
  }

  static void write_as(HuggingFaceConfigText& text, std::string_view key, std::int64_t value) {
    text.number(key, value);
  }

  static void write_as(HuggingFaceConfigText& text, std::string_view key, double value) {
    text.real(key, value);
  }

  static void write_as(HuggingFaceConfigText& text, std::string_view key, bool value) {
    text.flag(key, value);
  }

  static std::vector<double> read_as(const HuggingFaceConfig& file,
                                     const Size& size,
                                     std::vector<double> Config::* /*member*/) {
    return file.reals(size.file_key);
  }

  static void write_as(HuggingFaceConfigText& text,
                       std::string_view key,
                       const std::vector<double>& values) {
    text.add(key, python_floats(values));
  }

  template <class T>
  static std::string json_of(const T& value) {
    if constexpr (std::is_same_v<T, std::vector<double>>) {
      return python_floats(value);
    } else {
      return format("{}", value);
    }
  }

  std::string_view name_;
  std::string_view described_;
  std::vector<Size> sizes_;
  std::vector<Flavor<Config>> flavors_;
  Config defaults_;
};

}  // namespace tessera
