// Kills training runs with SIGKILL at random instants, starts them again until they end, and
// compares each with a run that nobody disturbed: metrics and weights, bit by bit. The program that
// runs is the product itself; a library that is loaded beside it lists its file calls, which tell
// in which phase it died.

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tests/faults/small_run.h"
#include "tests/faults/watched_training.h"

namespace tessera::faults {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "kills TESSERA FAULTS_LIBRARY [--kills=500] [--each=80] [--seed=N] [--dir=DIR] "
    "[--mpirun=PROGRAM]\n"
    "Kills until there were so many, and so many in each of start, restore, step, save, and "
    "publish\n"
    "or prune. A run with the same --dir and --seed goes on where it was stopped.";

constexpr int kMaxKillsOfARun = 12;

struct Options {
  fs::path tessera;
  fs::path faults;  // the library to preload
  int kills = 500;
  int each = 80;
  std::uint64_t seed = std::random_device{}();
  fs::path directory;
  bool keeps = true;   // the directory, at the end
  std::string mpirun;  // empty: ranks are threads alone
};

// A layout, and how its ranks are begun.
struct Variant {
  std::string name;
  std::vector<std::string> keys;
  int processes = 1;  // above 1: begun by mpirun
};

std::vector<Variant> variants(const Options& options) {
  std::vector<Variant> list = {
      {"one-rank", {"--parallel.ranks=1"}},
      {"in-place-saves", {"--parallel.ranks=1", "--checkpoint.async=false"}},
      {"fsdp-threads", {"--parallel.ranks=2", "--train.microbatch=1"}},
      {"ddp-threads", {"--parallel.ranks=2", "--train.microbatch=1", "--state.preset=ddp"}}};
  if (!options.mpirun.empty()) {
    list.push_back({"fsdp-mpi", {"--train.microbatch=1"}, 2});
  }
  return list;
}

// The classes that are counted: publish and prune are one.
std::size_t counted(Phase phase) {
  return static_cast<std::size_t>(phase == Phase::kPrune ? Phase::kPublish : phase);
}

constexpr std::array kCounted = {
    Phase::kStart, Phase::kRestore, Phase::kStep, Phase::kSave, Phase::kPublish};

// Microseconds after the begin of a phase within which it is killed: about as long as it lasts.
std::int64_t span_us(Phase phase) {
  switch (phase) {
    case Phase::kStart:
      return 60'000;
    case Phase::kRestore:
      return 4'000;
    case Phase::kStep:
      return 25'000;
    case Phase::kSave:
      return 6'000;
    case Phase::kPublish:
      return 3'000;
    case Phase::kPrune:
      return 1'000;
  }
  return 0;
}

class Chaos {
 public:
  explicit Chaos(Options options)
      : options_(std::move(options)),
        variants_(variants(options_)),
        progress_(options_.directory / "progress"),
        calls_(options_.directory / "calls") {
    fs::create_directories(options_.directory);
    write_inputs(options_.directory);
    read_progress();
  }

  void run() {
    for (std::size_t round = 0; !is_done(); ++round) {
      disturb(variants_[round % variants_.size()], round);
    }
    fmt::print("kills: {} (", total());
    for (const Phase phase : kCounted) {
      fmt::print("{}{} {}",
                 phase == Phase::kStart ? "" : ", ",
                 kPhaseNames[counted(phase)],
                 counts_[counted(phase)]);
    }
    fmt::print("); runs: {}; all as undisturbed; seed {}\n", num_runs_, options_.seed);
  }

 private:
  int total() const {
    int sum = 0;
    for (const int count : counts_) {
      sum += count;
    }
    return sum;
  }

  bool is_done() const {
    return total() >= options_.kills && std::all_of(kCounted.begin(), kCounted.end(), [&](Phase p) {
             return counts_[counted(p)] >= options_.each;
           });
  }

  void read_progress() {
    std::ifstream file(progress_);
    std::uint64_t seed = 0;
    if (!(file >> seed) || seed != options_.seed) {
      std::ofstream(progress_) << options_.seed << '\n';
      return;
    }
    for (std::uint32_t phase = 0; file >> phase;) {
      ++counts_[counted(static_cast<Phase>(phase % kNumPhases))];
    }
  }

