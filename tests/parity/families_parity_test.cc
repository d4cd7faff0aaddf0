// Small models of every family in Hugging Face's form against PyTorch in transformers' formulation:
// logits, and loss and gradient norm of some steps of AdamW, with and without padding of the
// vocabulary. Then in and out again: bit by bit the same files, and every way in which a directory
// may not fit is told. The goldens come from tests/golden/make_families_goldens.py and
// make_decoder_goldens.py.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/half.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/hugging_face/weights.h"
#include "tessera/models/family.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"
#include "tessera/weights/export_weights.h"
#include "tessera/weights/import_weights.h"
#include "tests/parity/golden_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

class FamilyParity : public testing::TestWithParam<std::string> {
 protected:
  // The vocabulary of a Llama and its relatives is not padded.
  static std::vector<std::int64_t> paddings() {
    return GetParam() == "gpt2" || GetParam() == "neox" ? std::vector<std::int64_t>{0, 5}
                                                        : std::vector<std::int64_t>{0};
  }
};

INSTANTIATE_TEST_SUITE_P(Families,
                         FamilyParity,
                         testing::ValuesIn(with_decoder_goldens({"gpt2", "neox", "llama31"})),
                         [](const auto& family) { return family.param; });

TEST_P(FamilyParity, Logits) {
  for (const std::int64_t padding : paddings()) {
    GoldenModel model(GetParam(), padding);
    const std::vector<float> expected = model.golden_logits();
    const std::vector<float> found = model.logits();
    ASSERT_EQ(found.size(), expected.size());
    double difference = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      difference += std::pow(double{found[i]} - double{expected[i]}, 2);
      norm += std::pow(double{expected[i]}, 2);
      ASSERT_NEAR(found[i], expected[i], 2e-5F) << "logit " << i;
    }
    EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(norm));
  }
}

TEST_P(FamilyParity, LossesAndGradientNorms) {
  for (const std::int64_t padding : paddings()) {
    GoldenModel model(GetParam(), padding);
    model.start_training();
    for (std::size_t n = 0; n < model.golden().at("steps").get<std::size_t>(); ++n) {
      const auto [loss, grad_norm] = model.step(n);
      const double expected_loss = model.golden().at("losses").at(n);
      const double expected_norm = model.golden().at("grad_norms").at(n);
      EXPECT_NEAR(loss, expected_loss, (n == 0 ? 1e-5 : 1e-4) * expected_loss) << "step " << n + 1;
      EXPECT_NEAR(grad_norm, expected_norm, (n == 0 ? 1e-5 : 1e-3) * expected_norm)
          << "step " << n + 1;
    }
  }
}

TEST_P(FamilyParity, RunsAreBitwiseEqualWithFusionOnOrOff) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GoldenModel model(GetParam(), 0);
    const auto fused = model.train({.dtype = dtype});
    EXPECT_NE(fused.front(), fused.back());
    EXPECT_EQ(fused, model.train({.fuse = false, .dtype = dtype})) << name(dtype);
    EXPECT_EQ(fused, model.train({.recompute = true, .dtype = dtype})) << name(dtype);
  }
}

// The tensors of a directory, whatever the files.
std::map<std::string, std::vector<std::byte>> tensors_of(const fs::path& directory) {
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") {
      const SafetensorsFile file(entry.path());
      for (const SafetensorsTensor& tensor : file.tensors()) {
        tensors[tensor.name].assign(tensor.data.begin(), tensor.data.end());
      }
    }
  }
  return tensors;
}

std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

