#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/config.h"

// For tests: small configs, and the messages of what is refused.
namespace tessera {

// The message of the kInvalidConfig error that `body` must throw.
inline std::string config_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline std::string parse_error(std::string_view text) {
  return config_error([&] { parse_run_config(text, "run.toml"); });
}

inline std::string override_error(std::string_view override) {
  RunConfig config;
  return config_error([&] { apply_override(config, override); });
}

inline RunConfig with_override(std::string_view override) {
  RunConfig config;
  apply_override(config, override);
  return config;
}

// The smallest config that is valid.
inline RunConfig valid_config() {
  RunConfig config;
  config.run.dir = "runs/test";
  config.model.flavor = "debug";
  config.tokenizer.path = "tokenizer.json";
  config.data.files = {"a.txt"};
  return config;
}

}  // namespace tessera
