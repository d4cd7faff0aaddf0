#include "tessera/cli/command_pages.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/cli/build_info.h"
#include "tessera/config/schema.h"
#include "tessera/config/value.h"

namespace tessera {
namespace {

// An option as one types it.
struct OptionFacts {
  std::vector<std::string> names;  // "-o", "--output"; of an argument its name alone
  std::string value;               // "FILE"; "" for a flag
  std::string text;
  bool is_argument = false;
};

struct CommandFacts {
  std::string path;  // "tokenizer train"; "" for the program
  std::string text;
  std::string footer;
  std::vector<OptionFacts> options;
  std::vector<std::string> commands;  // inside it
  bool takes_keys = false;            // all of run files, as options
};

OptionFacts facts_of(const CLI::Option& option) {
  OptionFacts facts = {.names = {},
                       .value = option.get_items_expected_max() > 0 ? option.get_type_name() : "",
                       .text = option.get_description(),
                       .is_argument = !option.nonpositional()};
  if (facts.is_argument) {
    facts.names = {option.get_name(true)};
    return facts;
  }
  for (const std::string& name : option.get_snames()) {
    facts.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    facts.names.push_back("--" + name);
  }
  return facts;
}

// With those of its groups, which are commands without a name, and have a --help that is another's.
void add_options(const CLI::App& app, std::vector<OptionFacts>& all) {
  for (const CLI::Option* option : app.get_options()) {
    if (!app.get_name().empty() || option != app.get_help_ptr()) {
      all.push_back(facts_of(*option));
    }
  }
  for (const CLI::App* group :
       app.get_subcommands([](const CLI::App* command) { return command->get_name().empty(); })) {
    add_options(*group, all);
  }
}

// eval takes some keys without one, and refuses the others.
bool takes_run_file(const CLI::App& app) {
  return app.get_option_no_throw("RUN.toml") != nullptr;
}

void add_facts(const CLI::App& app, const std::string& path, std::vector<CommandFacts>& all) {
  CommandFacts facts = {.path = path,
                        .text = app.get_description(),
                        .footer = app.get_footer(),
                        .options = {},
                        .commands = {},
                        .takes_keys = app.get_allow_extras() && takes_run_file(app)};
  add_options(app, facts.options);
  const auto inner =
      app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
  for (const CLI::App* command : inner) {
    facts.commands.push_back(command->get_name());
  }
  all.push_back(std::move(facts));
  for (const CLI::App* command : inner) {
    add_facts(*command, path.empty() ? command->get_name() : path + " " + command->get_name(), all);
  }
}

// The program first, each command before those inside it.
std::vector<CommandFacts> commands_of(const CLI::App& app) {
  std::vector<CommandFacts> all;
  add_facts(app, "", all);
  return all;
}

const CommandFacts& command_at(const std::vector<CommandFacts>& all, std::string_view path) {
  return *std::ranges::find(all, path, &CommandFacts::path);
}

std::string inside(const CommandFacts& command, const std::string& name) {
  return command.path.empty() ? name : command.path + " " + name;
}

// A key of run files as an option: "--train.steps".
struct KeyOption {
  std::string name;
  std::string_view text;
};

std::vector<KeyOption> key_options() {
  std::vector<KeyOption> options;
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      if (key.set != nullptr) {
        options.push_back({.name = format("--{}.{}", section.name, key.name), .text = key.doc});
      }
    }
  }
  return options;
}