// A family's golden weights as a directory of its own, which a test may damage.
class HuggingFaceDirectory : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fs::create_directories(source_);
    if (GetParam() == "llama3") {
      make_llama();
      return;
    }
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden_directory(GetParam()) / name, source_ / name);
    }
  }

  // The Llama's golden has its weights beside what was computed with them.
  void make_llama() const {
    const json sizes =
        json::parse(read_file(golden_directory("llama") / "golden.json")).at("config");
    const ModelFamily& family = model_family("llama3");
    const ModelSection section = family.resolve({.name = "llama3",
                                                 .dim = sizes.at("dim"),
                                                 .layers = sizes.at("layers"),
                                                 .heads = sizes.at("heads"),
                                                 .kv_heads = sizes.at("kv_heads"),
                                                 .ffn = sizes.at("ffn"),
                                                 .vocab = sizes.at("vocab")});
    write_file_atomic(source_ / "config.json",
                      family.hugging_face_config(section, {.sequence_length = 24}));
    const SafetensorsFile golden(golden_directory("llama") / "hugging_face.safetensors");
    std::vector<SafetensorsTensor> weights;
    for (const SafetensorsTensor& tensor : golden.tensors()) {
      if (tensor.name != "tokens" && tensor.name != "logits") {
        weights.push_back(tensor);
      }
    }
    write_safetensors(source_ / "model.safetensors", weights);
  }

  // Writes the weights anew, as `change` leaves them.
  void rewrite(const std::function<void(std::vector<SafetensorsTensor>&)>& change) const {
    const fs::path path = source_ / "model.safetensors";
    const SafetensorsFile file(path);
    std::vector<SafetensorsTensor> tensors(file.tensors().begin(), file.tensors().end());
    change(tensors);
    write_safetensors(path, tensors);
  }

  std::string refusal() const {
    try {
      import_weights({.source = source_, .checkpoint = directory_.path() / "refused"});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
      return error.what();
    }
    return "no error";
  }

  TestDirectory directory_;
  fs::path source_ = directory_.path() / "source";
};

INSTANTIATE_TEST_SUITE_P(
    Families,
    HuggingFaceDirectory,
    testing::ValuesIn(with_decoder_goldens({"llama3", "gpt2", "neox", "llama31"})),
    [](const auto& family) { return family.param; });

