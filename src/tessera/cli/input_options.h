#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/encode_files.h"
#include "tessera/train/corpus_input.h"

namespace CLI {  // NOLINT(readability-identifier-naming): it is the library's
class App;
class Option;
}  // namespace CLI

namespace tessera {

// Input files as the command line names them, and how they are read.
struct InputOptions {
  std::vector<std::filesystem::path> files;
  std::string format;  // empty: by the name of the first file
  TextOptions text = {.skip_setting = "--skip-broken", .threads = 0};
  std::string token_type = "u16";
  std::string chat_template = "auto";
};

// --format, of which `formats` can be named; --field, --document-separator, --skip-broken and
// --unpacked-limit; with tokens or chat among the formats --token-type and --chat-template.
// `input` outlives the command. Returns the options.
std::vector<CLI::Option*> add_input_options(CLI::App& command,
                                            InputOptions& input,
                                            const std::vector<std::string>& formats);

// The format that was named, else that of the first file's name: jsonl, megatron or text.
DataFormat chosen_format(const InputOptions& input);

// With the threads that were asked for, or as many as there are cores.
TextOptions text_options(const InputOptions& input);

CorpusInput corpus_input(const InputOptions& input);

}  // namespace tessera
