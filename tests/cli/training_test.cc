#include "tests/cli/training_test.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/config/config.h"
#include "tessera/metrics/event_record.h"
#include "tessera/plan/compile.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/resolve.h"
#include "tests/cli/process.h"

namespace tessera {
namespace {

constexpr const char* kRunFile = R"([run]
dir = "run"
threads = 1
[model]
dim = 32
layers = 2
heads = 4
kv_heads = 2
ffn = 64
vocab = 300
[tokenizer]
path = "tokenizer.json"
train_vocab = 300
[data]
files = ["corpus.txt"]
sequence_length = 32
[train]
steps = 12
global_batch = 4
microbatch = 2
[optimizer]
lr = 3e-3
[schedule]
warmup = 2
decay_ratio = 0.5
)";

std::vector<std::string> train_arguments(const std::string& run,
                                         std::vector<std::string> overrides) {
  std::vector<std::string> arguments = {"train", "run.toml", "--run.dir=" + run};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  return arguments;
}

}  // namespace

std::string corpus_text() {
  std::string text;
  for (int i = 0; i < 400; ++i) {
    text += format("Line {} of the text tells of {} ships, {} of them lost at sea.\n",
                   i,
                   i * i % 97,
                   i * 7 % 31);
  }
  return text;
}

std::string virtual_cluster(int ranks) {
  return format("--cluster.file={}/configs/clusters/virtual-{}.toml", TESSERA_SOURCE_DIR, ranks);
}

std::vector<std::string> differing_tensors(const std::filesystem::path& a,
                                           const std::filesystem::path& b) {
  const CheckpointReader first(a);
  const CheckpointReader second(b);
  using Key = std::pair<TensorRole, std::string>;
  std::map<Key, const ManifestTensor*> left;
  for (const ManifestTensor& tensor : first.tensors()) {
    left[{tensor.role, tensor.name}] = &tensor;
  }
  std::vector<std::string> differing;
  for (const ManifestTensor& tensor : second.tensors()) {
    const auto node = left.extract(Key{tensor.role, tensor.name});
    const bool same = !node.empty() && node.mapped()->dtype == tensor.dtype &&
                      node.mapped()->shape == tensor.shape &&
                      first.read(tensor.name, tensor.role) == second.read(tensor.name, tensor.role);
    if (!same) {
      differing.push_back(format("{} {}", to_string(tensor.role), tensor.name));
    }
  }
  for (const auto& [key, tensor] : left) {
    differing.push_back(format("{} {}", to_string(key.first), key.second));
  }
  return differing;
}

TrainingTest::TrainingTest() {
  write_test_file(path("corpus.txt"), corpus_text());
  write_test_file(path("run.toml"), kRunFile);
}

Outcome TrainingTest::tessera(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), built_program("tessera"));
  return Process(arguments, directory_.path()).finish();
}

Outcome TrainingTest::shell(const std::string& line) const {
  return Process({"/bin/sh", "-c", format("tessera='{}'; {}", built_program("tessera"), line)},
                 directory_.path())
      .finish();
}

std::string TrainingTest::with_faults(const std::string& faults, const std::string& log) {
  return format("env LD_PRELOAD={} TESSERA_FAULTS='{}'{}",
                built_program("tests/libtessera_faults.so"),
                faults,
                log.empty() ? "" : " TESSERA_FAULTS_LOG=" + log);
}

bool TrainingTest::has_mpi(const std::string& library) const {
  return shell(format("command -v mpirun.{0} && test -e \"${{tessera%/*}}/libtessera_{0}.so\"",
                      library))
             .code == 0;
}

std::string TrainingTest::mpirun(const std::string& options,
                                 const std::string& command,
                                 const std::string& library) {
  return format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "ASAN_OPTIONS=${{ASAN_OPTIONS:+$ASAN_OPTIONS:}}detect_leaks=0 timeout -k 10 300 mpirun.{} {} "
      "{} "
      "$tessera {}",
      library,
      library == "openmpi" ? "--oversubscribe" : "",
      options,
      command);
}

Outcome TrainingTest::train(const std::string& run, std::vector<std::string> overrides) const {
  return tessera(train_arguments(run, std::move(overrides)));
}

void TrainingTest::TearDown() {
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    const std::filesystem::path config = entry.path() / "config.toml";
    if (std::filesystem::exists(entry.path() / "metrics.jsonl") &&
        std::filesystem::exists(config)) {
      SCOPED_TRACE(config.string());
      expect_plan_is_all(config);
    }
  }
}

