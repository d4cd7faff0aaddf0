// The GPU's kernels, each alone in tensors much larger than its caches, against what the GPU can do
// and against PyTorch's compiled forms of them, in turns (A B A B, medians), on random data.
//
// The ceilings are measured first: a product of 8192 x 8192 x 8192 in bf16 by the fastest of
// cuBLASLt's algorithms, and a copy in device memory, bytes read and written both counted. The
// bytes of an op are the least that it can move: each operand read once, each result written once.
// What products of 8-bit floats reach is a share of the bf16 product, too, and may be more than 1.
//
// usage: gpu_core_bench [--filter=REGEX] [--peer=SCRIPT] [--device=cpu]
//        gpu_core_bench --kernels=NAME   how long our own kernels of an op take, as a JSON object
//   --filter  measures ops whose names have a part like that; a regular expression
//   --peer    bench/peers/torch_ops_gpu.py; without it PyTorch is left out
//   --device  cpu runs small shapes there, without ceilings: to try the program itself

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <regex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/child_process.h"
#include "bench/gpu_activity.h"
#include "bench/gpu_ceilings.h"
#include "bench/gpu_core_case.h"
#include "bench/peer_process.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/devices.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/machine.h"
#include "tessera/base/median.h"
#include "tessera/ir/view.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kAlignment = 4096;

std::int64_t rounded_up(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T>
void fill_with(std::span<std::byte> bytes, std::int64_t count, const auto& value_at) {
  auto* const values = reinterpret_cast<T*>(bytes.data());
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] = value_at(i);
  }
}

// Values from a generator whose low bits are as random as the others; floats of -1 to 1, and of 8
// bits any that are finite.
void fill(const Tensor& tensor, std::span<std::byte> bytes) {
  std::uint64_t state = 0x853c49e6748fea9bU;
  const auto next = [&] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state >> 33U);
  };
  const auto real = [&](std::int64_t) {
    constexpr float kHalf = 1073741824.0F;
    return tensor.fill == Fill::kValue ? static_cast<float>(tensor.value)
                                       : static_cast<float>(next()) / kHalf - 1.0F;
  };
  const std::int64_t count = tensor.elements();
  if (tensor.dtype == DType::kF32) {
    fill_with<float>(bytes, count, real);
  } else if (tensor.dtype == DType::kBF16) {
    fill_with<BFloat16>(bytes, count, [&](std::int64_t i) { return to_bfloat16(real(i)); });
  } else if (is_float8(tensor.dtype)) {
    constexpr std::uint32_t kMost = 0x78;  // below it all codes of both formats are finite
    fill_with<std::uint8_t>(bytes, count, [&](std::int64_t) {
      const std::uint32_t random = next();
      return static_cast<std::uint8_t>((random & 0x80U) | (random >> 8U) % kMost);
    });
  } else if (tensor.dtype == DType::kI32) {
    fill_with<std::int32_t>(bytes, count, [&](std::int64_t i) {
      const auto limit = static_cast<std::uint32_t>(tensor.value);
      return static_cast<std::int32_t>(tensor.fill == Fill::kPositions ? i
                                       : tensor.fill == Fill::kIds     ? next() % limit
                                                                       : 0);
    });
  }
}

View view_of(const Tensor& tensor, std::byte* data) {
  View view = {.data = data, .dtype = tensor.dtype};
  view.num_dims = static_cast<std::int32_t>(tensor.sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = tensor.sizes.size(); i > 0; --i) {
    view.sizes[i - 1] = tensor.sizes[i - 1];
    view.strides[i - 1] = stride;
    stride *= tensor.sizes[i - 1];
  }
  return view;
}

// An op in memory of the device.
class Bound {
 public:
  Bound(Backend& backend, const Case& test) : backend_(backend), op_(test.op) {
    std::int64_t bytes = 0;
    const auto place = [&](const Tensor& tensor) {
      const std::int64_t at = bytes;
      bytes += rounded_up(tensor.bytes());
      return at;
    };
    std::vector<std::int64_t> in;
    std::vector<std::int64_t> out;
    for (const Tensor& each : test.in) {
      in.push_back(place(each));
      in_.push_back(view_of(each, nullptr));
    }
    for (const Tensor& each : test.out) {
      out.push_back(each.over >= 0 ? in[static_cast<std::size_t>(each.over)] : place(each));
      out_.push_back(view_of(each, nullptr));
    }
    const std::int64_t workspace = backend.workspace_bytes(*op_, in_, out_);
    const std::int64_t workspace_at = bytes;
    arena_ = backend.allocate(bytes + rounded_up(workspace));
    for (std::size_t i = 0; i < in.size(); ++i) {
      fill(test.in[i], {arena_->host() + in[i], static_cast<std::size_t>(test.in[i].bytes())});
      arena_->to_device(in[i], test.in[i].bytes());
      in_[i].data = arena_->data() + in[i];
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      out_[i].data = arena_->data() + out[i];
    }
    workspace_ = {arena_->data() + workspace_at, static_cast<std::size_t>(workspace)};
  }

