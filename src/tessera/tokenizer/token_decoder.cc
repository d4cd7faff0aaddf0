#include "tessera/tokenizer/token_decoder.h"

#include <cstddef>
#include <string_view>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/base/utf8.h"
#include "tessera/tokenizer/normalizer.h"

namespace tessera {
namespace {

std::string text_of_bytes(const std::string& bytes) {
  if (valid_utf8_prefix(bytes) == bytes.size()) {
    return bytes;
  }
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    text += "\xEF\xBF\xBD";
  }
  return text;
}

std::vector<std::string> join_byte_tokens(std::vector<std::string> tokens) {
  std::vector<std::string> result;
  std::string run;
  const auto end_run = [&] {
    if (!run.empty()) {
      result.push_back(text_of_bytes(run));
      run.clear();
    }
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of_token(token); byte >= 0) {
      run += static_cast<char>(byte);
    } else {
      end_run();
      result.push_back(std::move(token));
    }
  }
  end_run();
  return result;
}

std::string join(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) {
    text += token;
  }
  return text;
}

std::string strip(std::string_view token, const DecoderStep& step) {
  for (std::size_t i = 0; i < step.start && token.starts_with(step.from); ++i) {
    token.remove_prefix(step.from.size());
  }
  for (std::size_t i = 0; i < step.stop && token.ends_with(step.from); ++i) {
    token.remove_suffix(step.from.size());
  }
  return std::string(token);
}

std::vector<std::string> run_step(const DecoderStep& step, std::vector<std::string> tokens) {
  switch (step.kind) {
    case DecoderStep::Kind::kByteFallback:
      return join_byte_tokens(std::move(tokens));
    case DecoderStep::Kind::kFuse:
      return {join(tokens)};
    case DecoderStep::Kind::kReplace:
      for (std::string& token : tokens) {
        token = replace_all(token, step.from, step.to);
      }
      break;
    case DecoderStep::Kind::kStrip:
      for (std::string& token : tokens) {
        token = strip(token, step);
      }
      break;
    case DecoderStep::Kind::kMetaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = replace_all(tokens[i], step.from, i == 0 && step.strip_first ? "" : " ");
      }
      break;
  }
  return tokens;
}

}  // namespace

std::string run_decoder(std::span<const DecoderStep> steps, std::vector<std::string> tokens) {
  for (const DecoderStep& step : steps) {
    tokens = run_step(step, std::move(tokens));
  }
  return join(tokens);
}

std::string decode_alone(std::span<const DecoderStep> steps, const std::string& token) {
  std::string text = token;
  for (DecoderStep step : steps) {
    step.strip_first = false;
    if (step.kind == DecoderStep::Kind::kFuse) {
      break;  // what comes behind it works on the ends of the whole text
    }
    if (const int byte = byte_of_token(text);
        step.kind == DecoderStep::Kind::kByteFallback && byte >= 0) {
      return {static_cast<char>(byte)};
    }
    text = join(run_step(step, {text}));
  }
  return text;
}

}  // namespace tessera
