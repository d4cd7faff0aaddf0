#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/encode_files.h"
#include "tessera/dataset/corpus_input.h"
#include "tessera/tokenizer/text_marks.h"

namespace CLI {  // NOLINT(readability-identifier-naming): it is the library's
class App;
class Option;
}  // namespace CLI

namespace tessera {

// Input files as the command line names them, and how they are read.
struct InputOptions {
  std::vector<std::filesystem::path> files;  // as they were named: folders and patterns, too
  std::string format = "auto";               // by the name of each file
  TextOptions text = {.skip_setting = "--skip-broken", .threads = 0};
  std::string token_type = "u16";
  std::string chat_template = "auto";
};

// --bos and --no-bos, --eos and --no-eos: marks in place of the tokenizer's own. `names` outlives
// the command. Returns the options.
std::vector<CLI::Option*> add_mark_options(CLI::App& command, MarkNames& names);

// --format, of which `formats` can be named; --field, --document-separator, --skip-broken and
// --unpacked-limit; with tokens or chat among the formats --token-type and --chat-template.
// `input` outlives the command. Returns the options.
std::vector<CLI::Option*> add_input_options(CLI::App& command,
                                            InputOptions& input,
                                            const std::vector<std::string>& formats);

// The formats that names of files stand for, and text: what needs no --format.
inline constexpr const char* kFilesHelp =
    "Input files (no stdin: they are read twice), in this order; also folders, with all that is "
    "below, and patterns "
    "(\"corpus/*.txt\")";

// The files and how they are read; says what folders and patterns hold.
// .text has the threads that were asked for, or as many as there are cores.
CorpusInput corpus_input(const InputOptions& input);

}  // namespace tessera
