// What a sliding window saves of attention's time, and what a soft cap of scores costs: forward and
// backward with one, beside the same without, in turns (A B A B, medians), against its share of the
// pairs of queries and keys that are seen; a cap's is 1. 4,096 tokens, 8 heads of 64 on 2 key/value
// heads, bf16 and f32.
//
// Then what context ranks have to do that share these tokens (parallel.context): CPU seconds of
// forward and backward of each rank's part, on one thread, the most beside the mean, and the same
// of the pairs that they see, for zigzag parts and for runs.
//
// usage: attention_bench [--rounds=N] [--threads=N]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "bench/cpu_seconds.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/half.h"
#include "tessera/base/median.h"
#include "tessera/base/random.h"
#include "tessera/mesh/context_order.h"
#include "tessera/passes/compile.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

constexpr std::int64_t kTokens = 4096;

using Positions = std::vector<std::int32_t>;

// Where queries and keys stand in a sequence.
struct Tokens {
  Positions queries;
  Positions keys;
};

// Those of a rank, of all.
Tokens tokens_of(std::int64_t ranks, std::int64_t rank, ContextBalance balance) {
  Positions keys = context_order(kTokens, ranks, balance);
  const auto first = keys.begin() + rank * kTokens / ranks;
  return {.queries = Positions(first, first + kTokens / ranks), .keys = keys};
}

Tokens all_tokens() {
  return tokens_of(1, 0, ContextBalance::kNone);
}

// A program of one attention, or of its gradient.
class Attention {
 public:
  // `attributes` beside the scale: ", window=512".
  Attention(Backend& backend,
            DType dtype,
            bool backward,
            std::string_view attributes,
            const Tokens& tokens = all_tokens())
      : program_(compile_forward(graph(dtype, backward, attributes, tokens),
                                 {.workspace_bytes = workspace_of(backend)})),
        executor_(program_, backend) {
    for (const Binding& input : program_.inputs) {
      fill(input, tokens);
    }
  }

  // Of one thread that computes all.
  double cpu_seconds() {
    const double before = tessera::cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    executor_.run_step();
    return tessera::cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
  }

  double seconds() {
    const auto start = std::chrono::steady_clock::now();
    executor_.run_step();
    return seconds_since(start);
  }

 private:
  static Graph graph(DType dtype,
                     bool backward,
                     std::string_view attributes,
                     const Tokens& tokens) {
    const std::string_view t = name(dtype);
    const std::size_t queries = tokens.queries.size();
    const std::size_t keys = tokens.keys.size();
    const std::string q = fmt::format("{}[batch=1, seq={}, heads=8, head_dim=64]", t, queries);
    const std::string k = fmt::format("{}[batch=1, keys={}, kv_heads=2, head_dim=64]", t, keys);
    const std::string lse = fmt::format("f32[batch=1, heads=8, seq={}]", queries);
    const std::string attrs = fmt::format("{{scale=0.125{}}}", attributes);
    std::string text = fmt::format(
        "graph \"attention\" {{\n  %0: {0} = input \"q\"\n  %1: {1} = input \"k\"\n"
        "  %2: {1} = input \"v\"\n  %3: i32[batch=1, seq={2}] = input \"positions\"\n"
        "  %4: i32[batch=1, seq={2}] = input \"documents\"\n"
        "  %5: i32[batch=1, keys={3}] = input \"key_positions\"\n"
        "  %6: i32[batch=1, keys={3}] = input \"key_documents\"\n",
        q,
        k,
        queries,
        keys);
    if (backward) {
      text += fmt::format(
          "  %7: {0} = input \"dout\"\n  %8: {0} = input \"o\"\n  %9: {1} = input \"lse\"\n"
          "  %10: {0}, %11: {2}, %12: {2} = attention_backward {3}(%7, %0, %1, %2, %8, %9, %3, %5, "
          "%4, %6) @forward\n  output \"dq\" = %10\n  output \"dk\" = %11\n  output \"dv\" = "
          "%12\n}}",
          q,
          lse,
          k,
          attrs);
    } else {
      text += fmt::format(
          "  %7: {}, %8: {} = attention {}(%0, %1, %2, %3, %5, %4, %6) @forward\n"
          "  output \"o\" = %7\n}}",
          q,
          lse,
          attrs);
    }
    return parse_graph(text);
  }

