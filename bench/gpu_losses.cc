#include "bench/gpu_losses.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string_view>
#include <vector>

#include "bench/gpu_training.h"
#include "tessera/backend/backend.h"
#include "tessera/ir/dtype.h"
#include "tessera/passes/graph/quantize_products.h"

namespace tessera {
namespace {

// Tokens of a Markov chain of order 2, the same ones every time. A token has one of 32 kinds; the
// kinds of two tokens say which four may follow, with odds of 10 : 3 : 2 : 1. So the least loss is
// 1.041 nats a token, and a model has to learn about 1,024 pairs to reach it.
class MarkovText {
 public:
  explicit MarkovText(std::int64_t vocab) : kinds_(static_cast<std::size_t>(vocab)) {
    const auto tokens = static_cast<std::uint32_t>(vocab);
    std::ranges::generate(kinds_, [&] { return random() % kKinds; });
    std::ranges::generate(followers_, [&] { return random() % tokens; });
  }

  std::int32_t next() {
    constexpr std::array<std::uint32_t, kFollowers> kBelow = {10, 13, 15, 16};
    const std::uint32_t odds = random() % kBelow.back();
    std::size_t choice = 0;
    while (odds >= kBelow[choice]) {
      ++choice;
    }
    const std::uint32_t token =
        followers_[(kinds_[before_] * kKinds + kinds_[last_]) * kFollowers + choice];
    before_ = last_;
    last_ = token;
    return static_cast<std::int32_t>(token);
  }

 private:
  static constexpr std::uint32_t kKinds = 32;
  static constexpr std::size_t kFollowers = 4;

  std::uint32_t random() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::uint32_t>(state_ >> 33U);
  }

  std::uint64_t state_ = 0x853c49e6748fea9bU;
  std::vector<std::uint32_t> kinds_;
  std::array<std::uint32_t, std::size_t{kKinds} * kKinds * kFollowers> followers_ = {};
  std::size_t before_ = 0;
  std::size_t last_ = 0;
};

// Warmed up over 50 steps, falling to nothing over the last two fifths.
float rate_of(int step, int steps) {
  constexpr double kRate = 3e-3;
  const double warm = step / 50.0;
  const double left = (steps - step + 1) / (0.4 * steps);
  return static_cast<float>(kRate * std::min({1.0, warm, left}));
}

// The mean loss of the last 100 steps, or of the last tenth of fewer than 1,000.
double loss_after(const Case& test, int steps, bool on_cpu) {
  const std::unique_ptr<Backend> backend = make_backend(on_cpu);
  Training training(test, *backend, on_cpu);
  MarkovText text(test.sizes.vocab);
  std::vector<std::int32_t> tokens = {text.next()};
  tokens.resize(static_cast<std::size_t>(test.batch * test.seq) + 1);
  std::vector<double> losses;
  for (int step = 1; step <= steps; ++step) {
    tokens.front() = step == 1 ? tokens.front() : tokens.back();
    std::generate(tokens.begin() + 1, tokens.end(), [&] { return text.next(); });
    training.set_inputs([&](std::string_view input, std::int64_t i) {
      const auto place = static_cast<std::size_t>(i);
      return input == "documents"   ? 0
             : input == "positions" ? static_cast<std::int32_t>(i % test.seq)
             : input == "labels"    ? tokens[place + 1]
                                    : tokens[place];
    });
    training.step(rate_of(step, steps));
    losses.push_back(training.loss());
  }
  const int last = std::clamp(steps / 10, 1, 100);
  return std::accumulate(losses.end() - last, losses.end(), 0.0) / last;
}

}  // namespace

nlohmann::json run_losses(const Case& test, int steps, bool on_cpu) {
  Case tensorwise = test;
  tensorwise.float8 =
      Float8Options{.head = true, .fast_accumulation = true, .keep_weight_codes = true};
  Case rowwise = test;
  rowwise.float8 = Float8Options{
      .rowwise = true, .gradients = DType::kF8E4M3, .head = true, .fast_accumulation = true};
  return {{"bf16", loss_after(test, steps, on_cpu)},
          {"tensorwise", loss_after(tensorwise, steps, on_cpu)},
          {"rowwise", loss_after(rowwise, steps, on_cpu)}};
}

}  // namespace tessera
