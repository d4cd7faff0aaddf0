#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "tessera/base/file.h"

// A training process as it looks from outside: what it is doing, and whether it has ended.
namespace tessera::faults {

// What a training process is doing, as far as its file calls tell.
enum class Phase : std::uint32_t {
  kStart,    // from exec to the first step: config, data, program
  kRestore,  // from the first read of a checkpoint to the first step
  kStep,     // training
  kSave,     // files of a checkpoint are being written
  kPublish,  // a checkpoint that is written becomes one: manifest, rename
  kPrune,    // older ones are being removed
};

constexpr std::size_t kNumPhases = 6;

constexpr std::array<std::string_view, kNumPhases> kPhaseNames = {
    "start", "restore", "step", "save", "publish or prune", "prune"};

// The longest time that a caller waits for a run.
constexpr auto kPatience = std::chrono::seconds(60);

// What a run is doing, from the list of its file calls that the preloaded library writes.
class PhaseLog {
 public:
  explicit PhaseLog(std::filesystem::path path) : path_(std::move(path)) {}

  void clear();

  const std::filesystem::path& path() const { return path_; }

  // The phase after the last call of those that were made so far.
  Phase now();

 private:
  void note(std::string_view call);

  std::filesystem::path path_;
  FileDescriptor file_;
  std::string rest_;  // of a line that is not whole yet
  Phase phase_ = Phase::kStart;
};

// A training process, or mpirun above several, with its output in a file.
class Training {
 public:
  Training(const std::vector<std::string>& argv,
           const std::filesystem::path& directory,
           const std::filesystem::path& log);
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  pid_t process() const { return process_; }

  bool has_ended();

  // Errors: kTimeout.
  int wait();

 private:
  pid_t process_ = -1;
  std::optional<int> status_;
};

// The processes of the program that mpirun, and what it started, have started.
std::vector<pid_t> ranks_below(pid_t process);

}  // namespace tessera::faults
