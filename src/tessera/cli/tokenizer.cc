#include "tessera/tokenizer/tokenizer.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/units.h"
#include "tessera/cli/subcommands.h"
#include "tessera/train/train_tokenizer.h"

namespace tessera {
namespace {

struct TrainOptions {
  std::vector<std::filesystem::path> files;
  std::int64_t vocab = 0;
  std::filesystem::path output = "tokenizer.json";
  bool force = false;
};

void train(const TrainOptions& options) {
  std::error_code error;
  TESSERA_REQUIRE(options.force || !std::filesystem::exists(options.output, error),
                  ErrorCode::kInvalidConfig,
                  "{} exists: choose another --output, or replace it with --force",
                  options.output.string());
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer =
      train_tokenizer(options.files, options.vocab, options.output, "--vocab");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::string line = format("{}: {} entries, trained in {}\n",
                                  options.output.string(),
                                  tokenizer.vocab_size(),
                                  format_duration(seconds.count()));
  std::fputs(line.c_str(), stdout);
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App& tokenizer = *app.add_subcommand("tokenizer", "Make tokenizers");
  tokenizer.require_subcommand(1);
  CLI::App& command =
      *tokenizer.add_subcommand("train", "Train a byte-level BPE tokenizer on text files");
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<TrainOptions>();
  command.add_option("FILE", options->files, "Text files")->required();
  command.add_option("--vocab", options->vocab, "Entries, the 256 bytes and 2 marks included")
      ->required()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{std::numeric_limits<std::int32_t>::max()}));
  command.add_option("--output", options->output, "The tokenizer.json to write")
      ->capture_default_str();
  command.add_flag("--force", options->force, "Replace an output that exists");
  command.callback([options] { train(*options); });
}

}  // namespace tessera
