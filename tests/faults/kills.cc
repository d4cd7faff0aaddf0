// Kills training runs with SIGKILL at random instants, starts them again until they end, and
// compares each with a run that nobody disturbed: metrics and weights, bit by bit. The program that
// runs is the product itself; a library that is loaded beside it lists its file calls, which tell
// in which phase it died.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

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

constexpr int kSteps = 40;
constexpr int kMaxKillsOfARun = 12;
constexpr auto kPatience = std::chrono::seconds(60);

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

// A corpus that is the same each time, and a run file of a tiny model, whose best checkpoint is now
// the newest and now an older one.
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

// What a run is doing, from the list of its file calls that the preloaded library writes.
class PhaseLog {
 public:
  explicit PhaseLog(fs::path path) : path_(std::move(path)) {}

  void clear() {
    fs::remove(path_);
    file_ = {};
    rest_.clear();
    phase_ = Phase::kStart;
  }

  const fs::path& path() const { return path_; }

  // The phase after the last call of those that were made so far.
  Phase now() {
    if (file_.get() < 0) {
      file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    }
    std::array<char, 65536> bytes;
    ssize_t count = 0;
    while (file_.get() >= 0 && (count = ::read(file_.get(), bytes.data(), bytes.size())) > 0) {
      rest_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos;) {
      note(std::string_view(rest_).substr(begin, end - begin));
      begin = end + 1;
    }
    rest_.erase(0, begin);
    return phase_;
  }

 private:
  void note(std::string_view call) {
    const auto has = [&](std::string_view part) { return call.find(part) != std::string::npos; };
    const bool is_before_first_step = phase_ == Phase::kStart || phase_ == Phase::kRestore;
    const bool is_temporary = has("/.tmp-");
    if (call.starts_with("rename ") && has("/config.toml")) {
      phase_ = Phase::kStep;
    } else if (phase_ == Phase::kStart && call.starts_with("open ") && has("/step-") &&
               !is_temporary) {
      phase_ = Phase::kRestore;
    } else if (is_before_first_step) {
      return;
    } else if (call.starts_with("mkdir ") && is_temporary) {
      phase_ = Phase::kSave;
    } else if (call.starts_with("open ") && is_temporary && has("/manifest.json")) {
      phase_ = Phase::kPublish;
    } else if (call.starts_with("rename ") && has("/step-") && has("/.tmp-removed")) {
      phase_ = Phase::kPrune;
    } else if (call.starts_with("write ") && has("metrics.jsonl") &&
               (phase_ == Phase::kPublish || phase_ == Phase::kPrune)) {
      phase_ = Phase::kStep;
    }
  }

  fs::path path_;
  FileDescriptor file_;
  std::string rest_;  // of a line that is not whole yet
  Phase phase_ = Phase::kStart;
};

// A training process, or mpirun above several, with its output in a file.
class Training {
 public:
  Training(const std::vector<std::string>& argv, const fs::path& directory, const fs::path& log) {
    std::vector<char*> pointers;
    for (const std::string& word : argv) {
      pointers.push_back(const_cast<char*>(word.c_str()));
    }
    pointers.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      if (::chdir(directory.c_str()) == 0) {
        ::execvp(pointers.front(), pointers.data());
      }
      ::_exit(127);
    }
    TESSERA_REQUIRE(process_ > 0, ErrorCode::kDeviceError, "cannot start {}", argv.front());
  }

  ~Training() {
    if (process_ > 0 && !status_) {
      ::kill(process_, SIGKILL);
      wait();
    }
  }

  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  pid_t process() const { return process_; }

  bool has_ended() {
    if (!status_) {
      int status = 0;
      if (::waitpid(process_, &status, WNOHANG) == process_) {
        status_ = status;
      }
    }
    return status_.has_value();
  }

  // Errors: kTimeout.
  int wait() {
    const Clock::time_point begin = Clock::now();
    while (!has_ended()) {
      TESSERA_REQUIRE(Clock::now() - begin < kPatience, ErrorCode::kTimeout, "a run does not end");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return *status_;
  }

 private:
  pid_t process_ = -1;
  std::optional<int> status_;
};

// The processes of the program that mpirun, and what it started, have started.
std::vector<pid_t> ranks_below(pid_t process) {
  std::vector<pid_t> found;
  const std::string place = format("/proc/{0}/task/{0}/children", process);
  std::ifstream children(place);
  for (pid_t child = 0; children >> child;) {
    std::string name;
    std::getline(std::ifstream(format("/proc/{}/comm", child)), name);
    if (name == "tessera") {
      found.push_back(child);
    }
    const std::vector<pid_t> below = ranks_below(child);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

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

// The name of the best checkpoint; empty: the run has none yet.
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

// What a run came to.
struct Result {
  std::vector<std::string> rows;
  std::map<std::string, std::string> files;
  std::string best;
};

Result result_of(const fs::path& run) {
  return {.rows = metrics(run), .files = weights(run), .best = best(run)};
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