  void fill(const Binding& input, const Tokens& tokens) {
    const std::span<std::byte> bytes = executor_.bytes(input);
    const TensorType& type = input.tensor.type;
    if (type.dtype == DType::kI32) {
      auto* const ids = reinterpret_cast<std::int32_t*>(bytes.data());
      if (input.name == "positions") {
        std::ranges::copy(tokens.queries, ids);
      } else if (input.name == "key_positions") {
        std::ranges::copy(tokens.keys, ids);
      } else {
        std::fill_n(ids, type.num_elements(), 0);
      }
      return;
    }
    std::vector<float> values(static_cast<std::size_t>(type.num_elements()));
    fill_normal(random_key(1, input.name), 0, {.std = 1.0F}, values);
    if (input.name == "lse") {
      std::ranges::fill(values, 8.0F);  // no softmax's own, and as fast
    }
    if (type.dtype == DType::kBF16) {
      std::ranges::transform(values, reinterpret_cast<BFloat16*>(bytes.data()), [](float x) {
        return to_bfloat16(x);
      });
    } else {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
  }

  Program program_;
  Executor executor_;
};

// Of the pairs that causal attention sees.
double share(std::int64_t window) {
  const auto tokens = static_cast<double>(kTokens);
  const auto w = static_cast<double>(window);
  return (tokens * w - w * (w - 1.0) / 2.0) / (tokens * (tokens + 1.0) / 2.0);
}

// What attention is measured with.
struct Form {
  std::string_view attributes;
  double share;  // of the pairs
};

void measure(Backend& backend, DType dtype, bool backward, const Form& form, int rounds) {
  Attention plain(backend, dtype, backward, "");
  Attention with(backend, dtype, backward, form.attributes);
  plain.seconds();
  with.seconds();
  std::vector<double> without_it;
  std::vector<double> with_it;
  for (int i = 0; i < rounds; ++i) {
    without_it.push_back(plain.seconds());
    with_it.push_back(with.seconds());
  }
  const double ratio = median(with_it) / median(without_it);
  fmt::print("{:4} {:8}{:14}: {:7.2f} of {:7.2f} ms, {:.3f}; share of pairs {:.3f}; {:.2f} of it\n",
             name(dtype),
             backward ? "backward" : "forward",
             form.attributes,
             1e3 * median(with_it),
             1e3 * median(without_it),
             ratio,
             form.share,
             ratio / form.share);
  std::fflush(stdout);
}

// The most of the ranks beside the mean.
double over_mean(const std::vector<double>& of_ranks) {
  const double sum = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0);
  return std::ranges::max(of_ranks) * static_cast<double>(of_ranks.size()) / sum;
}

void measure_ranks(std::int64_t ranks, ContextBalance balance, int rounds) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  std::vector<double> seconds;
  std::vector<double> pairs;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Tokens tokens = tokens_of(ranks, rank, balance);
    Attention forward(*backend, DType::kF32, false, "", tokens);
    Attention backward(*backend, DType::kF32, true, "", tokens);
    forward.cpu_seconds();
    backward.cpu_seconds();
    std::vector<double> all;
    for (int i = 0; i < rounds; ++i) {
      all.push_back(forward.cpu_seconds() + backward.cpu_seconds());
    }
    seconds.push_back(median(all));
    pairs.push_back(std::accumulate(
        tokens.queries.begin(), tokens.queries.end(), 0.0, [](double sum, std::int32_t position) {
          return sum + position + 1;
        }));
  }
  fmt::print("{} context ranks, {:7}: most CPU seconds {:.3f} of the mean, most pairs {:.3f}\n",
             ranks,
             to_string(balance),
             over_mean(seconds),
             over_mean(pairs));
  std::fflush(stdout);
}

int run(std::span<char*> arguments) {
  int rounds = 7;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  for (const char* const argument : arguments.subspan(1)) {
    if (std::sscanf(argument, "--rounds=%d", &rounds) != 1 &&
        std::sscanf(argument, "--threads=%d", &threads) != 1) {
      fmt::print(stderr, "usage: attention_bench [--rounds=N] [--threads=N]\n");
      return 2;
    }
  }
  const std::unique_ptr<Backend> backend = make_cpu_backend(threads);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool backward : {false, true}) {
      for (const Form& form : {Form{", window=512", share(512)},
                               Form{", window=1024", share(1024)},
                               Form{", softcap=50", 1.0}}) {
        measure(*backend, dtype, backward, form, rounds);
      }
    }
  }
  for (const std::int64_t ranks : {2, 4, 8}) {
    for (const ContextBalance balance : {ContextBalance::kZigzag, ContextBalance::kNone}) {
      measure_ranks(ranks, balance, rounds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  return tessera::run(std::span(argv, static_cast<std::size_t>(argc)));
}