TEST_P(HuggingFaceDirectory, ComesOutAsItWentIn) {
  const fs::path first = directory_.path() / "first";
  import_weights({.source = source_, .checkpoint = directory_.path() / "a"});
  export_weights({.checkpoint = directory_.path() / "a", .output = first});
  EXPECT_EQ(tensors_of(first), tensors_of(source_));
  import_weights({.source = first, .checkpoint = directory_.path() / "b"});
  export_weights({.checkpoint = directory_.path() / "b", .output = directory_.path() / "second"});
  EXPECT_EQ(files_of(directory_.path() / "second"), files_of(first));
  // In several files with an index.
  const fs::path sharded = directory_.path() / "sharded";
  export_weights(
      {.checkpoint = directory_.path() / "b", .output = sharded, .max_file_bytes = 20'000});
  EXPECT_TRUE(fs::exists(sharded / "model.safetensors.index.json"));
  EXPECT_EQ(tensors_of(sharded), tensors_of(source_));
  import_weights({.source = sharded, .checkpoint = directory_.path() / "c"});
  export_weights({.checkpoint = directory_.path() / "c", .output = directory_.path() / "third"});
  EXPECT_EQ(files_of(directory_.path() / "third"), files_of(first));
}

// Element `i` of a tensor of f32 or f16.
float element(const SafetensorsTensor& tensor, std::size_t i) {
  if (tensor.dtype == DType::kF32) {
    float value = 0.0F;
    std::memcpy(&value, tensor.data.data() + i * sizeof value, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, tensor.data.data() + i * sizeof bits, sizeof bits);
  return to_float(Float16{bits});
}

// A tensor in half precision, and what is expected of it after import and export: f16 becomes f32.
struct HalfPrecision {
  std::vector<std::byte> stored;
  std::vector<std::byte> expected;
};

HalfPrecision in_half_precision(const SafetensorsTensor& tensor, DType dtype) {
  const std::size_t count = tensor.data.size() / size_bytes(tensor.dtype);
  std::vector<std::uint16_t> stored(count);
  std::vector<float> widened(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = element(tensor, i);
    stored[i] = dtype == DType::kF16 ? to_float16(value).bits : to_bfloat16(value).bits;
    widened[i] = to_float(Float16{stored[i]});
  }
  const auto bytes_of = [](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  return {.stored = bytes_of(stored),
          .expected = dtype == DType::kF16 ? bytes_of(widened) : bytes_of(stored)};
}

// f16 becomes f32 exactly, bf16 stays.
TEST_P(HuggingFaceDirectory, TakesHalfPrecision) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::map<std::string, std::vector<std::byte>> expected;
    std::vector<std::vector<std::byte>> stored;
    rewrite([&](std::vector<SafetensorsTensor>& tensors) {
      for (SafetensorsTensor& tensor : tensors) {
        HalfPrecision half = in_half_precision(tensor, dtype);
        stored.push_back(std::move(half.stored));
        tensor.dtype = dtype;
        tensor.data = stored.back();
        expected[tensor.name] = std::move(half.expected);
      }
    });
    const std::string kind = dtype == DType::kF16 ? "f16" : "bf16";
    import_weights({.source = source_, .checkpoint = directory_.path() / kind});
    export_weights(
        {.checkpoint = directory_.path() / kind, .output = directory_.path() / (kind + "-out")});
    EXPECT_EQ(tensors_of(directory_.path() / (kind + "-out")), expected) << kind;
  }
}

// A slice that begins and ends inside rows, as ranks hold them, in both types.
TEST_P(HuggingFaceDirectory, PartsAreThoseOfTheWhole) {
  const HuggingFaceModel model = read_hugging_face_model(source_);
  const HuggingFaceWeights weights(source_, model.section);
  const Graph graph =
      training_graph(model_family(model.section.name).describe(model.section), 1, 8, DType::kF32);
  for (const ParameterInit& parameter : parameter_inits(graph)) {
    const std::int64_t size = parameter.type.num_elements();
    std::vector<float> whole(static_cast<std::size_t>(size));
    weights.load(std::vector<WeightRead>{
        {.parameter = parameter.name, .out = std::as_writable_bytes(std::span(whole))}});
    std::vector<float> parts(whole.size());
    std::vector<BFloat16> rounded(whole.size());
    std::vector<WeightRead> reads;
    for (std::int64_t first = 0; first < size; first += 37) {
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(37, size - first));
      const auto at = static_cast<std::size_t>(first);
      reads.push_back({.parameter = parameter.name,
                       .first = first,
                       .out = std::as_writable_bytes(std::span(parts).subspan(at, count))});
      reads.push_back({.parameter = parameter.name,
                       .dtype = DType::kBF16,
                       .first = first,
                       .out = std::as_writable_bytes(std::span(rounded).subspan(at, count))});
    }
    weights.load(reads);
    ASSERT_EQ(parts, whole) << parameter.name;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(rounded[i], to_bfloat16(whole[i])) << parameter.name;
    }
  }
}

TEST_P(HuggingFaceDirectory, AllThatDoesNotFitIsToldAtOnce) {
  std::string missing;
  std::string misshapen;
  const std::vector<float> extra(6);
  rewrite([&](std::vector<SafetensorsTensor>& tensors) {
    missing = tensors.back().name;
    tensors.pop_back();
    misshapen = tensors[3].name;
    tensors[3].shape.insert(tensors[3].shape.begin(), 1);
    tensors.push_back(
        {.name = "extra.weight", .shape = {2, 3}, .data = std::as_bytes(std::span(extra))});
  });
  const std::string message = refusal();
  EXPECT_THAT(message, HasSubstr(format("tensor '{}' is missing, expected (", missing)));
  EXPECT_THAT(message, HasSubstr(format("model.safetensors: tensor '{}' at offset ", misshapen)));
  EXPECT_THAT(message, HasSubstr("model.safetensors: tensor 'extra.weight'"));
  EXPECT_FALSE(fs::exists(directory_.path() / "refused"));
}

