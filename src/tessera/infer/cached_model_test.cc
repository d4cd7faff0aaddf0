#include "tessera/infer/cached_model.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/random.h"
#include "tessera/base/test_error.h"
#include "tessera/infer/sampler.h"
#include "tessera/models/family.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"

namespace tessera {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kLength = 40;
constexpr std::int64_t kVocab = 67;
constexpr std::uint64_t kSeed = 5;

ModelDescription description_of(const std::string& name) {
  const ModelFamily& family = model_family(name);
  ModelSection section{
      .name = name, .dim = 32, .layers = 2, .heads = 4, .ffn = 48, .vocab = kVocab};
  if (name == "llama3") {
    section.kv_heads = 2;
  } else {
    section.padded_vocab = kVocab + 5;
  }
  if (name == "gpt2") {
    section.positions = kLength;
  }
  return family.describe(family.resolve(section));
}

// Large weights: logits that differ, and attention that looks at some tokens more than at others.
void fill(Executor& executor, std::vector<ParameterInit> parameters) {
  for (ParameterInit& parameter : parameters) {
    parameter.init.std = parameter.init.mean == 0.0 ? 0.3 : 0.0;
    parameter.init.cut = 0.0;
  }
  initialize_state(executor, parameters, kSeed);
}

// The model without a cache: it sees every token anew.
class Uncached {
 public:
  Uncached(const ModelDescription& model, DType dtype)
      : backend_(make_cpu_backend(1)),
        graph_(generation_graph(model, kLength, dtype)),
        program_(compile_forward(graph_, {.workspace_bytes = workspace_of(*backend_)})),
        executor_(program_, *backend_) {
    fill(executor_, parameter_inits(graph_));
    for (std::int32_t i = 0; i < kLength; ++i) {
      input("positions")[i] = i;
    }
  }

