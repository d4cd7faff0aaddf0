#include "tessera/cli/input_options.h"

#include <algorithm>
#include <array>
#include <utility>

#include <CLI/CLI.hpp>

#include "tessera/base/log.h"
#include "tessera/base/machine.h"

namespace tessera {
namespace {

// The one of `all` with that name, which has been checked; the first for none.
template <class T, std::size_t n>
T named(std::string_view name, const std::array<T, n>& all) {
  const auto found = std::ranges::find_if(all, [&](T value) { return to_string(value) == name; });
  return found == all.end() ? all.front() : *found;
}

template <class T, std::size_t n>
std::vector<std::string> names_of(const std::array<T, n>& all) {
  std::vector<std::string> names;
  for (const T value : all) {
    names.emplace_back(to_string(value));
  }
  return names;
}

constexpr std::array kFormats = {DataFormat::kAuto,
                                 DataFormat::kText,
                                 DataFormat::kJsonl,
                                 DataFormat::kTokens,
                                 DataFormat::kMegatron,
                                 DataFormat::kChat};
constexpr std::array kTemplates = {
    ChatTemplateName::kAuto, ChatTemplateName::kLlama3, ChatTemplateName::kChatml};
constexpr std::array kTokenTypes = {TokenType::kU16, TokenType::kU32};

}  // namespace

std::vector<CLI::Option*> add_mark_options(CLI::App& command, MarkNames& names) {
  using Names = std::vector<std::string>;
  std::vector<CLI::Option*> options;
  const auto add = [&](const std::string& name,
                       std::optional<Names>& target,
                       const std::string& what,
                       const std::string& none) {
    CLI::Option* const named =
        command
            .add_option_function<Names>(
                "--" + name, [&target](const Names& given) { target = given; }, what)
            ->allow_extra_args(false);
    CLI::Option* const without =
        command.add_flag_callback("--no-" + name, [&target] { target = Names(); }, none);
    named->excludes(without);
    options.insert(options.end(), {named, without});
  };
  add("bos",
      names.bos,
      "Token that stands before a text, by name, in place of what the tokenizer puts there; may be "
      "given several times",
      "Nothing stands before a text");
  add("eos",
      names.eos,
      "Token that ends a text, by name, in place of the tokenizer's: the first stands after a "
      "document; may be given several times",
      "Nothing ends a text");
  return options;
}

std::vector<CLI::Option*> add_input_options(CLI::App& command,
                                            InputOptions& input,
                                            const std::vector<std::string>& formats) {
  std::vector<std::string> known = formats;
  known.emplace_back(to_string(DataFormat::kAuto));
  std::vector<CLI::Option*> options = {
      command.add_option("--format", input.format, "Of all files; auto: of each as its name says")
          ->check(CLI::IsMember(known))
          ->capture_default_str(),
      command.add_option("--field", input.text.field, "Key of the text in the objects of jsonl")
          ->capture_default_str(),
      command.add_option("--document-separator",
                         input.text.document_separator,
                         "Text that ends a document inside a file of text; else a file is one"),
      command.add_flag("--skip-broken",
                       input.text.skip_broken,
                       "Leave out and count lines of jsonl and chat that are broken or not what "
                       "they should be"),
      command
          .add_option("--unpacked-limit",
                      input.text.unpacked_limit,
                      "Bytes that a .gz or .zst file may unpack to")
          ->check(CLI::PositiveNumber)
          ->capture_default_str()};
  const auto takes = [&](DataFormat format) {
    return std::ranges::find(formats, to_string(format)) != formats.end();
  };
  if (takes(DataFormat::kChat)) {
    options.push_back(
        command
            .add_option("--chat-template",
                        input.chat_template,
                        "How conversations become tokens; auto: as the tokenizer's special tokens "
                        "say")
            ->check(CLI::IsMember(names_of(kTemplates)))
            ->capture_default_str());
  }
  if (takes(DataFormat::kTokens)) {
    options.push_back(command.add_option("--token-type", input.token_type, "Of bare ids")
                          ->check(CLI::IsMember(names_of(kTokenTypes)))
                          ->capture_default_str());
  }
  return options;
}

CorpusInput corpus_input(const InputOptions& input) {
  InputFiles found = input_files(input.files, named(input.format, kFormats));
  if (!found.found.empty()) {
    log_info(found.found);
  }
  CorpusInput corpus = {.files = std::move(found.files),
                        .text = input.text,
                        .token_type = named(input.token_type, kTokenTypes),
                        .chat_template = named(input.chat_template, kTemplates)};
  corpus.text.threads = corpus.text.threads > 0 ? corpus.text.threads : usable_cores();
  return corpus;
}

}  // namespace tessera
