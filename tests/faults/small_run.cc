#include "tests/faults/small_run.h"

#include <cstdio>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera::faults {
namespace {

namespace fs = std::filesystem;

// What a step computed, as its line has it, without what differs from run to run.
std::string numbers(const std::string& line) {
  const nlohmann::json row = nlohmann::json::parse(line);
  nlohmann::json kept;
  for (const char* const key : {"step", "loss", "grad_norm", "lr", "tokens"}) {
    kept[key] = row.at(key);
  }
  kept["validation_loss"] = row.value("validation_loss", nlohmann::json());
  return kept.dump();
}

std::vector<std::string> metrics(const fs::path& run) {
  std::vector<std::string> rows;
  std::ifstream file(run / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    rows.push_back(numbers(line));
  }
  return rows;
}

// Bytes of the data files of the run's last checkpoint, by name.
std::map<std::string, std::string> weights(const fs::path& run) {
  std::map<std::string, std::string> files;
  char name[32];
  std::snprintf(name, sizeof name, "step-%08d", kSteps);
  for (const auto& entry : fs::directory_iterator(run / "checkpoints" / name)) {
    if (entry.path().extension() == ".safetensors") {
      files[entry.path().filename()] = read_file(entry.path());
    }
  }
  return files;
}

}  // namespace

void write_inputs(const fs::path& directory) {
  std::ofstream corpus(directory / "corpus.txt");
  for (int i = 0; i < 400; ++i) {
    corpus << "line " << i << " tells the story of number " << i * 7919 % 1000 << " and its "
           << i % 17 << " friends\n";
  }
  std::ofstream(directory / "run.toml") << R"([run]
threads = 1
[model]
dim = 32
layers = 2
heads = 4
kv_heads = 2
ffn = 64
vocab = 300
[data]
files = ["corpus.txt"]
sequence_length = 32
validation_share = 0.05
[validation]
every = 5
[tokenizer]
path = "tokenizer.json"
train_vocab = 300
[train]
steps = )" << kSteps << R"(
global_batch = 4
microbatch = 2
[optimizer]
lr = 0.03
[schedule]
warmup = 1
decay_ratio = 0
[checkpoint]
every = 5
keep = 2
)";
}

std::string best(const fs::path& run) {
  const fs::path link = run / "checkpoints/best";
  std::error_code none;
  const fs::path name = fs::read_symlink(link, none);
  TESSERA_REQUIRE(name.empty() || fs::exists(link / "manifest.json"),
                  ErrorCode::kInternal,
                  "{} leads to {}, which is no checkpoint",
                  link.string(),
                  name.string());
  return name;
}

Result result_of(const fs::path& run) {
  return {.rows = metrics(run), .files = weights(run), .best = best(run)};
}

}  // namespace tessera::faults
