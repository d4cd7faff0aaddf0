#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tessera/base/median.h"
#include "tessera/config/config.h"
#include "tessera/config/run_config.h"
#include "tessera/resolve/resolve.h"
#include "tessera/train/trainer.h"

namespace tessera {

// For benchmarks over whole runs of `tessera train`.

// Runs the run file `text`, whose run.dir is `directory`/run, and returns what metrics.jsonl says
// of every step under `key`. The run directory is removed. A run that a signal stopped is an error.
inline std::vector<double> train_and_read(const std::filesystem::path& directory,
                                          std::string_view text,
                                          std::string_view key) {
  const std::filesystem::path file = directory / "run.toml";
  std::ofstream(file) << "run.dir = \"" << (directory / "run").string() << "\"\n" << text;
  const RunConfig config = resolve(load_run_config(file));
  if (train(config, resolve_model(config)).interrupted) {
    throw std::runtime_error("stopped by a signal");
  }
  std::vector<double> values;
  std::ifstream metrics(directory / "run" / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    values.push_back(nlohmann::json::parse(line).at(key).get<double>());
  }
  std::filesystem::remove_all(directory / "run");
  return values;
}

}  // namespace tessera