// Up to the first full stop, on one line.
std::string first_sentence(std::string_view text) {
  std::string line(text.substr(0, text.find(". ")));
  std::ranges::replace(line, '\n', ' ');
  return line.ends_with('.') ? line.substr(0, line.size() - 1) : line;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Within single quotes of a POSIX shell.
std::string quoted(const std::string& text) {
  return "'" + replaced(text, "'", "'\\''") + "'";
}

// Within those of fish, where a backslash escapes.
std::string quoted_for_fish(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

// A case of bash and zsh for each step from a command to one inside it.
std::string steps_text(const std::vector<CommandFacts>& all) {
  std::string cases;
  for (const CommandFacts& command : all) {
    for (const std::string& name : command.commands) {
      cases += format("{}\"{}:{}\"", cases.empty() ? "" : "|", command.path, name);
    }
  }
  return cases;
}

// What one types of an option: "--output=", "-o"; nothing of an argument.
std::vector<std::string> typed(const OptionFacts& option) {
  std::vector<std::string> words;
  for (const std::string& name : option.names) {
    if (!option.is_argument) {
      words.push_back(name + (!option.value.empty() && name.starts_with("--") ? "=" : ""));
    }
  }
  return words;
}

std::string bash_case(const CommandFacts& command) {
  std::string words;
  for (const OptionFacts& option : command.options) {
    for (const std::string& word : typed(option)) {
      words += word + " ";
    }
  }
  std::string commands;
  for (const std::string& name : command.commands) {
    commands += name + " ";
  }
  return format("    \"{}\") commands='{}' options='{}'{} ;;\n",
                command.path,
                commands,
                words,
                command.takes_keys ? "\" $keys\"" : "");
}

std::string bash_script(const std::vector<CommandFacts>& all) {
  std::string cases;
  for (const CommandFacts& command : all) {
    cases += bash_case(command);
  }
  std::string keys;
  for (const KeyOption& key : key_options()) {
    keys += format("{}{}=", keys.empty() ? "" : " ", key.name);
  }
  return format(
      R"(# Completion of tessera's commands, options and keys in bash. Load it with
#   source <(tessera completion bash)
_tessera() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command="" commands="" options="" i
  local keys='{}'
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$command:${{COMP_WORDS[i]}}" in
      {}) command="${{command:+$command }}${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$command" in
{}  esac
  # Nothing is offered in place of a value, or an argument: bash then completes files.
  COMPREPLY=()
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -n $commands ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
  fi
  if [[ ${{#COMPREPLY[@]}} -gt 0 && ${{COMPREPLY[0]}} == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
}}
complete -o default -F _tessera tessera
)",
      keys,
      steps_text(all),
      cases);
}

// "name:what it is", which zsh's _describe reads.
std::string described(const std::string& name, std::string_view text) {
  return quoted(replaced(name, ":", "\\:") + ":" + first_sentence(text));
}

std::string zsh_case(const CommandFacts& command, const std::vector<CommandFacts>& all) {
  std::string commands;
  for (const std::string& name : command.commands) {
    commands += " " + described(name, command_at(all, inside(command, name)).text);
  }
  std::string flags;
  std::string options;
  for (const OptionFacts& option : command.options) {
    for (const std::string& word : typed(option)) {
      (word.ends_with('=') ? options : flags) += " " + described(word, option.text);
    }
  }
  return format("    \"{}\") commands=({}) flags=({}) options=({}){} ;;\n",
                command.path,
                commands,
                flags,
                options,
                command.takes_keys ? "; options+=($keys)" : "");
}

std::string zsh_script(const std::vector<CommandFacts>& all) {
  std::string cases;
  for (const CommandFacts& command : all) {
    cases += zsh_case(command, all);
  }
  std::string keys;
  for (const KeyOption& key : key_options()) {
    keys += "    " + described(key.name + "=", key.text) + "\n";
  }
  return format(
      R"(#compdef tessera
# Completion of tessera's commands, options and keys in zsh. Load it with
#   source <(tessera completion zsh)
_tessera() {{
  local command="" i
  local -a commands flags options keys
  keys=(
{}  )
  for ((i = 2; i < CURRENT; i++)); do
    case "$command:${{words[i]}}" in
      {}) command="${{command:+$command }}${{words[i]}}" ;;
    esac
  done
  case "$command" in
{}  esac
  if [[ $PREFIX == -*=* ]]; then
    compset -P '*='
    _files
  elif [[ $PREFIX == -* ]]; then
    _describe -o option flags
    _describe -o option options -S ''
  elif (( $#commands )); then
    _describe command commands
  else
    _files
  fi
}}
if [[ $funcstack[1] == _tessera ]]; then
  _tessera "$@"
else
  (( $+functions[compdef] )) || {{ autoload -U compinit && compinit }}
  compdef _tessera tessera
fi
)",
      keys,
      steps_text(all),
      cases);
}

// Where a command stands, as a condition of fish.
std::string fish_condition(const std::string& path) {
  return format("__tessera_at {}", quoted_for_fish(path));
}

// An option's names as fish's `complete` takes them: "-s o -l output -r".
std::string fish_names(const OptionFacts& option) {
  std::string names;
  for (const std::string& name : option.names) {
    names += names.empty() ? "" : " ";
    names += name.starts_with("--") ? "-l " + name.substr(2) : "-s " + name.substr(1);
  }
  return names + (option.value.empty() ? "" : " -r");
}

std::string fish_lines(const CommandFacts& command, const std::vector<CommandFacts>& all) {
  std::string lines;
  const auto add = [&](const std::string& what, std::string_view text) {
    lines += format("complete -c tessera -n {} {} -d {}\n",
                    quoted_for_fish(fish_condition(command.path)),
                    what,
                    quoted_for_fish(first_sentence(text)));
  };
  for (const std::string& name : command.commands) {
    add("-f -a " + name, command_at(all, inside(command, name)).text);
  }
  for (const OptionFacts& option : command.options) {
    if (!option.is_argument) {
      add(fish_names(option), option.text);
    }
  }
  const std::vector<KeyOption> keys = command.takes_keys ? key_options() : std::vector<KeyOption>();
  for (const KeyOption& key : keys) {
    add(format("-a {}=", key.name), key.text);
  }
  return lines;
}

std::string fish_script(const std::vector<CommandFacts>& all) {
  std::string lines;
  for (const CommandFacts& command : all) {
    lines += fish_lines(command, all);
  }
  std::string steps;
  for (const CommandFacts& command : all) {
    for (const std::string& name : command.commands) {
      steps += " " + quoted_for_fish(command.path + ":" + name);
    }
  }
  return format(
      R"(# Completion of tessera's commands, options and keys in fish. Load it with
#   tessera completion fish | source
function __tessera_at
  set -l command
  for word in (commandline -opc)[2..]
    if contains -- "$command:$word"{}
      set command (string trim -- "$command $word")
    end
  end
  test "$command" = "$argv[1]"
end
{})",
      steps,
      lines);
}

// Roff takes a backslash for an escape, a hyphen for one that may break a line, and a dot or an
// apostrophe at the front of a line for a request.
std::string roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool starts_line = result.empty() || result.back() == '\n';
    if (starts_line && (c == '.' || c == '\'')) {
      result += "\\&";
    }
    result += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return result;
}