  // Seconds of one of `runs` runs.
  double run(std::int64_t runs) {
    backend_.synchronize();
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < runs; ++i) {
      backend_.run(*op_, {.in = in_, .out = out_, .workspace = workspace_}, StreamId{0});
    }
    backend_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(runs);
  }

 private:
  Backend& backend_;
  OpRef op_;
  std::unique_ptr<Arena> arena_;
  std::vector<View> in_;
  std::vector<View> out_;
  std::span<std::byte> workspace_;
};

// How often to run what takes so long, for samples of a twentieth of a second.
std::int64_t runs_for(double seconds) {
  constexpr double kSample = 0.05;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(kSample / seconds), 1, 500);
}

// Our seconds and the peer's, in turns; the peer's are 0 where there is none.
struct Times {
  double own = 0;
  double peer = 0;
};

using Peer = std::unique_ptr<PeerProcess>;

// The peer's seconds of one run; 0 where it has no such op. What it fails with ends it, not us.
double ask(Peer& peer, const std::string& name, std::int64_t runs) {
  try {
    return peer == nullptr ? 0.0
                           : peer->ask({{"op", name}, {"runs", runs}}).at("seconds").get<double>();
  } catch (const std::exception& error) {
    std::printf("  no more of PyTorch: %s\n", error.what());
    peer = nullptr;
    return 0;
  }
}

Times measure(Bound& bound, const std::string& name, Peer& peer) {
  constexpr int kRounds = 5;
  bound.run(1);
  const std::int64_t own_runs = runs_for(bound.run(1));
  const double peer_seconds = ask(peer, name, 1);
  std::vector<double> own;
  std::vector<double> other;
  for (int round = 0; round < kRounds; ++round) {
    own.push_back(bound.run(own_runs));
    if (peer_seconds > 0) {
      other.push_back(ask(peer, name, runs_for(peer_seconds)));
    }
  }
  return {.own = median(own), .peer = other.empty() ? 0.0 : median(other)};
}

void print_row(const Case& test, const Times& times, const Ceilings& ceilings) {
  const double bytes = test.bytes < 0 ? tensor_bytes(test.in) + tensor_bytes(test.out) : test.bytes;
  std::string text = format("  {:<30}{:9.3f} ms", test.name, times.own * 1e3);
  text += bytes > 0 ? format("{:8.0f} GB/s", bytes / times.own / 1e9) : "             ";
  text +=
      test.flop > 0 ? format("{:7.0f} TFLOP/s", test.flop / times.own / 1e12) : "               ";
  if (ceilings.copy_bytes_per_s > 0) {
    const double bound =
        bytes / ceilings.copy_bytes_per_s + test.flop / ceilings.product_flop_per_s;
    text += format("   {:4.2f} of the ceiling", bound / times.own);
    text += test.target > 0 ? format(" (target {:.2f})", test.target) : "              ";
  }
  if (times.peer > 0) {
    text += format("   {:5.2f} x PyTorch", times.peer / times.own);
  }
  std::printf("%s\n", text.c_str());
}

// Seconds of our own kernels in one run of an op, by CUPTI, in a process of its own: it has to be
// there before anything else is. 0 where it cannot.
double kernel_seconds(const char* self, const std::string& name) {
  constexpr int kAtMost = 60;
  try {
    const nlohmann::json found = output_of(format("'{}' --kernels={}", self, name), kAtMost);
    if (found.contains("seconds")) {
      return found.at("seconds");
    }
    std::printf("    %s\n", found.at("problem").get<std::string>().c_str());
  } catch (const std::exception& error) {
    std::printf("    %s\n", error.what());
  }
  return 0;
}

// The softmax of the loss, whose kernels are our own. Without CUPTI what is left of the loss
// without its products, timed alone: a GPU that slows down for its power may take longer or shorter
// for them in their place, which makes a much larger share of what is left.
void print_softmax(Backend& backend,
                   const Shape& shape,
                   double seconds,
                   const Ceilings& ceilings,
                   const char* self) {
  const auto chunks = static_cast<double>(shape.rows) / static_cast<double>(loss_chunk(shape));
  for (const Case& product : loss_products(shape)) {
    Bound bound(backend, product);
    Peer none;
    const Times times = measure(bound, product.name, none);
    print_row(product, times, ceilings);
    const bool is_sum = product.out.front().over >= 0;
    const bool is_first = product.name.ends_with("first");
    seconds -= (is_first ? 1 : is_sum ? chunks - 1 : chunks) * times.own;
  }
  const double measured = ceilings.copy_bytes_per_s > 0 ? kernel_seconds(self, "cross_entropy") : 0;
  if (measured <= 0 && seconds <= 0) {
    std::printf("    softmax: not measured: the products alone take as long as the whole\n");
    return;
  }
  Case softmax = {measured > 0 ? "  softmax: our kernels" : "  softmax: about what is left",
                  nullptr,
                  {},
                  {},
                  0.85};
  seconds = measured > 0 ? measured : seconds;
  softmax.bytes = softmax_bytes(shape);
  print_row(softmax, {.own = seconds, .peer = 0}, ceilings);
}

