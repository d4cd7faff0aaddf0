// Small models of Llama's relatives in Hugging Face's form against PyTorch in float64, in
// transformers' formulation: every gradient, every weight after three steps of AdamW, and the
// tokens that a greedy continuation takes, with the cache of keys and values. (Logits, losses and
// norms: families_parity_test.) The goldens come from tests/golden/make_decoder_goldens.py.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/infer/cached_model.h"
#include "tessera/models/decoder/decoder_blocks.h"
#include "tessera/ops/all_ops.h"
#include "tests/parity/golden_model.h"

namespace tessera {
namespace {

class DecoderParity : public testing::TestWithParam<std::string> {
 protected:
  GoldenModel model_{GetParam(), 0};
};

INSTANTIATE_TEST_SUITE_P(Families,
                         DecoderParity,
                         testing::ValuesIn(decoder_goldens()),
                         [](const auto& family) { return family.param; });

TEST_P(DecoderParity, EveryGradient) {
  model_.start_gradients();
  model_.run_batch(0);
  expect_near_goldens(
      model_,
      "gradient.",
      [&](const std::string& parameter) { return model_.output(gradient_name(parameter)); },
      1e-5);
}

TEST_P(DecoderParity, WeightsAfterThreeSteps) {
  model_.start_training();
  for (std::size_t step = 0; step < 3; ++step) {
    model_.step(step);
  }
  expect_near_goldens(
      model_,
      "after3.",
      [&](const std::string& parameter) { return model_.state(parameter); },
      3e-5);
}

TEST_P(DecoderParity, GreedyTokensWithTheCache) {
  const std::span<const std::int32_t> prompt = model_.ids("greedy_prompt");
  // Where frequencies depend on the length: of a program for so many tokens.
  const std::span<const std::int32_t> expected =
      model_.ids(GetParam() == "llama_dynamic"   ? "greedy_fixed"
                 : GetParam() == "phi3_longrope" ? "greedy_long"
                                                 : "greedy");
  const auto length = static_cast<std::int64_t>(prompt.size() + expected.size());
  CachedModel cached(
      model_.description(), make_cpu_backend(1), {.sequence_length = length, .chunk = 3});
  model_.load(cached.executor(), cached.parameters());
  std::vector<std::int32_t> next(prompt.begin(), prompt.end());
  std::vector<std::int32_t> found;
  while (found.size() < expected.size()) {
    const std::vector<std::span<const std::int32_t>> tokens = {next};
    cached.append(tokens);
    const std::span<const float> logits = cached.logits(0);
    next = {static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin())};
    found.push_back(next[0]);
  }
  EXPECT_EQ(found, std::vector(expected.begin(), expected.end()));
}

// Written back, a config.json says what it said, key by key: what is left out computes nothing, and
// the form of scaled positions, which has several, reads as the same.
TEST_P(DecoderParity, ItsConfigIsWrittenAsItWasRead) {
  const nlohmann::json read =
      nlohmann::json::parse(read_file(golden_directory(GetParam()) / "config.json"));
  const HuggingFaceModel model = read_hugging_face_model(golden_directory(GetParam()));
  const std::string text =
      model_family(model.section.name).hugging_face_config(model.section, model.facts);
  const nlohmann::json written = nlohmann::json::parse(text);
  const std::vector<std::string> left_out = {"embd_pdrop",
                                             "hidden_dropout",
                                             "initializer_range",
                                             "max_window_layers",  // of a window that is off
                                             "original_max_position_embeddings",  // of no scaling
                                             "pretraining_tp",
                                             "resid_pdrop",
                                             "sliding_window_size",
                                             "use_cache"};
  const bool has_window_off = !read.value("use_sliding_window", true);
  for (const auto& [key, value] : read.items()) {
    if (key == "rope_scaling" || (key == "sliding_window" && has_window_off)) {
      continue;
    }
    if (!written.contains(key)) {
      EXPECT_THAT(left_out, testing::Contains(key));
    } else {
      EXPECT_EQ(written.at(key), value) << key;
    }
  }
  const HuggingFaceModel again = hugging_face_model(HuggingFaceConfig(text, "config.json"));
  EXPECT_EQ(again.section, model.section);
}

// A part of a model that can be left out of it, by its sizes or by the ops of its graph.
struct Switch {
  std::string family;
  std::string name;
  std::function<void(ModelSection&)> section = [](ModelSection&) {};
  std::function<void(Graph&)> graph = [](Graph&) {};
};

// Changes all ops with such attributes, of which there are some.
template <class Attrs, class Change>
std::function<void(Graph&)> ops_with(const Change& change) {
  return [change](Graph& graph) {
    int count = 0;
    for (Node& node : graph.nodes) {
      if (const auto* attrs = node.op->get_if<Attrs>()) {
        Attrs changed = *attrs;
        change(changed);
        node.op = make_op(changed);
        ++count;
      }
    }
    EXPECT_GT(count, 0);
  };
}

float largest_difference(const std::vector<float>& expected, const std::vector<float>& found) {
  float largest = 0.0F;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(found[i] - expected[i]));
  }
  return largest;
}

constexpr std::int64_t kAll = 1000;  // more than there are tokens, or layers

