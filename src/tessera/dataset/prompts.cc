#include "tessera/dataset/prompts.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text_encoding.h"
#include "tessera/base/utf8.h"
#include "tessera/data/json_line.h"
#include "tessera/data/jsonl.h"
#include "tessera/data/text_stream.h"
#include "tessera/dataset/corpus_input.h"

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

WholeText read_text(const std::filesystem::path& path, bool holds_json) {
  WholeText whole = path == "-" ? WholeText{.text = as_utf8(read_stdin())}
                                : read_whole_text(path, {.holds_json = holds_json});
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (whole.text.starts_with(kByteOrderMark)) {
    whole.text.erase(0, kByteOrderMark.size());
  }
  return whole;
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
  Prompt prompt{.text = read_text(path, /*holds_json=*/false).text, .place = name_of(path)};
  if (prompt.text.ends_with('\n')) {
    prompt.text.resize(prompt.text.size() - (prompt.text.ends_with("\r\n") ? 2 : 1));
  }
  require_utf8(prompt);
  return prompt;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& path) {
  const bool is_json = path != "-" && format_by_name(path) == DataFormat::kJsonl;
  const WholeText whole = read_text(path, is_json);
  std::string_view rest = whole.text;
  std::vector<Prompt> prompts;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = take_line(rest);
    if (is_blank(line)) {
      continue;
    }
    Prompt prompt{
        .text = std::string(line),
        .place = format("{}{}{}", name_of(path), whole.joins_lines ? ": value " : ":", number)};
    if (is_json) {
      std::string problem = parse_jsonl_line(line, "prompt", prompt.text);
      problem = whole.joins_lines ? as_of_value(std::move(problem)) : problem;
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