TEST_P(HuggingFaceDirectory, RefusesAnotherDType) {
  rewrite([&](std::vector<SafetensorsTensor>& tensors) { tensors[1].dtype = DType::kI32; });
  EXPECT_THAT(refusal(), HasSubstr("expected F32, BF16 or F16 ("));
}

TEST_P(HuggingFaceDirectory, AnIndexMustFitItsFiles) {
  const fs::path index = source_ / "model.safetensors.index.json";
  fs::rename(source_ / "model.safetensors", source_ / "other.safetensors");
  write_file_atomic(index, R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                             "b": "other.safetensors"}})");
  const std::string message = refusal();
  EXPECT_THAT(message,
              HasSubstr("model-00001-of-00002.safetensors is not there, which should "
                        "hold 1 tensor, such as 'a'"));
  EXPECT_THAT(message, HasSubstr("other.safetensors has no tensor 'b'"));
  write_file_atomic(index, R"({"weight_map": {"a": "../other.safetensors"}})");
  EXPECT_THAT(refusal(), HasSubstr("expected the name of a file beside the index"));
  write_file_atomic(index, R"({"weight_map": )");
  EXPECT_THAT(refusal(), HasSubstr("model.safetensors.index.json: not JSON"));
  fs::remove(index);
  EXPECT_THAT(refusal(), HasSubstr("has neither model.safetensors nor"));
}

// Masks and frequencies are no weights, and names may lack their prefix.
TEST_P(HuggingFaceDirectory, TakesWhatPublishedFilesHaveBesides) {
  const auto expected = tensors_of(source_);
  const std::string prefix(
      model_family(read_hugging_face_model(source_).section.name).weight_prefix);
  const std::vector<float> mask(4);
  const float masked = -1e4F;  // what older files add where the mask is 0: a scalar
  const bool is_neox = read_hugging_face_model(source_).section.name == "neox";
  rewrite([&](std::vector<SafetensorsTensor>& tensors) {
    for (SafetensorsTensor& tensor : tensors) {
      if (tensor.name.starts_with(prefix)) {
        tensor.name = tensor.name.substr(prefix.size());
      }
    }
    const std::string name = GetParam() == "gpt2" ? "h.0.attn.bias"
                             : is_neox            ? "layers.0.attention.bias"
                                                  : "layers.0.self_attn.rotary_emb.inv_freq";
    tensors.push_back(
        {.name = name, .shape = {1, 1, 2, 2}, .data = std::as_bytes(std::span(mask))});
    if (const std::size_t bias = name.find(".bias"); bias != std::string::npos) {
      tensors.push_back({.name = name.substr(0, bias) + ".masked_bias",
                         .shape = {},
                         .data = std::as_bytes(std::span(&masked, 1))});
    }
  });
  import_weights({.source = source_, .checkpoint = directory_.path() / "a"});
  export_weights({.checkpoint = directory_.path() / "a", .output = directory_.path() / "out"});
  EXPECT_EQ(tensors_of(directory_.path() / "out"), expected);
  // As bits: the same bytes under a dtype that no weight has.
  std::string bytes = read_file(source_ / "model.safetensors");
  const std::size_t mask_at = bytes.find("{\"dtype\":\"F32\",\"shape\":[1,1,2,2]");
  ASSERT_NE(mask_at, std::string::npos);
  bytes[bytes.find('F', mask_at)] = 'U';
  write_file_atomic(source_ / "model.safetensors", bytes);
  import_weights({.source = source_, .checkpoint = directory_.path() / "b"});
}

// A number alone makes no list.
TEST_P(HuggingFaceDirectory, RefusesMoreLayersThanAnyModelHas) {
  const fs::path path = source_ / "config.json";
  const std::string key = GetParam() == "gpt2" ? "\"n_layer\"" : "\"num_hidden_layers\"";
  std::string text = read_file(path);
  const std::size_t value = text.find(':', text.find(key)) + 1;
  text.replace(value, text.find_first_of(",\n", value) - value, " 2000000000");
  write_file_atomic(path, text);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("2000000000"), HasSubstr("from 1 to 10000")));
}

}  // namespace
}  // namespace tessera
