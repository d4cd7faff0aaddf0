// Configs as text, and the documented schema.

#include <cstdlib>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/config/config.h"
#include "tessera/config/schema.h"
#include "tessera/config/test_config.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DataSection unusual_data() {
  return {.files = {"a", "b # c", ""},
          .sources = {{.files = {"b", "c \"d\""}, .weight = 0.25, .format = DataFormat::kMegatron},
                      {.files = {"e"},
                       .weight = 3,
                       .field = "body",
                       .token_type = RawTokens::kU32,
                       .document_separator = "\n"}},
          .format = DataFormat::kJsonl,
          .field = "content",
          .token_type = RawTokens::kU32,
          .chat_template = ChatTemplateName::kChatml,
          .skip_broken = true,
          .unpacked_limit = 1000,
          .validation_share = 0.25,
          .validation_files = {"v"},
          .sequence_length = 33,
          .shuffle = false,
          .document_mask = false,
          .mask_boundary = true,
          .document_separator = "\r\n\f"};
}

// The sections up to [data], every key of which differs from its default.
RunConfig unusual_start() {
  RunConfig c;
  c.run = {.dir = "dir \"quoted\" \\ \x01\x7f\t\n\xc3\xa4",
           .seed = 9007199254740993,
           .threads = 3,
           .device = "auto",
           .cuda_graphs = false,
           .deterministic = false,
           .time_gemms = false};
  c.model = {.name = "gpt2",
             .flavor = "8B",
             .weights = "weights",
             .grow_vocab = true,
             .dim = 64,
             .layers = 2,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 6,
             .ffn = 96,
             .vocab = 300,
             .padded_vocab = 320,
             .positions = 40,
             .window = 5,
             .global_every = 3,
             .query_pre_attn_scalar = 13,
             .attention_softcap = 50,
             .logits_softcap = 30.5,
             .tied = false,
             .attention_bias = true,
             .bias = false,
             .alibi = true,
             .squared_relu = true,
             .exact_gelu = true,
             .parallel_residual = false,
             .rope_scaling = true,
             .rope_factor = 32,
             .rope_linear_factor = 2,
             .rope_dynamic_factor = 3,
             .rope_yarn_factor = 4,
             .rope_short_factors = {{1, 1.5}},
             .rope_long_factors = {{2.25, 1e300}},
             .rope_original_length = 64,
             .rope_scaled_length = 128,
             .rope_theta = 10000,
             .rope_local_theta = 5000,
             .rotary_fraction = 0.5,
             .norm_eps = 1.0 / 3};
  c.tokenizer = {.path = "t.json",
                 .train_vocab = 300,
                 .train_special = {"<|x|>", "<|y|>"},
                 .train_chat = "chatml",
                 .bos = {{}},
                 .eos = {{"</s>", "\"<|x|>\""}}};
  c.data = unusual_data();
  return c;
}

