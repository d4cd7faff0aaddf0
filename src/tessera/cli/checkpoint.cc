#include "tessera/checkpoint/checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "tessera/base/format.h"
#include "tessera/base/print.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/tensor_size.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/subcommands.h"
#include "tessera/ir/dtype.h"
#include "tessera/resolve/require_checkpoint.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/weights/export_weights.h"
#include "tessera/weights/import_weights.h"

namespace tessera {
namespace {

std::int64_t num_bytes(const CheckpointReader& reader) {
  std::int64_t bytes = 0;
  for (const ManifestFile& file : reader.files()) {
    bytes += file.digest.size_bytes;
  }
  return bytes;
}

void verify_checkpoint(const std::filesystem::path& path) {
  const CheckpointReader reader(path, {.verify = Verify::kChecksums});
  require_own_tokenizer(path, reader.meta());
  print(format("{}: {}, {}, {}: every byte is as it was written\n",
               path.string(),
               format_plural(std::ssize(reader.tensors()), "tensor"),
               format_plural(std::ssize(reader.files()), "file"),
               format_bytes(num_bytes(reader))));
}

void verify(const std::filesystem::path& named) {
  with_checkpoint(named, verify_checkpoint);
}

std::string describe(const ManifestSlice& slice) {
  const TensorSlice& part = slice.part;
  return format(
      "    {} at {}{}  {}  {}\n",
      format_shape(part.extent),
      format_shape(part.offset),
      is_box(part) ? "" : format(" elements {} to {}", part.begin, part.begin + part.count - 1),
      slice.file,
      slice.key);
}

void inspect(const std::filesystem::path& named) {
  const std::filesystem::path path = require_checkpoint(named);
  const CheckpointReader reader(path, {.verify = Verify::kSizes});
  const CheckpointMeta& meta = reader.meta();
  std::string text = format("{}\nstep {} ({} applied), {} tokens, seed {}\nmodel {}\n\nfiles\n",
                            path.string(),
                            meta.step,
                            meta.applied_steps,
                            format_grouped(meta.tokens_seen),
                            meta.seed,
                            meta.model);
  for (const ManifestFile& file : reader.files()) {
    text += format("  {}  {:>10}  xxh3_128 {}\n",
                   file.name,
                   format_bytes(file.digest.size_bytes),
                   file.digest.xxh3_128);
  }
  text += "\ntensors\n";
  for (const ManifestTensor& tensor : reader.tensors()) {
    text += format("  {} {}  {}\n",
                   to_string(tensor.role),
                   tensor.name,
                   tessera::describe(tensor.dtype, tensor.shape));
    for (const ManifestSlice& slice : tensor.slices) {
      text += describe(slice);
    }
  }
  print(text);
}

void add_path_command(CLI::App& app,
                      const std::string& name,
                      const std::string& description,
                      void (*body)(const std::filesystem::path&)) {
  CLI::App& command = *app.add_subcommand(name, description);
  // Shared with the callback, which lives as long as the command.
  auto path = std::make_shared<std::filesystem::path>();
  add_path(command, "CHECKPOINT", *path, "A checkpoint, or a run directory: its newest checkpoint")
      ->required();
  command.callback([path, body] { body(*path); });
}

// The tokenizer of a directory that was just written.
std::string tokenizer_in(const std::filesystem::path& directory) {
  const auto found = find_tokenizer(directory);
  return found ? found->filename().string() : "no tokenizer";
}

void add_export(CLI::App& checkpoint) {
  CLI::App& command = *checkpoint.add_subcommand(
      "export", "Write the weights as a directory that Hugging Face's transformers load");
  auto options = std::make_shared<ExportOptions>();
  add_path(command,
           "CHECKPOINT",
           options->checkpoint,
           "A checkpoint, or a run directory: its newest checkpoint")
      ->required();
  add_output(command, "OUT_DIR", options->output, "The directory to write; new or empty")
      ->required();
  auto dtype = std::make_shared<std::string>();
  command
      .add_option("--dtype",
                  *dtype,
                  "What the weights are written as; else as they were trained (weights that came "
                  "in f16 are trained in f32)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  command.callback([options, dtype] {
    options->dtype = parse_dtype(*dtype);
    export_weights(*options);
    print(format(
        "{}: config.json, weights, {}\n", options->output.string(), tokenizer_in(options->output)));
  });
}

void add_import(CLI::App& checkpoint) {
  CLI::App& command =
      *checkpoint.add_subcommand("import", "Make a checkpoint of weights in Hugging Face's form");
  auto options = std::make_shared<ImportOptions>();
  add_path(command, "HF_DIR", options->source, "A directory with config.json and *.safetensors")
      ->required();
  add_output(command, "-o,--output", options->checkpoint, "The checkpoint to write; must not exist")
      ->required();
  command.callback([options] {
    import_weights(*options);
    print(format("{}: a checkpoint of step 0, {}\n",
                 options->checkpoint.string(),
                 tokenizer_in(options->checkpoint)));
  });
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  CLI::App& checkpoint = *app.add_subcommand("checkpoint", "Look at checkpoints, take weights out");
  checkpoint.require_subcommand(1);
  add_path_command(checkpoint, "verify", "Check every byte of a checkpoint", verify);
  add_path_command(checkpoint, "inspect", "Print what a checkpoint holds, and where", inspect);
  add_export(checkpoint);
  add_import(checkpoint);
}

}  // namespace tessera