struct Options {
  std::regex filter{""};
  std::string peer;
  std::string kernels;
  bool on_cpu = false;
};

// On the GPU as a run with run.time_gemms has it.
std::unique_ptr<Backend> make_backend(bool on_cpu) {
  DeviceOptions options;
  if (const auto cache = user_cache_directory()) {
    options.algorithm_files = {*cache / "gemms.txt"};
  }
  return on_cpu ? make_cpu_backend(1) : make_device_backend(0, 1, options);
}

nlohmann::json measure_kernels(const std::string& name) {
  GpuActivity activity;
  const std::unique_ptr<Backend> backend = make_backend(false);
  for (const Case& test : all_cases(Shape())) {
    if (test.name == name) {
      constexpr int kRuns = 5;
      Bound bound(*backend, test);
      bound.run(2);
      activity.restart();
      bound.run(kRuns);
      const std::optional<double> seconds = activity.own_kernel_seconds();
      return seconds ? nlohmann::json{{"seconds", *seconds / kRuns}}
                     : nlohmann::json{{"problem", activity.problem()}};
    }
  }
  fail(ErrorCode::kInvalidConfig, "--kernels={}: there is no such op", name);
}

Peer start_peer(const Options& options) {
  try {
    return options.peer.empty()
               ? nullptr
               : std::make_unique<PeerProcess>(options.peer.c_str(),
                                               std::vector<std::pair<const char*, std::int64_t>>{
                                                   {"small", options.on_cpu ? 1 : 0}},
                                               "bf16");
  } catch (const std::exception& error) {
    std::printf("without PyTorch: %s\n", error.what());
    return nullptr;
  }
}

// Whether all could be measured.
bool run_benchmarks(const Options& options, const char* self) {
  if (!options.kernels.empty()) {
    std::printf("%s\n", measure_kernels(options.kernels).dump().c_str());
    return true;
  }
  const std::string problem = options.on_cpu ? "" : find_devices().problem;
  TESSERA_REQUIRE(problem.empty(), ErrorCode::kInvalidConfig, "no GPU to measure: {}", problem);
  Ceilings ceilings;
  if (!options.on_cpu) {
    ceilings = measure_ceilings();
    std::printf("ceilings: %.0f TFLOP/s (8192^3, bf16), %.0f GB/s (copy)\n",
                ceilings.product_flop_per_s / 1e12,
                ceilings.copy_bytes_per_s / 1e9);
  }
  const std::unique_ptr<Backend> backend = make_backend(options.on_cpu);
  Peer peer = start_peer(options);
  bool is_whole = true;
  const Shape shape = options.on_cpu ? kSmall : Shape();
  for (const Case& test : all_cases(shape)) {
    if (!std::regex_search(test.name, options.filter)) {
      continue;
    }
    try {
      Times times;
      {
        Bound bound(*backend, test);
        times = measure(bound, test.name, peer);
      }
      print_row(test, times, ceilings);
      if (test.name == "cross_entropy") {
        print_softmax(*backend, shape, times.own, ceilings, self);
      }
    } catch (const std::exception& error) {
      std::printf("  %-30s failed: %s\n", test.name.c_str(), error.what());
      is_whole = false;
    }
  }
  return is_whole && (options.peer.empty() || peer != nullptr);
}

Options parse(std::span<char*> arguments) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const std::size_t equals = argument.find('=');
    const std::string_view key = argument.substr(0, equals);
    const std::string value(argument.substr(std::min(equals, argument.size() - 1) + 1));
    TESSERA_REQUIRE(
        key == "--filter" || key == "--peer" || key == "--kernels" || argument == "--device=cpu",
        ErrorCode::kInvalidConfig,
        "{}: expected --filter=REGEX, --peer=SCRIPT, --kernels=NAME or --device=cpu",
        argument);
    if (key == "--filter") {
      try {
        options.filter = value;
      } catch (const std::regex_error& error) {
        fail(ErrorCode::kInvalidConfig, "--filter={}: {}", value, error.what());
      }
    }
    options.peer = key == "--peer" ? value : options.peer;
    options.kernels = key == "--kernels" ? value : options.kernels;
    options.on_cpu = options.on_cpu || key == "--device";
  }
  return options;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return tessera::run_benchmarks(tessera::parse({argv, static_cast<std::size_t>(argc)}), argv[0])
             ? 0
             : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
