#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera {

// A value with its place in the file, for errors. Borrows the value and the file's text, if any.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string path, std::string_view text = {})
      : value_(&value), path_(std::move(path)), text_(text) {}

  const nlohmann::json& json() const { return *value_; }

  // The path, a JSON pointer, and the byte that it leads to. It takes time: for errors.
  std::string place() const;

  // The same of a member.
  std::string place_of(std::string_view key) const;

  // What stands here, for an error: short values as they are.
  std::string found() const;

  bool is_null() const { return value_->is_null(); }

  // The member, null or not. Errors: kInvalidData if this is no object.
  std::optional<JsonNode> find(const std::string& key) const;

  // Errors: kInvalidData if it is missing.
  JsonNode at(const std::string& key) const;

  // The elements of an array. Errors: kInvalidData if this is none.
  std::size_t size() const;
  JsonNode element(std::size_t index) const;

  // Errors: kInvalidData if this is no object, kUnsupported naming a key that is not in `known`.
  void expect_object(std::initializer_list<std::string_view> known) const;

  std::string string() const;
  bool boolean() const;

  // The member, or `fallback` where it is absent.
  bool boolean_or(const std::string& key, bool fallback) const;

  // An integer from 0 to `limit`.
  std::size_t count(std::size_t limit) const;

  // An id below `limit`.
  std::int32_t id(std::size_t limit) const;

  // Errors: kInvalidData with what was found.
  void expect(bool condition, std::string_view expected) const {
    TESSERA_REQUIRE(
        condition, ErrorCode::kInvalidData, "{} is {}, expected {}", place(), found(), expected);
  }

  // Errors: kUnsupported with what was found.
  void support(bool condition, std::string_view supported) const {
    TESSERA_REQUIRE(condition,
                    ErrorCode::kUnsupported,
                    "{} is {}, supported is {}",
                    place(),
                    found(),
                    supported);
  }

  // That the member `key` is absent, or false, or null.
  void require_false(const std::string& key) const;
  void require_null(const std::string& key) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
  std::string_view text_;
};

}  // namespace tessera