// "tessera-tokenizer-train"
std::string page_name(std::string_view path) {
  return path.empty() ? "tessera" : "tessera-" + replaced(std::string(path), " ", "-");
}

constexpr std::string_view kRunPage = "tessera-run";

std::string page_start(std::string_view page, int section, std::string_view text) {
  return format(".TH {} {} \"\" \"tessera {}\" \"Tessera\"\n.SH NAME\n{} \\- {}\n",
                replaced(roff(page), "\\-", "-"),
                section,
                build_info().version,
                roff(page),
                roff(first_sentence(text)));
}

std::string options_text(const CommandFacts& command) {
  std::string text;
  for (const OptionFacts& option : command.options) {
    text += ".TP\n";
    for (std::size_t i = 0; i < option.names.size(); ++i) {
      text += format("{}\\fB{}\\fR", i > 0 ? ", " : "", roff(option.names[i]));
    }
    if (!option.is_argument && !option.value.empty()) {
      text += format(" \\fI{}\\fR", roff(option.value));
    }
    text += "\n" + roff(option.text) + "\n";
  }
  return text.empty() ? "" : ".SH OPTIONS\n" + text;
}

std::string command_page(const std::vector<CommandFacts>& all, const CommandFacts& command) {
  std::string text = page_start(page_name(command.path), 1, command.text);
  text += format(".SH SYNOPSIS\n\\fBtessera{}\\fR", command.path.empty() ? "" : " " + command.path);
  for (const OptionFacts& option : command.options) {
    text += option.is_argument ? format(" [\\fI{}\\fR]", roff(option.names[0])) : "";
  }
  text += command.commands.empty() ? " [\\fIOPTION\\fR]...\n" : " \\fICOMMAND\\fR\n";
  text += ".SH DESCRIPTION\n" + roff(command.text) + "\n";
  if (!command.footer.empty()) {
    text += ".PP\n" + roff(command.footer) + "\n";
  }
  text += options_text(command);
  std::string also = command.takes_keys ? format("\\fB{}\\fR(5)", roff(kRunPage)) : "";
  if (!command.commands.empty()) {
    text += ".SH COMMANDS\n";
  }
  for (const std::string& name : command.commands) {
    const std::string path = inside(command, name);
    text += format(".TP\n\\fB{}\\fR\n{}\n", roff(name), roff(command_at(all, path).text));
    also += format("{}\\fB{}\\fR(1)", also.empty() ? "" : ", ", roff(page_name(path)));
  }
  if (!command.path.empty()) {
    also += format("{}\\fBtessera\\fR(1)", also.empty() ? "" : ", ");
  }
  return text + ".SH SEE ALSO\n" + also + "\n";
}

