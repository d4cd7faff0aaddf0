#pragma once

#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming): it is the library's
class App;
}

namespace tessera {

// What a shell loads to complete the commands and options of `app`, and the keys of run files where
// a command takes them. `shell`: "bash", "zsh" or "fish". Errors: kInvalidConfig for another one.
std::string completion_script(const CLI::App& app, std::string_view shell);

// A manual page, as roff's macros "man" have it: "tessera" for all commands, "tessera-train" or
// "tessera-tokenizer-train" for one, "tessera-run" for the keys of run files. Errors:
// kInvalidConfig naming the pages that there are.
std::string manual_page(const CLI::App& app, std::string_view page);

// The names of all of these, each on a line.
std::string manual_pages(const CLI::App& app);

}  // namespace tessera