  std::span<const float> logits(const Tokens& tokens) {
    std::copy(tokens.begin(), tokens.end(), input("tokens"));
    *input("last") = static_cast<std::int32_t>(tokens.size()) - 1;
    executor_.run_step();
    const auto bytes = executor_.bytes(find_binding(program_.outputs, "logits"));
    return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

 private:
  std::int32_t* input(std::string_view name) {
    return reinterpret_cast<std::int32_t*>(
        executor_.bytes(find_binding(program_.inputs, name)).data());
  }

  std::unique_ptr<Backend> backend_;
  Graph graph_;
  Program program_;
  Executor executor_;
};

std::unique_ptr<CachedModel> cached(const ModelDescription& model,
                                    CachedModelOptions options,
                                    int threads = 1) {
  options.threads = threads;
  auto result = std::make_unique<CachedModel>(model, make_cpu_backend(threads), options);
  fill(result->executor(), result->parameters());
  return result;
}

Tokens random_tokens(std::uint64_t key, std::size_t count) {
  Tokens tokens;
  for (std::size_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(uniform(key, i) * kVocab));
  }
  return tokens;
}

double relative_difference(std::span<const float> found, std::span<const float> expected) {
  EXPECT_EQ(found.size(), expected.size());
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{found[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

// `tokens` and what follows them, up to kLength tokens. `feed` gives the logits after a sequence
// that is one token longer every time.
template <class Feed>
Tokens continued(Tokens tokens, double temperature, const Feed& feed) {
  for (std::uint64_t i = 0; static_cast<std::int64_t>(tokens.size()) < kLength; ++i) {
    tokens.push_back(sample_token(feed(tokens), {.temperature = temperature}, uniform(kSeed, i)));
  }
  return tokens;
}

Tokens continued_by(CachedModel& model, const Tokens& prompt, double temperature) {
  model.clear(0);
  return continued(prompt, temperature, [&](const Tokens& tokens) {
    const auto unseen =
        std::span<const std::int32_t>(tokens).subspan(static_cast<std::size_t>(model.length(0)));
    model.append(std::span(&unseen, 1));
    return model.logits(0);
  });
}

class CachedModelTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families,
                         CachedModelTest,
                         testing::Values("llama3", "gpt2", "neox"),
                         [](const auto& family) { return family.param; });

// Whole prompts in one piece, in several, and with a rest; then token by token.
TEST_P(CachedModelTest, LogitsAreThoseWithoutACache) {
  const ModelDescription model = description_of(GetParam());
  Uncached expected(model, DType::kF32);
  for (const std::int64_t chunk : {1, 4, 16, 64}) {
    const auto found = cached(model, {.sequence_length = kLength, .chunk = chunk}, 2);
    for (const std::size_t length : {1U, 3U, 4U, 5U, 17U, 36U}) {
      found->clear(0);
      const Tokens tokens = random_tokens(length, length + 4);
      for (std::size_t count = length; count <= tokens.size(); ++count) {
        const auto seen = static_cast<std::size_t>(found->length(0));
        const auto piece = std::span(tokens).subspan(seen, count - seen);
        found->append(std::vector<std::span<const std::int32_t>>{piece});
        const Tokens all(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
        EXPECT_LT(relative_difference(found->logits(0), expected.logits(all)), 1e-5)
            << "chunk " << chunk << ", prompt " << length << ", token " << count;
      }
    }
  }
}

TEST_P(CachedModelTest, TokensAreThoseWithoutACache) {
  const ModelDescription model = description_of(GetParam());
  Uncached reference(model, DType::kF32);
  const auto found = cached(model, {.sequence_length = kLength, .chunk = 8});
  for (const std::size_t length : {1U, 6U, 19U}) {
    for (const double temperature : {0.0, 1.0}) {
      const Tokens prompt = random_tokens(length, length);
      const Tokens expected = continued(
          prompt, temperature, [&](const Tokens& tokens) { return reference.logits(tokens); });
      EXPECT_EQ(continued_by(*found, prompt, temperature), expected)
          << "prompt " << length << ", temperature " << temperature;
    }
  }
}

// All sequences at the same time; the last begins `delay` tokens after the others.
std::vector<Tokens> continued_together(CachedModel& model,
                                       std::vector<Tokens> sequences,
                                       std::int64_t delay) {
  std::vector<std::size_t> prompts;
  for (const Tokens& tokens : sequences) {
    model.clear(static_cast<std::int64_t>(prompts.size()));
    prompts.push_back(tokens.size());
  }
  for (std::int64_t step = 0; step < kLength + delay; ++step) {
    std::vector<std::span<const std::int32_t>> unseen(sequences.size());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (i + 1 < sequences.size() || step >= delay) {
        const std::int64_t seen = model.length(static_cast<std::int64_t>(i));
        unseen[i] = std::span(sequences[i]).subspan(static_cast<std::size_t>(seen));
      }
    }
    model.append(unseen);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      if (!unseen[i].empty() && sequences[i].size() < kLength) {
        sequences[i].push_back(sample_token(model.logits(static_cast<std::int64_t>(i)),
                                            {.temperature = 1.0},
                                            uniform(kSeed, sequences[i].size() - prompts[i])));
      }
    }
  }
  return sequences;
}

// Sequences of one batch begin with prompts of other lengths, at other times.
TEST_P(CachedModelTest, ABatchGivesWhatEachSequenceGivesAlone) {
  const ModelDescription model = description_of(GetParam());
  const auto alone = cached(model, {.sequence_length = kLength, .chunk = 8});
  const auto batch = cached(model, {.batch = 3, .sequence_length = kLength, .chunk = 8});
  const std::vector<Tokens> prompts = {
      random_tokens(1, 12), random_tokens(2, 1), random_tokens(3, 7)};
  std::vector<Tokens> expected;
  for (const Tokens& prompt : prompts) {
    expected.push_back(continued_by(*alone, prompt, 1.0));
  }
  EXPECT_EQ(continued_together(*batch, prompts, 0), expected);
  EXPECT_EQ(continued_together(*batch, prompts, 5), expected);
}

TEST_P(CachedModelTest, Bf16IsCloseToItselfWithoutACache) {
  const ModelDescription model = description_of(GetParam());
  Uncached expected(model, DType::kBF16);
  const auto found = cached(model, {.dtype = DType::kBF16, .sequence_length = kLength, .chunk = 4});
  const Tokens tokens = random_tokens(1, 21);
  found->append(std::vector<std::span<const std::int32_t>>{std::span(tokens).first(20)});
  found->append(std::vector<std::span<const std::int32_t>>{std::span(tokens).last(1)});
  EXPECT_LT(relative_difference(found->logits(0), expected.logits(tokens)), 0.03);
}

TEST(CachedModel, RefusesWhatDoesNotFit) {
  const std::string message = error_of(ErrorCode::kOutOfMemory, [] {
    CachedModel(description_of("llama3"),
                make_cpu_backend(1),
                {.batch = 4, .sequence_length = kLength, .memory_limit_bytes = 1024});
  });
  EXPECT_THAT(message, testing::HasSubstr("with room for 4 sequences of 40 tokens needs "));
}

TEST(CachedModel, RefusesMoreTokensThanASequenceHasRoomFor) {
  const auto model = cached(description_of("llama3"), {.sequence_length = kLength, .chunk = 8});
  const Tokens tokens = random_tokens(1, kLength + 1);
  const auto append = [&](std::size_t first, std::size_t count) {
    const auto piece = std::span<const std::int32_t>(tokens).subspan(first, count);
    model->append(std::span(&piece, 1));
  };
  append(0, 38);
  const std::string message = error_of(ErrorCode::kInvalidArgument, [&] { append(38, 3); });
  EXPECT_THAT(message, testing::HasSubstr("sequence 0 has 38 tokens and would have 3 more"));
  append(38, 2);
  EXPECT_EQ(model->length(0), kLength);
}

}  // namespace
}  // namespace tessera