// A config in which every key differs from its default.
RunConfig unusual_config() {
  RunConfig c = unusual_start();
  c.train = {.steps = 5,
             .global_batch = 6,
             .microbatch = 2,
             .dtype = DType::kBF16,
             .logits = DType::kBF16,
             .tf32 = true,
             .dropout = 0.1};
  c.validation = {.every = 3, .sequences = 7};
  c.lora = {.rank = 4, .alpha = 0.5, .targets = {"wq", "q_proj"}};
  c.float8 = {.recipe = Float8Recipe::kTensorwise,
              .gradients = DType::kF8E4M3,
              .skip_first = 1,
              .skip_last = 2,
              .head = true,
              .fast_accumulation = true,
              .keep_weight_codes = true};
  c.optimizer = {.name = OptimizerName::kAdamW,
                 .lr = 1e-300,
                 .betas = {0.1 + 0.2, 0.999},
                 .eps = 5e-324,
                 .weight_decay = 1e22,
                 .decay = DecayedWeights::kMatrices,
                 .clip = 100,
                 .moments = DType::kBF16,
                 .gradients = DType::kBF16};
  c.schedule = {.warmup = 1, .decay_ratio = 0.1, .decay = Decay::kSqrt, .floor = 1};
  c.parallel = {
      .ranks = 32, .data = 4, .tensor = 2, .sequence_parallel = false, .context = 2, .pipeline = 2};
  c.context = {.kind = ContextKind::kUlysses, .balance = ContextBalance::kZigzag, .inner = "node"};
  c.pipeline = {
      .schedule = "zb-v", .chunks = 2, .layers = std::vector<std::int64_t>{3, 0, 2}, .slices = 4};
  c.state = {.preset = "ddp",
             .param = "2",
             .secondary = "1",
             .secondary_use = SecondaryUse::kBackward,
             .grad = "node",
             .optimizer = "cluster",
             .wire_param = "int8",
             .wire_grad = "int4",
             .wire_update = "bf16",
             .wire_block = 64};
  c.comm = {.deadline_seconds = 2.5,
            .reduction = Reduction::kNative,
            .overlap = false,
            .overlap_layers = 2};
  c.cluster = {.file = "c.toml"};
  c.memory = {.recompute = Recompute::kSelective,
              .keep = {"rms_norm.0"},
              .recompute_ops = {"add"},
              .recompute_layers = {.first = 1, .end = 3},
              .offload_optimizer = Offload::kAll,
              .offload_parameters = Offload::kAll,
              .offload_activations = Offload::kAll,
              .offload_to = OffloadTo::kFile,
              .offload_dir = "o",
              .limit_bytes = 1LL << 40,
              .chosen = "40 of 50: 0-1"};
  c.checkpoint = {.every = 7,
                  .every_minutes = 2.5,
                  .keep = 0,
                  .keep_best = false,
                  .async = false,
                  .resume = "none",
                  .fall_back = false,
                  .deadline_seconds = 90};
  c.log = {.every = 1, .tensorboard = false};
  c.sample = {.prompt = "p", .tokens = 3, .temperature = 0};
  c.passes = {.fuse = false,
              .group_gemms = false,
              .gelu_products = false,
              .attention = AttentionOps::kUnfused,
              .dump = "d"};
  return c;
}

TEST(ToToml, ParsesBackToAnEqualConfig) {
  RunConfig expanded = unusual_config();
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      if (key.expected == "path") {
        key.set(expanded, {std::string("/x/$$HOME/$${x}/$$$$/$5")});
      }
    }
  }
  expanded.data.sources[0].files = {"$HOME", "$(x)"};
  expanded.data.validation_files = {"a$$"};
  EXPECT_EQ(expanded.run.dir, "/x/$HOME/${x}/$$/$5");
  for (const RunConfig& config : {RunConfig{}, valid_config(), unusual_config(), expanded}) {
    EXPECT_EQ(parse_run_config(to_toml(config), "resolved"), config);
  }
}

// Guards the test above: what equals its default would survive a key that is not printed.
TEST(ToToml, UnusualConfigLeavesNoDefault) {
  for (const ConfigSection& section : schema()) {
    for (const ConfigKey& key : section.keys) {
      const std::string name = format("{}.{}", section.name, key.name);
      const bool has_one_value = name == "optimizer.name";
      EXPECT_EQ(key.get(unusual_config()) == key.get(RunConfig{}), has_one_value) << name;
    }
  }
}

TEST(ToToml, LeavesOutEmptyOptionals) {
  RunConfig config = unusual_config();
  EXPECT_THAT(to_toml(config), HasSubstr("tied = false\n"));
  config.model.tied.reset();
  EXPECT_THAT(to_toml(config), Not(HasSubstr("tied")));
}

TEST(Schema, TomlIsAValidFileOfDefaults) {
  EXPECT_EQ(parse_run_config(schema_toml(), "schema"), RunConfig{});
  EXPECT_THAT(schema_toml(),
              HasSubstr("# Optimizer steps. (integer from 1 to 2147483647)\n"
                        "steps = 400\n"));
}

// Set TESSERA_UPDATE_GOLDEN=1 to rewrite the page.
TEST(Schema, ReferencePageIsUpToDate) {
  const std::filesystem::path page = std::filesystem::path(TESSERA_SOURCE_DIR) / "docs/config.md";
  if (std::getenv("TESSERA_UPDATE_GOLDEN") != nullptr) {
    write_file_atomic(page, schema_markdown());
  }
  EXPECT_EQ(read_file(page), schema_markdown()) << "TESSERA_UPDATE_GOLDEN=1 rewrites the page";
}

}  // namespace
}  // namespace tessera