void TrainingTest::expect_plan_is_all(const std::filesystem::path& config_path) {
  const RunConfig config = resolve(load_run_config(config_path, {}));
  const PlannedRun run = plan_run(config, resolve_model(config));
  const RunPrograms expected = compile_run(run.plan, run.target);
  const RunPrograms found = compile_run(parse_plan(to_string(run.plan), config_path.string()),
                                        parse_target(to_string(run.target), config_path.string()));
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t place = 0; place < expected.size(); ++place) {
    EXPECT_EQ(to_string(found[place].step), to_string(expected[place].step));
    const auto& validation = expected[place].validation;
    ASSERT_EQ(found[place].validation.has_value(), validation.has_value());
    if (validation) {
      EXPECT_EQ(to_string(*found[place].validation), to_string(*validation));
    }
  }
}

Process TrainingTest::start_training(const std::string& run,
                                     std::vector<std::string> overrides) const {
  std::vector<std::string> arguments = train_arguments(run, std::move(overrides));
  arguments.insert(arguments.begin(), built_program("tessera"));
  arguments.emplace_back("--log.every=1");
  return {arguments, directory_.path()};
}

std::filesystem::path TrainingTest::checkpoint(const std::string& run) const {
  const auto newest = find_newest_checkpoint(path(run) / "checkpoints");
  TESSERA_REQUIRE(newest.has_value(), ErrorCode::kInvalidData, "{} has no checkpoint", run);
  return *newest;
}

std::filesystem::path TrainingTest::checkpoint(const std::string& run, std::int64_t step) const {
  return checkpoint_directory(path(run) / "checkpoints", step);
}

std::vector<std::string> TrainingTest::metrics(const std::string& run) const {
  std::istringstream text(read_file(path(run) / "metrics.jsonl"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::int64_t> TrainingTest::event_steps(const std::string& run) const {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path(run))) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  constexpr std::int64_t kMaxStep = 1000;
  std::vector<std::int64_t> steps;
  for (const std::filesystem::path& file : files) {
    const std::string bytes = read_file(file);
    std::size_t before = 0;
    for (std::int64_t step = 1; step <= kMaxStep; ++step) {
      const KeptRecords kept = kept_records(bytes, step);
      if (kept.has_steps && kept.bytes > before) {
        steps.push_back(step);
      }
      before = kept.bytes;
    }
    EXPECT_EQ(before, bytes.size()) << file;
  }
  return steps;
}

void TrainingTest::write_gpt2_files(const std::string& ids_name,
                                    const std::string& merges_name) const {
  const auto whole = nlohmann::json::parse(read_file(path("tokenizer.json")));
  nlohmann::json ids = whole["model"]["vocab"];
  for (const auto& token : whole["added_tokens"]) {
    ids[token["content"].get<std::string>()] = token["id"];
  }
  const std::string last = whole["added_tokens"].back()["content"];
  ids["<|endoftext|>"] = ids[last];
  ids.erase(last);
  std::string merges = "#version: 0.2\n";
  for (const auto& merge : whole["model"]["merges"]) {
    merges += merge.is_string() ? merge.get<std::string>()
                                : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    merges += "\n";
  }
  write_test_file(path(ids_name), ids.dump());
  write_test_file(path(merges_name), merges);
}

std::vector<std::string> TrainingTest::numbers(const std::string& run) const {
  std::vector<std::string> steps;
  for (const std::string& line : metrics(run)) {
    auto step = nlohmann::json::parse(line);
    for (const char* key :
         {"step_seconds", "tokens_per_second", "memory_bytes", "comm_bytes", "pipeline_ranks"}) {
      step.erase(key);
    }
    steps.push_back(step.dump());
  }
  return steps;
}

void TrainingTest::expect_same_training(const std::string& run, const std::string& expected) const {
  EXPECT_EQ(numbers(run), numbers(expected));
  const CheckpointMeta found = CheckpointReader(checkpoint(run)).meta();
  const CheckpointMeta wanted = CheckpointReader(checkpoint(expected)).meta();
  EXPECT_EQ(found.step, wanted.step);
  EXPECT_EQ(found.applied_steps, wanted.applied_steps);
  EXPECT_EQ(found.tokens_seen, wanted.tokens_seen);
  EXPECT_THAT(differing_tensors(checkpoint(run), checkpoint(expected)), testing::IsEmpty());
}

}  // namespace tessera
