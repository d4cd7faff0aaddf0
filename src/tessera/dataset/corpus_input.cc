#include "tessera/dataset/corpus_input.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/units.h"
#include "tessera/data/byte_stream.h"
#include "tessera/data/find_files.h"
#include "tessera/data/token_stream.h"
#include "tessera/dataset/text_encoder.h"

namespace tessera {

namespace {

// What is read in the same way.
enum class Kind { kText, kChat, kTokens };

Kind kind_of(DataFormat format) {
  switch (format) {
    case DataFormat::kChat:
      return Kind::kChat;
    case DataFormat::kTokens:
    case DataFormat::kMegatron:
      return Kind::kTokens;
    case DataFormat::kAuto:
    case DataFormat::kText:
    case DataFormat::kJsonl:
      break;
  }
  return Kind::kText;
}

bool has_name_of_text(const std::filesystem::path& path) {
  constexpr std::array kEndings = {".txt", ".md", ".rst", ".html", ".csv", ".tsv", ".py"};
  return std::ranges::find(kEndings, path.extension()) != kEndings.end();
}

// Whether a file of a folder whose name says `named` may be one of `format`.
bool may_be(const std::filesystem::path& path, DataFormat named, DataFormat format) {
  switch (format) {
    case DataFormat::kJsonl:
    case DataFormat::kChat:
      return named == DataFormat::kJsonl;
    case DataFormat::kMegatron:
      return named == DataFormat::kMegatron;
    case DataFormat::kTokens:
      return named != DataFormat::kJsonl && !has_name_of_text(path);
    case DataFormat::kAuto:
    case DataFormat::kText:
      break;
  }
  return true;
}

// Files of a folder or a pattern that are not read.
struct LeftOut {
  int names = 0;     // of other formats
  int empty = 0;     // files
  int dangling = 0;  // links
};

// Whether a file that was found is to be read; counts those that are not. An empty one says
// nothing, but of a data set of two files it is a fault.
bool is_read(const std::filesystem::path& path,
             DataFormat named,
             DataFormat wanted,
             LeftOut& left_out) {
  std::error_code error;
  if (!may_be(path, named, wanted)) {
    ++left_out.names;
    return false;
  }
  if (!std::filesystem::exists(path, error)) {
    ++left_out.dangling;
    return false;
  }
  const bool is_empty = named != DataFormat::kMegatron &&
                        std::filesystem::is_regular_file(path, error) &&
                        std::filesystem::file_size(path, error) == 0;
  left_out.empty += is_empty ? 1 : 0;
  return !is_empty;
}

// "2 of other names, 1 empty".
std::string describe(const LeftOut& left_out) {
  std::string text;
  const auto add = [&](int count, std::string_view what) {
    text += count > 0 ? format("{}{} {}", text.empty() ? "" : ", ", count, what) : "";
  };
  add(left_out.names, "of other names");
  add(left_out.empty, "empty");
  add(left_out.dangling, "of links to nothing");
  return text;
}

// "66 files (60 text, 6 jsonl)".
std::string describe(const std::map<DataFormat, int>& counts, const LeftOut& left_out) {
  int total = 0;
  std::string parts;
  for (const auto& [format_of_files, count] : counts) {
    total += count;
    parts += format("{}{} {}", parts.empty() ? "" : ", ", count, to_string(format_of_files));
  }
  const std::string others = describe(left_out);
  return format("{} ({}){}",
                format_plural(total, "file"),
                parts,
                others.empty() ? "" : format(", {} left out", others));
}

Corpus open_group(std::span<const InputFile> files,
                  const CorpusInput& input,
                  const Tokenizer* tokenizer,
                  std::atomic<std::int64_t>* bytes) {
  TextInput group = text_input(files, input.text);
  const DataFormat form = files.front().format;
  if (form == DataFormat::kMegatron) {
    return Corpus::open_megatron(group.paths);
  }
  if (form == DataFormat::kTokens) {
    return Corpus::open_tokens(
        group.paths, input.token_type, tokenizer != nullptr ? tokenizer->eos() : std::nullopt);
  }
  TESSERA_CHECK(tokenizer != nullptr, "text without a tokenizer");
  TextEncoder encoder = form == DataFormat::kChat ? chat_encoder(*tokenizer, input.chat_template)
                                                  : text_encoder(*tokenizer);
  if (bytes != nullptr) {
    encoder.encode = [bytes, encode = std::move(encoder.encode)](
                         std::string_view text, bool continues, const TokenSink& sink) {
      *bytes += static_cast<std::int64_t>(text.size());
      encode(text, continues, sink);
    };
  }
  return Corpus(tokenize_text_files(group.paths, encoder, group.options));
}

}  // namespace

DataFormat format_by_name(std::filesystem::path path) {
  if (compression_of(path) != Compression::kNone) {
    path.replace_extension();
  }
  const std::string extension = without_capitals(path.extension().string());
  if (extension == ".jsonl" || extension == ".ndjson" || extension == ".json") {
    return DataFormat::kJsonl;
  }
  if (extension == ".npy") {
    return DataFormat::kTokens;
  }
  std::error_code error;
  // Half a pair is one too: opening it names the file that is missing.
  const bool is_prefix = !std::filesystem::exists(path, error) &&
                         (std::filesystem::exists(path.string() + ".idx", error) ||
                          std::filesystem::exists(path.string() + ".bin", error));
  return extension == ".bin" || extension == ".idx" || is_prefix ? DataFormat::kMegatron
                                                                 : DataFormat::kText;
}

TextFormat text_format(DataFormat format) {
  return format == DataFormat::kChat    ? TextFormat::kChat
         : format == DataFormat::kJsonl ? TextFormat::kJsonl
                                        : TextFormat::kText;
}

InputFiles input_files(std::span<const std::filesystem::path> names, DataFormat wanted) {
  InputFiles all;
  for (const FoundFiles& found : find_files(names)) {
    std::map<DataFormat, int> counts;
    LeftOut left_out;
    for (const std::filesystem::path& path : found.files) {
      const DataFormat named = format_by_name(path);
      if (found.is_searched && !is_read(path, named, wanted, left_out)) {
        continue;
      }
      const DataFormat own = wanted == DataFormat::kAuto ? named : wanted;
      all.files.push_back({.path = path, .format = own});
      ++counts[own];
    }
    if (!found.is_searched) {
      continue;
    }
    TESSERA_REQUIRE(
        !counts.empty(),
        ErrorCode::kInvalidData,
        "{} has no files {}, expected one at least ({} left out)",
        found.name.string(),
        left_out.names > 0 ? format("whose names say {}", to_string(wanted)) : "to read",
        describe(left_out));
    all.found += format(
        "{}{}: {}", all.found.empty() ? "" : "; ", found.name.string(), describe(counts, left_out));
  }
  return all;
}

const InputFile* find_text(std::span<const InputFile> files) {
  const auto found = std::ranges::find_if(
      files, [](const InputFile& file) { return kind_of(file.format) != Kind::kTokens; });
  return found == files.end() ? nullptr : &*found;
}

TextInput text_input(std::span<const InputFile> files, const TextOptions& text) {
  TextInput input{.paths = {}, .options = text};
  for (const InputFile& file : files) {
    input.paths.push_back(file.path);
    input.options.formats.push_back(text_format(file.format));
  }
  input.options.format = files.empty() ? text.format : input.options.formats.front();
  return input;
}

std::shared_ptr<const Corpus> open_corpus(const CorpusInput& input,
                                          const Tokenizer* tokenizer,
                                          std::atomic<std::int64_t>* bytes) {
  auto corpus = std::make_shared<Corpus>();
  std::span<const InputFile> rest = input.files;
  while (!rest.empty()) {
    // Files of one kind are read together, by all threads.
    const auto end = std::ranges::find_if(rest, [&](const InputFile& file) {
      return kind_of(file.format) != kind_of(rest.front().format) ||
             (kind_of(file.format) == Kind::kTokens && file.format != rest.front().format);
    });
    const auto count = static_cast<std::size_t>(end - rest.begin());
    corpus->append(open_group(rest.first(count), input, tokenizer, bytes));
    rest = rest.subspan(count);
  }
  return corpus;
}

}  // namespace tessera