std::string run_page() {
  std::string text = page_start(kRunPage, 5, "The keys of a run file");
  text +=
      ".SH DESCRIPTION\nA run file is TOML. Each key can also be set on the command line, as in "
      "\\fB\\-\\-train.steps=100\\fR, which comes before the file. In brackets stand what a key "
      "takes, and what it is where it is left out.\n";
  const RunConfig defaults;
  for (const ConfigSection& section : schema()) {
    text += format(".SH [{}]\n{}\n", roff(section.name), roff(section.doc));
    for (const ConfigKey& key : section.keys) {
      const std::optional<ConfigValue> value = key.get(defaults);
      text += format(".TP\n\\fB{}\\fR (\\fI{}\\fR{})\n{}\n",
                     roff(key.name),
                     roff(key.expected),
                     value && key.columns.empty() ? ", " + roff(to_toml(*value)) : "",
                     roff(key.doc));
    }
  }
  return text + ".SH SEE ALSO\n\\fBtessera\\-train\\fR(1), \\fBtessera\\-explain\\fR(1)\n";
}

}  // namespace

std::string completion_script(const CLI::App& app, std::string_view shell) {
  const std::vector<CommandFacts> all = commands_of(app);
  if (shell == "bash") {
    return bash_script(all);
  }
  if (shell == "zsh") {
    return zsh_script(all);
  }
  TESSERA_REQUIRE(shell == "fish",
                  ErrorCode::kInvalidConfig,
                  "found shell \"{}\", expected bash, zsh or fish",
                  shell);
  return fish_script(all);
}

std::string manual_page(const CLI::App& app, std::string_view page) {
  if (page == kRunPage) {
    return run_page();
  }
  const std::vector<CommandFacts> all = commands_of(app);
  const auto found = std::ranges::find(
      all, page, [](const CommandFacts& command) { return page_name(command.path); });
  TESSERA_REQUIRE(found != all.end(),
                  ErrorCode::kInvalidConfig,
                  "no manual page is called \"{}\", expected one of\n{}",
                  page,
                  manual_pages(app));
  return command_page(all, *found);
}

std::string manual_pages(const CLI::App& app) {
  std::string names;
  for (const CommandFacts& command : commands_of(app)) {
    names += page_name(command.path) + "\n";
  }
  return names + std::string(kRunPage) + "\n";
}

}  // namespace tessera
