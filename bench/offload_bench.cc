// What lies in a file beside what computes.
//
// 1. The update of a model whose optimizer state is in a file, beside the same update in memory and
//    the disk alone: two threads that read and write the same bytes in the same pieces, past the
//    page cache. The bar: the longer of the disk's time at 0.85 of its speed and of the update in
//    memory, times 1.1.
// 2. Forward and backward with parameters, or activations, in a file: what of the disk's time for
//    what they move is hidden behind what computes.
// Figures are of the disk of --dir, which differ from machine to machine: ratios are what counts.
//
// usage: offload_bench [--dir=DIRECTORY] [--steps=N] [--layers=N] [--tokens=N]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/direct_file.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/machine.h"
#include "tessera/base/median.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/space_traffic.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

struct Options {
  std::filesystem::path dir = ".";
  int steps = 5;
  std::int64_t layers = 12;
  std::int64_t tokens = 512;
};

struct Seconds {
  double update = 0;
  double rest = 0;  // forward and backward
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  void run() {
    const Seconds here = measure({}, "in memory");
    const OffloadOptions optimizer = {.optimizer = Space::kFile};
    const Seconds there = measure(optimizer, "optimizer in a file");
    const SpaceTraffic traffic = space_traffic(step(optimizer), Space::kFile);
    const double raw = disk_seconds(traffic);
    const double bar = 1.1 * std::max(raw / 0.85, here.update);
    std::printf("  the disk alone, %.2f GB read and %.2f GB written: %.3f s, %.2f GB/s\n",
                1e-9 * static_cast<double>(traffic.fetched),
                1e-9 * static_cast<double>(traffic.stored),
                raw,
                1e-9 * static_cast<double>(traffic.fetched + traffic.stored) / raw);
    std::printf("  update over the bar of %.3f s: %.2f\n\n", bar, there.update / bar);
    hidden({.parameters = Space::kFile}, "parameters in a file", here);
    hidden({.activations = Space::kFile}, "activations in a file", here);
  }

 private:
  Program step(const OffloadOptions& offload) const {
    CompileOptions options;
    options.offload = offload;
    options.workspace_bytes = workspace_of(*backend_);
    return compile_training(graph(), options);
  }

  Graph graph() const {
    return training_graph(describe_llama({.dim = 768,
                                          .layers = options_.layers,
                                          .heads = 12,
                                          .kv_heads = 12,
                                          .ffn = 2048,
                                          .vocab = 32000}),
                          1,
                          options_.tokens,
                          DType::kF32);
  }

  // Medians over the steps after the first.
  Seconds measure(const OffloadOptions& offload, const char* what) {
    const Program program = step(offload);
    ProgramArenas arenas = {.device = backend_->allocate(program.arena_bytes),
                            .device_bytes = program.arena_bytes};
    if (program.file_bytes > 0) {
      arenas.file = std::make_shared<FileArena>(options_.dir, program.file_bytes);
    }
    Executor executor(program, *backend_, arenas);
    initialize_state(executor, parameter_inits(graph()), 42);
    for (const Binding& input : program.inputs) {
      std::ranges::fill(executor.bytes(input), std::byte{0});
    }
    TrainingStep training(executor);
    executor.stamp_steps();
    std::vector<double> updates;
    std::vector<double> rests;
    for (int i = 0; i <= options_.steps; ++i) {
      training.run({.num_labels = options_.tokens, .learning_rate = 1e-4, .update_number = i + 1});
      if (i > 0) {
        const Seconds seconds = parts(executor);
        updates.push_back(seconds.update);
        rests.push_back(seconds.rest);
      }
    }
    const Seconds result = {.update = median(updates), .rest = median(rests)};
    std::printf("%-24s arena %8.1f MB  file %8.1f MB  update %.3f s  forward and backward %.3f s\n",
                what,
                1e-6 * static_cast<double>(program.arena_bytes),
                1e-6 * static_cast<double>(program.file_bytes),
                result.update,
                result.rest);
    return result;
  }

