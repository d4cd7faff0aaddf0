// What training keeps of its speed beside other work: the debug Llama, batch 4, sequence 512, f32,
// on two cores, alone and beside one and two processes that spin. These are of the session that the
// run is of, or of one other: where Linux groups tasks by session (autogroup), each session has an
// equal share of a core that both want. Measured are two threads, the same with OpenMP told to be
// passive, two ranks of a thread each, and PyTorch.
//
// Each round measures a side alone and then in each company; printed are the medians of speeds, and
// of ratios to the speed alone in the same round. Fair are 2/3 beside one and 1/2 beside two.
//
// usage: busy_bench [--rounds=N] [--steps=N] [--side=NAME]
//        busy_bench --serve=threads|ranks           a side: answers lines of stdin

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/own_training.h"
#include "bench/peer_process.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

constexpr int kCores = 2;
constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kSequence = 512;

LlamaConfig model() {
  return llama_flavor("debug");
}

// What else the machine does.
struct Company {
  int spinners = 0;
  bool other_session = false;  // all of them in one

  std::string name() const {
    return spinners == 0 ? "alone"
                         : format("beside {} of {} session",
                                  spinners == 1 ? "one" : "two",
                                  other_session ? "another" : "its own");
  }
};

// Processes that spin until this is destroyed, or its process ends.
class Spinners {
 public:
  explicit Spinners(const Company& company) {
    if (company.spinners == 0) {
      return;
    }
    leader_ = ::fork();
    TESSERA_REQUIRE(leader_ >= 0, ErrorCode::kDeviceError, "cannot start a process");
    if (leader_ == 0) {
      company.other_session ? ::setsid() : ::setpgid(0, 0);
      spin(company.spinners);
    }
    ::usleep(100'000);
  }

  ~Spinners() {
    if (leader_ > 0) {
      ::kill(-leader_, SIGKILL);
      ::waitpid(leader_, nullptr, 0);
    }
  }

  Spinners(const Spinners&) = delete;
  Spinners& operator=(const Spinners&) = delete;

 private:
  [[noreturn]] static void spin(int processes) {
    for (int i = 1; i < processes && ::fork() != 0; ++i) {
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile bool spins = true; spins;) {
    }
    std::_Exit(0);
  }

  pid_t leader_ = 0;
};

// Seconds of each of `steps` steps on two ranks; one more at first touches memory.
std::vector<double> steps_of_ranks(std::int64_t steps) {
  const RankRun run = {.model = model(),
                       .mesh = virtual_mesh(kCores),
                       .global_batch = kBatch,
                       .sequence_length = kSequence,
                       .steps = steps + 1};
  const std::vector<double> seconds = run_ranks(run).step_seconds;
  return {seconds.begin() + 1, seconds.end()};
}

// The process that PeerProcess talks to.
void serve(std::string_view side) {
  std::unique_ptr<OwnTraining> training;
  if (side == "threads") {
    training = std::make_unique<OwnTraining>(model(), kBatch, kSequence, DType::kF32, kCores);
    training->step();
  }
  std::cout << "{}\n" << std::flush;
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json question = nlohmann::json::parse(line);
    if (question.contains("quit")) {
      return;
    }
    const std::int64_t steps = question.at("steps");
    std::vector<double> seconds;
    if (training) {
      for (std::int64_t i = 0; i < steps; ++i) {
        seconds.push_back(training->step());
      }
    } else {
      seconds = steps_of_ranks(steps);
    }
    std::cout << nlohmann::json{{"seconds", seconds}}.dump() << '\n' << std::flush;
  }
}

struct Side {
  std::string name;
  std::vector<std::string> command;  // empty: PyTorch
};

std::unique_ptr<PeerProcess> start(const Side& side) {
  if (!side.command.empty()) {
    return std::make_unique<PeerProcess>(side.name, side.command);
  }
  return std::make_unique<PeerProcess>(
      TESSERA_SOURCE_DIR "/bench/peers/torch_llama.py",
      std::vector<std::pair<const char*, std::int64_t>>{{"dim", model().dim},
                                                        {"layers", model().layers},
                                                        {"heads", model().heads},
                                                        {"ffn", model().ffn},
                                                        {"vocab", model().vocab},
                                                        {"batch", kBatch},
                                                        {"seq", kSequence},
                                                        {"threads", kCores}},
      "f32");
}

double tokens_per_second(PeerProcess& process, int steps) {
  const std::vector<double> seconds = process.ask({{"steps", steps}}).at("seconds");
  return static_cast<double>(steps * kBatch * kSequence) /
         std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

void measure(const Side& side, int rounds, int steps) {
  const std::vector<Company> companies = {{0, false}, {1, false}, {1, true}, {2, false}, {2, true}};
  std::vector<std::vector<double>> speeds(companies.size());
  std::vector<std::vector<double>> ratios(companies.size());
  const std::unique_ptr<PeerProcess> process = start(side);
  process->ask({{"steps", 1}});
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < companies.size(); ++i) {
      const Spinners spinners(companies[i]);
      speeds[i].push_back(tokens_per_second(*process, steps));
      ratios[i].push_back(speeds[i].back() / speeds[0].back());
    }
  }
  std::printf("%s\n", side.name.c_str());
  for (std::size_t i = 0; i < companies.size(); ++i) {
    const char* const targets[] = {"", "   target 0.55", "   target 0.40"};
    std::printf("  %-30s %8.0f tokens/s   %.2f%s\n",
                companies[i].name().c_str(),
                median(speeds[i]),
                median(ratios[i]),
                targets[companies[i].spinners]);
  }
}

void run_benchmark(std::span<char*> arguments) {
  int rounds = 5;
  int steps = 3;
  std::string only;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::string value(argument.substr(std::min(argument.find('='), argument.size() - 1) + 1));
    if (argument.starts_with("--serve=")) {
      serve(value);
      return;
    }
    if (argument.starts_with("--rounds=")) {
      rounds = std::max(1, std::atoi(value.c_str()));
    } else if (argument.starts_with("--steps=")) {
      steps = std::max(1, std::atoi(value.c_str()));
    } else if (argument.starts_with("--side=")) {
      only = value;
    }
  }
  const std::string self = arguments[0];
  const std::vector<Side> sides = {
      {"threads", {self, "--serve=threads"}},
      {"passive", {"/usr/bin/env", "OMP_WAIT_POLICY=passive", self, "--serve=threads"}},
      {"ranks", {self, "--serve=ranks"}},
      {"pytorch", {}}};
  for (const Side& side : sides) {
    if (only.empty() || side.name == only) {
      measure(side, rounds, steps);
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::run_benchmark({argv, static_cast<std::size_t>(argc)});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
