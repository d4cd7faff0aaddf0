// Training speed and memory beside PyTorch, in one run: for each case both programs run alternately
// (A B A B), each in its best dtype with the same threads. Prints tokens/s, the ratio of medians,
// the share of the GEMM bound and the memory of both.
//
// usage: train_bench [--rounds=N] [--case=NAME] [--peer=no]
//        train_bench --peak=NAME:DTYPE     trains two steps and prints the process's peak memory

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/own_training.h"
#include "bench/peer_process.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/base/units.h"
#include "tessera/models/llama/llama.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/compile.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kThreads = 2;

struct Case {
  std::string name;
  LlamaConfig model;
  std::int64_t batch;
  std::int64_t seq;
  double target;

  double tokens() const { return static_cast<double>(batch * seq); }
};

std::vector<Case> cases() {
  return {{"134m",
           {.dim = 768, .layers = 12, .heads = 12, .kv_heads = 12, .ffn = 2048, .vocab = 32000},
           2,
           512,
           1.8},
          {"debug", llama_flavor("debug"), 1, 2048, 4.0}};
}

// Our side.
class Tessera {
 public:
  Tessera(const Case& test, DType dtype)
      : training_(test.model, test.batch, test.seq, dtype, kThreads) {}

  double step() { return training_.step(); }

  // Seconds by op name of one step, each instruction timed alone in its place in the step.
  std::vector<std::pair<std::string, double>> profile() {
    return training_.executor().profile_step();
  }

  // The step's matrix products alone, back to back, those of head and loss included: the bound that
  // the library sets.
  double gemm_seconds(const Case& test, DType dtype) {
    Program only = training_.program();
    for (Segment& segment : only.segments) {
      std::erase_if(segment.instructions, [](const Instruction& instruction) {
        return instruction.op->get_if<MatmulAttrs>() == nullptr;
      });
    }
    Executor products(only, training_.backend());
    const Program head_program = compile_forward(
        head_products(test, dtype), {.workspace_bytes = workspace_of(training_.backend())});
    Executor head(head_program, training_.backend());
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) {
      const Clock::time_point start = Clock::now();
      products.run_step();
      head.run_step();
      seconds.push_back(seconds_since(start));
    }
    return median({seconds.begin() + 1, seconds.end()});
  }

 private:
  // What cross_entropy multiplies: logits, hidden gradient and head gradient of every chunk of
  // rows.
  static Graph head_products(const Case& test, DType dtype) {
    GraphBuilder builder("head", dtype);
    const auto matrix = [](Dim rows, Dim columns, DType type) {
      return TensorType{.dtype = type, .dims = {std::move(rows), std::move(columns)}};
    };
    const Dim vocab{.name = "vocab", .bound = test.model.vocab};
    const Dim embed{.name = "embed", .bound = test.model.dim};
    const std::int64_t chunk = std::min(CrossEntropyAttrs{}.chunk, test.batch * test.seq);
    const Dim rows{.name = "rows", .bound = chunk};
    const Value head = builder.input("head", matrix(vocab, embed, dtype));
    Value total = builder.parameter("total", matrix(vocab, embed, DType::kF32), {});
    const Value state = total;
    for (std::int64_t row = 0; row < test.batch * test.seq; row += chunk) {
      const Value x = builder.input(format("x{}", row), matrix(rows, embed, dtype));
      const Value logits = matmul(x, head, {.transpose_b = true});
      const Value dlogits = builder.input(format("d{}", row), matrix(rows, vocab, dtype));
      builder.output(format("logits{}", row), logits);
      builder.output(format("hidden{}", row), matmul(dlogits, head, {.dtype = dtype}));
      total = builder.emit(make_op(MatmulAttrs{.transpose_a = true, .accumulate = true}),
                           {dlogits, x, total})[0];
    }
    builder.update(state, total);
    return builder.take();
  }

  OwnTraining training_;
};

std::int64_t peak_bytes_of_this_process() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view kKey = "VmHWM:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(kKey)) {
      return std::atoll(line.c_str() + kKey.size()) * 1024;
    }
  }
  return 0;
}

// A process of its own, as the peer is one, so that its peak is that of the case alone.
std::int64_t own_peak_bytes(const std::string& self, const Case& test, std::string_view dtype) {
  const std::string command = format("'{}' --peak={}:{}", self, test.name, dtype);
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  TESSERA_REQUIRE(pipe != nullptr, ErrorCode::kDeviceError, "cannot run {}", command);
  std::int64_t bytes = 0;
  const bool read = std::fscanf(pipe, "%" SCNd64, &bytes) == 1;
  TESSERA_REQUIRE(::pclose(pipe) == 0 && read, ErrorCode::kDeviceError, "{} failed", command);
  return bytes;
}

// The other side: the same step in Python.
class Peer {
 public:
  Peer(const Case& test, std::string_view dtype)
      : process_(TESSERA_SOURCE_DIR "/bench/peers/torch_llama.py",
                 {{"dim", test.model.dim},
                  {"layers", test.model.layers},
                  {"heads", test.model.heads},
                  {"ffn", test.model.ffn},
                  {"vocab", test.model.vocab},
                  {"batch", test.batch},
                  {"seq", test.seq},
                  {"threads", std::int64_t{kThreads}}},
                 dtype) {}