  std::vector<std::string> command(const Variant& variant, const std::string& run, bool watched) {
    std::vector<std::string> argv;
    if (variant.processes > 1) {
      argv = {options_.mpirun, "-n", std::to_string(variant.processes)};
      if (options_.mpirun.find("openmpi") != std::string::npos) {
        argv.insert(argv.end(), {"--allow-run-as-root", "--oversubscribe"});
      }
    }
    if (watched) {
      argv.insert(argv.end(),
                  {"env",
                   format("LD_PRELOAD={}", options_.faults.string()),
                   format("TESSERA_FAULTS=change path={0} times=0;open path={0} times=0", run),
                   format("TESSERA_FAULTS_LOG={}", calls_.path().string())});
    }
    argv.insert(argv.end(), {options_.tessera.string(), "train", "run.toml", "--run.dir=" + run});
    argv.insert(argv.end(), variant.keys.begin(), variant.keys.end());
    return argv;
  }

  // The run that nobody disturbs, made without anything loaded beside the program.
  const Result& expected(const Variant& variant) {
    const auto found = expected_.find(variant.name);
    if (found != expected_.end()) {
      return found->second;
    }
    const std::string run = "expected-" + variant.name;
    fs::remove_all(options_.directory / run);
    Training training(command(variant, run, false), options_.directory, log(run));
    const int status = training.wait();
    TESSERA_REQUIRE(status == 0, ErrorCode::kInternal, "{} failed: see {}", run, log(run).string());
    Result result = result_of(options_.directory / run);
    TESSERA_REQUIRE(result.rows.size() == kSteps && !result.files.empty(),
                    ErrorCode::kInternal,
                    "{} is not whole",
                    run);
    return expected_.emplace(variant.name, std::move(result)).first->second;
  }

  fs::path log(const std::string& run) const { return options_.directory / (run + ".log"); }

  bool has_checkpoint(const std::string& run) const {
    std::error_code none;
    for (const auto& entry :
         fs::directory_iterator(options_.directory / run / "checkpoints", none)) {
      if (entry.path().filename().string().starts_with("step-")) {
        return true;
      }
    }
    return false;
  }

  // A phase that lacks kills, or any; a run without a checkpoint restores none.
  Phase draw_phase(const std::string& run, std::mt19937_64& random) const {
    std::vector<Phase> lacking;
    for (const Phase phase : kCounted) {
      if (counts_[counted(phase)] < options_.each) {
        lacking.push_back(phase);
      }
    }
    const std::size_t draw = random();
    const Phase phase =
        lacking.empty() ? kCounted[draw % kCounted.size()] : lacking[draw % lacking.size()];
    if (phase == Phase::kRestore && !has_checkpoint(run)) {
      return Phase::kPublish;
    }
    return phase == Phase::kPublish && random() % 2 == 0 ? Phase::kPrune : phase;
  }

  // One run, killed some times, then left to end.
  void disturb(const Variant& variant, std::size_t round) {
    const Result& wanted = expected(variant);
    std::mt19937_64 random(options_.seed * 1'000'003 + static_cast<std::uint64_t>(total()) + round);
    const std::string run = "run-" + variant.name;
    fs::remove_all(options_.directory / run);
    fs::remove(log(run));
    int kills = 0;
    for (int starts = 0;; ++starts) {
      TESSERA_REQUIRE(starts < 10 * kMaxKillsOfARun, ErrorCode::kInternal, "{} does not end", run);
      const bool wants_kill = kills < kMaxKillsOfARun && !is_done();
      calls_.clear();
      Training training(command(variant, run, true), options_.directory, log(run));
      if (wants_kill && kill_in(training, variant, draw_phase(run, random), random)) {
        ++kills;
        best(options_.directory / run);
        continue;
      }
      const int status = training.wait();
      TESSERA_REQUIRE(status == 0,
                      ErrorCode::kInternal,
                      "{} ended with status {} after {} kills (seed {}): see {}",
                      run,
                      status,
                      kills,
                      options_.seed,
                      log(run).string());
      break;
    }
    compare(run, wanted);
    ++num_runs_;
    fmt::print("{}: {} kills, as undisturbed ({} of {})\n", run, kills, total(), options_.kills);
    std::fflush(stdout);
  }

