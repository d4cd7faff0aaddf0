#include "tessera/state/sum_of_squares.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/half.h"
#include "tessera/models/llama/llama.h"
#include "tessera/plan/compile.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

// A small Llama whose weights are all zero.
struct ZeroWeights {
  explicit ZeroWeights(DType dtype)
      : model(describe_llama(
            {.dim = 16, .layers = 1, .heads = 2, .kv_heads = 1, .ffn = 24, .vocab = 20})),
        backend(make_cpu_backend(1)),
        program(compile({.model = model, .sequence_length = 8, .dtype = dtype, .threads = 1},
                        cpu_target())
                    .step),
        executor(program, *backend) {
    for (const StateBinding& state : program.states) {
      const std::span<std::byte> bytes = executor.bytes(state);
      std::memset(bytes.data(), 0, bytes.size());
    }
  }

  // The weights of that name.
  template <class T>
  std::span<T> weights(const char* name) {
    const std::span<std::byte> bytes = executor.bytes(find_binding(program.states, name));
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  ModelDescription model;
  std::unique_ptr<Backend> backend;
  Program program;
  Executor executor;
};

TEST(SumOfSquares, IsThatOfAllWeights) {
  ZeroWeights small(DType::kF32);
  EXPECT_EQ(sum_of_squares(small.executor), 0);
  small.weights<float>("norm.weight").back() = 3;
  small.weights<float>("tok_embeddings.weight").front() = -4;
  EXPECT_EQ(sum_of_squares(small.executor), 25);
  small.weights<float>("tok_embeddings.weight").front() = 1e20F;
  EXPECT_GT(sum_of_squares(small.executor), double{std::numeric_limits<float>::max()});
  small.weights<float>("norm.weight").back() = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares(small.executor)));
}

TEST(SumOfSquares, TakesBf16) {
  ZeroWeights small(DType::kBF16);
  small.weights<BFloat16>("norm.weight").back() = to_bfloat16(-1.5F);
  EXPECT_EQ(sum_of_squares(small.executor), 2.25);
}

}  // namespace
}  // namespace tessera