  double step() {
    const nlohmann::json result = process_.ask({{"steps", 1}});
    peak_bytes_ = result.at("peak_bytes");
    return result.at("seconds").at(0);
  }

  std::int64_t peak_bytes() const { return peak_bytes_; }

 private:
  PeerProcess process_;
  std::int64_t peak_bytes_ = 0;
};

struct Side {
  std::string dtype;
  std::vector<double> seconds;
  std::int64_t memory_bytes = 0;
};

void print_side(const char* name, const Case& test, const Side& side) {
  std::printf("  %-8s %-5s %8.1f tokens/s   median step %.3f s   peak memory %s\n",
              name,
              side.dtype.c_str(),
              test.tokens() / median(side.seconds),
              median(side.seconds),
              format_bytes(side.memory_bytes).c_str());
}

const Side& best(const std::vector<Side>& sides) {
  return *std::min_element(sides.begin(), sides.end(), [](const Side& a, const Side& b) {
    return median(a.seconds) < median(b.seconds);
  });
}

void print_profile(Tessera& own) {
  auto rows = own.profile();
  const double total = std::accumulate(
      rows.begin(), rows.end(), 0.0, [](double sum, const auto& row) { return sum + row.second; });
  for (const auto& [op, seconds] : rows) {
    std::printf("    %-28s %8.2f ms  %5.1f %%\n", op.c_str(), seconds * 1e3, 100 * seconds / total);
  }
}

void run_case(const std::string& self, const Case& test, int rounds, bool with_peer) {
  std::printf("%s: batch %ld, sequence %ld, %d threads\n",
              test.name.c_str(),
              static_cast<long>(test.batch),
              static_cast<long>(test.seq),
              kThreads);
  std::vector<Side> own_sides;
  std::vector<Side> peer_sides;
  for (const auto& [text, dtype] : {std::pair{"f32", DType::kF32}, {"bf16", DType::kBF16}}) {
    Side own{.dtype = text, .seconds = {}};
    Side peer{.dtype = text, .seconds = {}};
    Tessera tessera(test, dtype);
    tessera.step();
    std::unique_ptr<Peer> torch = with_peer ? std::make_unique<Peer>(test, text) : nullptr;
    if (torch) {
      torch->step();
    }
    for (int round = 0; round < rounds; ++round) {
      own.seconds.push_back(tessera.step());
      own.seconds.push_back(tessera.step());
      if (torch) {
        peer.seconds.push_back(torch->step());
      }
    }
    own.memory_bytes = own_peak_bytes(self, test, text);
    print_side("tessera", test, own);
    const double gemm = tessera.gemm_seconds(test, dtype);
    std::printf(
        "           GEMMs alone %.3f s: %.2f of the step\n", gemm, gemm / median(own.seconds));
    print_profile(tessera);
    if (torch) {
      peer.memory_bytes = torch->peak_bytes();
      print_side("pytorch", test, peer);
      peer_sides.push_back(peer);
    }
    own_sides.push_back(own);
  }
  if (with_peer) {
    std::printf("  ratio of the best modes (%s / %s): %.2f   target %.1f\n",
                best(own_sides).dtype.c_str(),
                best(peer_sides).dtype.c_str(),
                median(best(peer_sides).seconds) / median(best(own_sides).seconds),
                test.target);
    std::printf(
        "  peak memory of the process over PyTorch's, in the best modes: %.2f   target 0.6\n",
        static_cast<double>(best(own_sides).memory_bytes) /
            static_cast<double>(best(peer_sides).memory_bytes));
  }
}

// What a process of own_peak_bytes() does: NAME:DTYPE.
void print_peak(std::string_view text) {
  const std::size_t colon = text.find(':');
  for (const Case& test : cases()) {
    if (test.name == text.substr(0, colon)) {
      Tessera own(test, text.substr(colon + 1) == "bf16" ? DType::kBF16 : DType::kF32);
      own.step();
      own.step();
    }
  }
  std::printf("%" PRId64 "\n", peak_bytes_of_this_process());
}

void run_benchmarks(std::span<char*> arguments) {
  int rounds = 5;
  bool with_peer = true;
  std::string only;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::size_t equals = argument.find('=');
    const std::string value(argument.substr(equals == std::string_view::npos ? 0 : equals + 1));
    if (argument.starts_with("--peak=")) {
      print_peak(value);
      return;
    }
    if (argument.starts_with("--rounds=")) {
      rounds = std::atoi(value.c_str());
    } else if (argument.starts_with("--case=")) {
      only = value;
    } else if (argument == "--peer=no") {
      with_peer = false;
    }
  }
  for (const Case& test : cases()) {
    if (only.empty() || test.name == only) {
      run_case(arguments[0], test, rounds, with_peer);
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::run_benchmarks({argv, static_cast<std::size_t>(argc)});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