  // Whether it was still alive when the signal came.
  bool kill_in(Training& training, const Variant& variant, Phase phase, std::mt19937_64& random) {
    const Clock::time_point begin = Clock::now();
    while (calls_.now() != phase) {
      if (training.has_ended() || Clock::now() - begin > kPatience) {
        return false;
      }
      ::usleep(20);
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % static_cast<std::uint64_t>(span_us(phase))));
    const std::vector<pid_t> ranks =
        variant.processes == 1 ? std::vector{training.process()} : ranks_below(training.process());
    if (training.has_ended() || ranks.empty()) {
      return false;
    }
    const Phase before = calls_.now();
    if (::kill(ranks[random() % ranks.size()], SIGKILL) != 0) {
      return false;
    }
    const int status = training.wait();
    const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (variant.processes == 1 ? !WIFSIGNALED(status) : ended_well) {
      return false;  // it had ended already
    }
    // What it died in; mpirun's other ranks have gone on since.
    note(variant.processes == 1 ? calls_.now() : before);
    return true;
  }

  void note(Phase phase) {
    ++counts_[counted(phase)];
    std::ofstream(progress_, std::ios::app) << static_cast<std::uint32_t>(phase) << '\n';
  }

  void compare(const std::string& run, const Result& wanted) const {
    const Result found = result_of(options_.directory / run);
    for (std::size_t i = 0; i < std::max(found.rows.size(), wanted.rows.size()); ++i) {
      const std::string a = i < found.rows.size() ? found.rows[i] : "nothing";
      const std::string b = i < wanted.rows.size() ? wanted.rows[i] : "nothing";
      TESSERA_REQUIRE(a == b,
                      ErrorCode::kInternal,
                      "{} (seed {}), line {} of metrics.jsonl: found {}, expected {}",
                      run,
                      options_.seed,
                      i + 1,
                      a,
                      b);
    }
    TESSERA_REQUIRE(found.files == wanted.files,
                    ErrorCode::kInternal,
                    "{} (seed {}): the weights are not those of the undisturbed run",
                    run,
                    options_.seed);
    TESSERA_REQUIRE(found.best == wanted.best && !found.best.empty(),
                    ErrorCode::kInternal,
                    "{} (seed {}): the best checkpoint is \"{}\", expected \"{}\"",
                    run,
                    options_.seed,
                    found.best,
                    wanted.best);
  }

  Options options_;
  std::vector<Variant> variants_;
  fs::path progress_;
  PhaseLog calls_;  // of the run under way
  std::map<std::string, Result> expected_;
  std::array<int, kNumPhases> counts_{};
  int num_runs_ = 0;
};

Options parse(int argc, char** argv) {
  TESSERA_REQUIRE(argc > 2, ErrorCode::kInvalidConfig, "usage: {}", kUsage);
  Options options;
  options.tessera = fs::absolute(argv[1]);
  options.faults = fs::absolute(argv[2]);
  for (int i = 3; i < argc; ++i) {
    const std::string text = argv[i];
    const std::size_t equals = text.find('=');
    TESSERA_REQUIRE(equals != std::string::npos, ErrorCode::kInvalidConfig, "usage: {}", kUsage);
    const std::string key = text.substr(0, equals);
    const std::string value = text.substr(equals + 1);
    if (key == "--kills") {
      options.kills = std::stoi(value);
    } else if (key == "--each") {
      options.each = std::stoi(value);
    } else if (key == "--seed") {
      options.seed = std::stoull(value);
    } else if (key == "--dir") {
      options.directory = value;
    } else if (key == "--mpirun") {
      options.mpirun = value;
    } else {
      fail(ErrorCode::kInvalidConfig, "no option {}; usage: {}", key, kUsage);
    }
  }
  if (options.directory.empty()) {
    options.keeps = false;
    options.directory = fs::temp_directory_path() / format("tessera-kills-{}", ::getpid());
  }
  options.directory = fs::absolute(options.directory);
  return options;
}

}  // namespace
}  // namespace tessera::faults

int main(int argc, char** argv) {
  try {
    const auto options = tessera::faults::parse(argc, argv);
    fmt::print("seed {}; directory {}\n", options.seed, options.directory.string());
    std::fflush(stdout);
    tessera::faults::Chaos(options).run();
    if (!options.keeps) {
      std::filesystem::remove_all(options.directory);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
