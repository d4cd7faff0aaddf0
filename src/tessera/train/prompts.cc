#include "tessera/train/prompts.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/utf8.h"
#include "tessera/data/jsonl.h"

namespace tessera {
namespace {

std::string read_stdin() {
  std::string text;
  std::array<char, 65536> piece;
  while (const std::size_t size = std::fread(piece.data(), 1, piece.size(), stdin)) {
    text.append(piece.data(), size);
  }
  TESSERA_REQUIRE(std::ferror(stdin) == 0,
                  ErrorCode::kInvalidData,
                  "cannot read stdin: {}",
                  std::strerror(errno));
  return text;
}

std::string name_of(const std::filesystem::path& path) {
  return path == "-" ? "stdin" : path.string();
}

std::string read_text(const std::filesystem::path& path) {
  return path == "-" ? read_stdin() : read_file(path);
}

}  // namespace

void require_utf8(const Prompt& prompt) {
  const std::size_t valid = valid_utf8_prefix(prompt.text);
  TESSERA_REQUIRE(valid == prompt.text.size(),
                  // A prompt of the command line has no place.
                  prompt.place.empty() ? ErrorCode::kInvalidConfig : ErrorCode::kInvalidData,
                  "{}the prompt's byte {} begins no UTF-8 character",
                  prompt.place.empty() ? "" : prompt.place + ": ",
                  valid);
}

Prompt read_prompt(const std::filesystem::path& path) {
  Prompt prompt{.text = read_text(path), .place = name_of(path)};
  if (prompt.text.ends_with('\n')) {
    prompt.text.pop_back();
  }
  require_utf8(prompt);
  return prompt;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& path) {
  const bool is_jsonl = path.extension() == ".jsonl" || path.extension() == ".ndjson";
  const std::string text = read_text(path);
  std::string_view rest = text;
  std::vector<Prompt> prompts;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = take_line(rest);
    if (is_blank(line)) {
      continue;
    }
    Prompt prompt{.text = std::string(line), .place = format("{}:{}", name_of(path), number)};
    if (is_jsonl) {
      const std::string problem = parse_jsonl_line(line, "prompt", prompt.text);
      TESSERA_REQUIRE(problem.empty(), ErrorCode::kInvalidData, "{}: {}", prompt.place, problem);
    }
    require_utf8(prompt);
    prompts.push_back(std::move(prompt));
  }
  TESSERA_REQUIRE(!prompts.empty(),
                  ErrorCode::kInvalidData,
                  "{} has no prompts: expected one a line",
                  name_of(path));
  return prompts;
}

}  // namespace tessera