  static Seconds parts(const Executor& executor) {
    const Program& program = executor.program();
    std::int64_t begin = INT64_MAX;
    std::int64_t update = INT64_MAX;
    std::int64_t end = 0;
    for (std::size_t stream = 0; stream < program.streams.size(); ++stream) {
      for (const StepStamp& stamp : executor.stamps().of_stream(stream)) {
        const IssueStep& step = executor.order().steps[stamp.step];
        begin = std::min(begin, stamp.begin);
        end = std::max(end, stamp.end);
        if (program[call_of(program, step).segment].code.action == Action::kUpdate) {
          update = std::min(update, stamp.begin);
        }
      }
    }
    return {.update = 1e-9 * static_cast<double>(end - update),
            .rest = 1e-9 * static_cast<double>(update - begin)};
  }

  // Of as many bytes both ways, as two streams move them.
  double disk_seconds(const SpaceTraffic& traffic) {
    constexpr std::int64_t kPiece = std::int64_t{32} << 20;  // of two moments
    FileArena arena(options_.dir, std::max(traffic.fetched, traffic.stored));
    PageBuffer memory(static_cast<std::size_t>(2 * kPiece));
    std::memset(memory.bytes().data(), 1, memory.bytes().size());
    const std::span<std::byte> known = memory.bytes();
    FileArena::Queue reads(arena, {&known, 1});
    FileArena::Queue writes(arena, {&known, 1});
    const auto view = [](std::byte* data, std::int64_t count) {
      View bytes = {.dtype = DType::kU8, .num_dims = 1};
      bytes.data = data;
      bytes.sizes[0] = count;
      bytes.strides[0] = 1;
      return bytes;
    };
    const auto each = [&](std::int64_t bytes, std::size_t part, const auto& move) {
      for (std::int64_t at = 0; at < bytes; at += kPiece) {
        const std::int64_t count = std::min(kPiece, bytes - at);
        move(view(arena.data() + at, count),
             view(memory.bytes().data() + static_cast<std::int64_t>(part) * kPiece, count));
      }
    };
    const auto write = [&](std::int64_t bytes) {
      each(bytes, 1, [&](const View& file, const View& here) {
        writes.store({&here, 1}, {&file, 1});
      });
    };
    write(std::max(traffic.fetched, traffic.stored));  // blocks that are not written are not read
    std::vector<double> seconds;
    for (int i = 0; i < options_.steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      std::jthread writer([&] { write(traffic.stored); });
      each(traffic.fetched, 0, [&](const View& file, const View& here) {
        reads.fetch({&file, 1}, {&here, 1});
      });
      writer.join();
      seconds.push_back(seconds_since(start));
    }
    return median(seconds);
  }

  void hidden(const OffloadOptions& offload, const char* what, const Seconds& here) {
    const Seconds there = measure(offload, what);
    const Program program = step(offload);
    SpaceTraffic moved;
    for (std::size_t i = 0; i < program.segments.size(); ++i) {
      if (program.segments[i].code.action != Action::kUpdate) {
        Program part = program;
        for (std::size_t other = 0; other < part.segments.size(); ++other) {
          if (other != i) {
            part.segments[other].instructions.clear();
          }
        }
        const SpaceTraffic own = space_traffic(part, Space::kFile);
        moved.fetched += own.fetched;
        moved.stored += own.stored;
      }
    }
    const double raw = disk_seconds(moved);
    std::printf("  the disk alone: %.3f s, %.2f of what computes; hidden: %.0f %%\n",
                raw,
                raw / here.rest,
                100.0 * (1.0 - std::max(0.0, there.rest - here.rest) / raw));
  }

  Options options_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(static_cast<int>(usable_cores()));
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string value(word.substr(std::min(word.size(), word.find('=') + 1)));
    if (word.starts_with("--dir=")) {
      options.dir = value;
    } else if (word.starts_with("--steps=")) {
      options.steps = std::stoi(value);
    } else if (word.starts_with("--layers=")) {
      options.layers = std::stoi(value);
    } else if (word.starts_with("--tokens=")) {
      options.tokens = std::stoi(value);
    }
  }
  return options;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    tessera::Bench(tessera::parse(argc, argv)).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "offload_bench: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
