#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// A text to continue, and where it was written, for errors: "prompts.txt:3"; empty: an argument.
struct Prompt {
  std::string text;
  std::string place;
};

// The whole text of a file, or of stdin where `path` is "-", without a byte order mark and a line's
// end at its end. Files are read as those of data: packed, and in UTF-16 or UTF-32, too.
// Errors: kInvalidData naming the file and, where it is not UTF-8, the byte.
Prompt read_prompt(const std::filesystem::path& path);

// The prompts of a file, or of stdin where `path` is "-", in order: of a file whose name says JSON
// (.jsonl, .ndjson, .json) "prompt" of each line's object, or of those of a list, of any other its
// lines. Lines without text are
// left out. Errors: kInvalidData naming file and line.
std::vector<Prompt> read_prompts(const std::filesystem::path& path);

// Errors: kInvalidData naming the place and the first byte that is not UTF-8; kInvalidConfig of a
// prompt that has no place, since the command line has it.
void require_utf8(const Prompt& prompt);

}  // namespace tessera