std::vector<Switch> switches() {
  return {
      {"mistral", "window", [](ModelSection& m) { m.window = kAll; }},
      {"gemma2", "window", [](ModelSection& m) { m.window = kAll; }},
      {"gemma2", "global_layers", [](ModelSection& m) { m.global_every = kAll; }},
      {"gemma2", "scale_of_queries", [](ModelSection& m) { m.query_pre_attn_scalar = 10.0; }},
      {"gemma2", "attention_softcap", [](ModelSection& m) { m.attention_softcap = 0.0; }},
      {"gemma2", "logits_softcap", [](ModelSection& m) { m.logits_softcap = 0.0; }},
      {"gemma2",
       "one_plus_gain",
       [](ModelSection&) {},
       ops_with<RmsNormAttrs>([](RmsNormAttrs& norm) { norm.gain_offset = 0.0; })},
      {"gemma2",
       "embedding_scale",
       [](ModelSection&) {},
       ops_with<MultiplyAttrs>([](MultiplyAttrs& scale) { scale.factor = 1.0; })},
      {"gemma3", "window", [](ModelSection& m) { m.window = kAll; }},
      {"gemma3", "global_layers", [](ModelSection& m) { m.global_every = kAll; }},
      {"gemma3", "local_theta", [](ModelSection& m) { m.rope_local_theta = m.rope_theta; }},
      {"gemma3", "scale_of_queries", [](ModelSection& m) { m.query_pre_attn_scalar = 10.0; }},
      {"gemma3", "linear_factor", [](ModelSection& m) { m.rope_linear_factor = 1.0; }},
      {"gemma3",
       "one_plus_gain",
       [](ModelSection&) {},
       ops_with<RmsNormAttrs>([](RmsNormAttrs& norm) { norm.gain_offset = 0.0; })},
      {"gemma3",
       "embedding_scale",
       [](ModelSection&) {},
       ops_with<MultiplyAttrs>([](MultiplyAttrs& scale) { scale.factor = 1.0; })},
      {"gemma3", "gelu_tanh", [](ModelSection&) {}, ops_with<GeluAttrs>([](GeluAttrs& gelu) {
         gelu.exact = true;
       })},
      {"pythia", "gelu_exact", [](ModelSection& m) { m.exact_gelu = false; }},
      {"redpajama", "serial_residual", [](ModelSection& m) { m.parallel_residual = true; }},
      {"llama_linear", "linear_factor", [](ModelSection& m) { m.rope_linear_factor = 1.0; }},
      {"llama_dynamic", "dynamic_factor", [](ModelSection& m) { m.rope_original_length = kAll; }},
      {"phi3_longrope", "long_factors", [](ModelSection& m) { m.rope_original_length = 24; }},
      {"phi3_longrope", "scaled_length", [](ModelSection& m) { m.rope_scaled_length = 11; }},
      {"llama_yarn",
       "magnitude",
       [](ModelSection&) {},
       ops_with<RopeTableAttrs>([](RopeTableAttrs& table) { table.magnitude = 1.0; })},
      {"llama_yarn",
       "divisors",
       [](ModelSection&) {},
       ops_with<RopeTableAttrs>([](RopeTableAttrs& table) { table.divisors = {}; })},
  };
}

// OLMo 2's layers with their norms before attention and feed-forward layer, as Llama's are.
ModelOutputs olmo2_with_norms_before(const ModelSection& section,
                                     GraphBuilder& builder,
                                     const ModelInputs& inputs) {
  const DecoderConfig config = {.dim = section.dim.value(),
                                .layers = section.layers.value(),
                                .heads = section.heads.value(),
                                .kv_heads = section.kv_heads.value(),
                                .ffn = section.ffn.value(),
                                .vocab = section.vocab.value(),
                                .tied = section.tied.value(),
                                .rope_theta = section.rope_theta.value(),
                                .norm_eps = section.norm_eps.value(),
                                .head_dim = section.head_dim.value()};
  DecoderBlocks m(builder, config, inputs);
  return m.write([&](const Value& x, const std::string& layer) {
    const Value a = m.norm(x, layer + "attention_norm");
    const Value q = m.query_norm(m.queries(a, layer), layer + "attention.q_norm");
    const Value k = m.key_norm(m.keys(a, layer), layer + "attention.k_norm");
    const Value h = add(x, m.attend(m.turned(q), m.turned(k), m.values(a, layer), layer));
    return add(h, m.feed_forward(m.norm(h, layer + "ffn_norm"), layer));
  });
}

TEST(DecoderSwitches, TheOrderOfNormsMovesTheLogits) {
  GoldenModel model("olmo2", 0);
  const ModelSection section = model.section();
  model.change_page([&](GraphBuilder& builder, const ModelInputs& inputs) {
    return olmo2_with_norms_before(section, builder, inputs);
  });
  EXPECT_GT(largest_difference(model.golden_logits(), model.logits()), 1e-3F);
}

// The goldens would show it, were one of these left out.
TEST(DecoderSwitches, EachMovesTheLogits) {
  for (const Switch& each : switches()) {
    GoldenModel model(each.family, 0);
    model.change(each.section);
    EXPECT_GT(largest_difference(model.golden_logits(), model.logits(each.graph)), 1e-3F)
        << each.family << " without " << each.name;
  }
}

// Newer files list the layers.
TEST(DecoderConfigs, Gemma3IsReadInBothForms) {
  const auto section_of = [](const std::string& file) {
    return hugging_face_model(HuggingFaceConfig(read_file(golden_directory("gemma3") / file), file))
        .section;
  };
  EXPECT_EQ(section_of("config_layer_types.json"), section_of("config.json"));
  EXPECT_EQ(section_of("config.json").global_every, 3);
}

// SmolLM2 is a Llama.
TEST(DecoderConfigs, SmolLm2IsRead) {
  const HuggingFaceModel model = hugging_face_model(
      HuggingFaceConfig(read_file(golden_directory("smollm2") / "config.json"), "config.json"));
  EXPECT_EQ(model.section.name, "llama3");
  EXPECT_EQ(model.section.tied, true);
  EXPECT_EQ(model.section.rope_theta, 100000.0);
  EXPECT_EQ(model.section.rope_scaling, false);
  EXPECT_THAT(model.unknown_keys, testing::IsEmpty());
}

}  // namespace
}  // namespace tessera
