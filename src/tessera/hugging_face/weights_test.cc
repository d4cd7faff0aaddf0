#include "tessera/hugging_face/weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <regex>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/hugging_face/files.h"
#include "tessera/models/family.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kConfig = R"({"model_type": "llama", "hidden_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 10})";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

// A model of one layer, whose weights are in two files and an index: eight tensors of the layer in
// the first one, and the rest.
class HuggingFaceFilesTest : public testing::Test {
 protected:
  HuggingFaceFilesTest() {
    write_test_file(directory_.path() / "config.json", kConfig);
    const HuggingFaceModel model = read_hugging_face_model(directory_.path());
    for (const HuggingFaceWeight& weight :
         model_family("llama3").hugging_face_weights(model.section)) {
      std::int64_t size = 4;
      for (const std::int64_t dim : weight.shape) {
        size *= dim;
      }
      const char* file = files_[kFirst].size() < 8 ? kFirst : kSecond;
      files_[file].push_back(
          {.name = weight.name,
           .shape = weight.shape,
           .data = std::as_bytes(std::span(zeros_)).first(static_cast<std::size_t>(size))});
      index_[weight.name] = file;
    }
  }

  SafetensorsTensor& tensor(const std::string& file, const std::string& name) {
    return *std::ranges::find(files_[file], name, &SafetensorsTensor::name);
  }

  void write() {
    for (const auto& [file, tensors] : files_) {
      write_safetensors(path(file), tensors);
    }
    std::string map;
    for (const auto& [name, file] : index_) {
      map += format("{}\"{}\": \"{}\"", map.empty() ? "" : ", ", name, file);
    }
    write_test_file(path("model.safetensors.index.json"), "{\"weight_map\": {" + map + "}}");
  }

  fs::path path(const std::string& file) const { return directory_.path() / file; }

  void read() const {
    const HuggingFaceWeights weights(directory_.path(),
                                     read_hugging_face_model(directory_.path()).section);
  }

  // The lines of the error, each behind the directory's path where it begins with that.
  std::vector<std::string> problems() const {
    std::string text = error_of(ErrorCode::kInvalidData, [&] { read(); });
    // Each key of a tensor is where the message says.
    const std::regex offset("/([^/]*): tensor '([^']*)' at offset ([0-9]+)");
    for (std::sregex_iterator at(text.begin(), text.end(), offset); at != std::sregex_iterator();
         ++at) {
      const std::string file = read_file(path((*at)[1]));
      EXPECT_TRUE(file.substr(std::stoul((*at)[3])).starts_with('"' + (*at)[2].str() + '"'));
    }
    text = std::regex_replace(text, std::regex(" at offset [0-9]+"), "");
    std::vector<std::string> lines;
    for (std::size_t end = 0; end != std::string::npos; text.erase(0, end + 3)) {
      end = text.find("\n  ");
      std::string line = text.substr(0, end);
      const std::string prefix = directory_.path().string() + "/";
      lines.push_back(line.starts_with(prefix) ? line.substr(prefix.size()) : line);
      if (end == std::string::npos) {
        break;
      }
    }
    return lines;
  }

  TestDirectory directory_;
  std::vector<float> zeros_ = std::vector<float>(200);
  std::map<std::string, std::vector<SafetensorsTensor>> files_;
  std::map<std::string, std::string> index_;
};

TEST_F(HuggingFaceFilesTest, AreReadAsTheIndexSays) {
  write();
  EXPECT_NO_THROW(read());
}

TEST_F(HuggingFaceFilesTest, ATiedHeadIsACopyOfTheEmbedding) {
  std::string config = kConfig;
  config.insert(1, "\"tie_word_embeddings\": true, ");
  write_test_file(path("config.json"), config);
  write();
  EXPECT_NO_THROW(read());
  const std::vector<float> others(80, 1.0F);
  tensor(kSecond, "lm_head.weight").data = std::as_bytes(std::span(others));
  write();
  EXPECT_THAT(problems(),
              testing::Contains(
                  "model-00002-of-00002.safetensors: tensor 'lm_head.weight': f32 (10, 8) is not "
                  "that of 'model.embed_tokens.weight' (f32 (10, 8)), to which config.json ties "
                  "it"));
  tensor(kSecond, "lm_head.weight").shape = {8, 10};
  write();
  EXPECT_THAT(problems(), testing::Contains(HasSubstr("'lm_head.weight': f32 (8, 10) is not")));
}

TEST_F(HuggingFaceFilesTest, AllThatIsWrongIsListedAtOnce) {
  tensor(kFirst, "model.embed_tokens.weight").shape = {8, 10};
  tensor(kFirst, "model.layers.0.self_attn.q_proj.weight").dtype = DType::kI32;
  files_[kFirst].push_back({.name = "other.weight", .shape = {0}});
  // In the other file, in none, in one that is damaged, and in one that is not there.
  std::erase_if(files_[kFirst], [](const SafetensorsTensor& tensor) {
    return tensor.name == "model.layers.0.self_attn.k_proj.weight";
  });
  index_["model.norm.weight"] = kFirst;
  index_["lm_head.weight"] = "damaged.safetensors";
  index_["model.layers.0.mlp.gate_proj.weight"] = "gone.safetensors";
  index_["more.weight"] = "gone.safetensors";
  index_["model.layers.0.mlp.up_proj.weight"] = "../up.safetensors";
  for (auto& [file, tensors] : files_) {
    std::erase_if(tensors, [](const SafetensorsTensor& tensor) {
      return tensor.name == "lm_head.weight" || tensor.name.ends_with("gate_proj.weight") ||
             tensor.name.ends_with("up_proj.weight");
    });
  }
  write();
  write_test_file(path("damaged.safetensors"), "short");
  const std::string directory = directory_.path().string();
  EXPECT_THAT(
      problems(),
      testing::ElementsAre(
          "the weights of " + directory + " do not fit its index or the model of its config.json:",
          "model.safetensors.index.json: \"weight_map\": \"model.layers.0.mlp.up_proj.weight\" at "
          "byte 333: found \"../up.safetensors\", expected the name of a file beside the index",
          "damaged.safetensors: offset 0: found 5 bytes, expected at least the 8 of a safetensors "
          "header length",
          "gone.safetensors is not there, which should hold 2 tensors, such as "
          "'model.layers.0.mlp.gate_proj.weight'",
          format("{} has no tensor 'model.layers.0.self_attn.k_proj.weight'", kFirst),
          format("{} has no tensor 'model.norm.weight', which is in {}/{}",
                 kFirst,
                 directory,
                 kSecond),
          format("{}: tensor 'model.embed_tokens.weight': found f32 (8, 10), expected F32, BF16 or "
                 "F16 (10, 8)",
                 kFirst),
          format("{}: tensor 'model.layers.0.self_attn.q_proj.weight': found i32 (8, 8), expected "
                 "F32, BF16 or F16 (8, 8)",
                 kFirst),
          format("{}: tensor 'other.weight': f32 (0) is none of the model's", kFirst),
          "model.safetensors.index.json: tensor 'more.weight' is none of the model's"));
}

// What no op has is one line, wanted or not; a missing tensor that no index names is another.
TEST_F(HuggingFaceFilesTest, ADtypeThatNoOpHasIsListedOnce) {
  std::vector<SafetensorsTensor> tensors = files_[kFirst];
  tensors.insert(tensors.end(), files_[kSecond].begin(), files_[kSecond].end());
  std::erase_if(tensors,
                [](const SafetensorsTensor& tensor) { return tensor.name == "model.norm.weight"; });
  tensors.push_back({.name = "mask", .shape = {2}, .data = tensors[0].data.first(8)});
  write_safetensors(path("model.safetensors"), tensors);
  std::string bytes = read_file(path("model.safetensors"));
  for (const char* name : {"\"mask\":", "\"lm_head.weight\":"}) {
    bytes[bytes.find('F', bytes.find(name))] = 'U';
  }
  write_test_file(path("model.safetensors"), bytes);
  const std::string directory = directory_.path().string();
  EXPECT_THAT(problems(),
              testing::ElementsAre(
                  "the weights of " + directory + " do not fit the model of its config.json:",
                  directory + ": tensor 'model.norm.weight' is missing, expected (8)",
                  "model.safetensors: tensor 'lm_head.weight': found U32 (10, 8), expected F32, "
                  "BF16 or F16 (10, 8)",
                  "model.safetensors: tensor 'mask': U32 (2) is none of the model's"));
}

// Left there by a save in fewer files: transformers look for model.safetensors first.
TEST_F(HuggingFaceFilesTest, AnIndexBesideTheOneFileIsPassedOver) {
  std::vector<SafetensorsTensor> tensors = files_[kFirst];
  tensors.insert(tensors.end(), files_[kSecond].begin(), files_[kSecond].end());
  write();
  EXPECT_FALSE(has_stale_index(directory_.path()));
  fs::remove(path(kSecond));
  EXPECT_THAT(problems(), testing::Not(testing::IsEmpty()));
  write_safetensors(path("model.safetensors"), tensors);
  EXPECT_TRUE(has_stale_index(directory_.path()));
  EXPECT_NO_THROW(read());
  write_test_file(path("model.safetensors.index.json"), "no index");
  EXPECT_NO_THROW(read());
}

TEST_F(HuggingFaceFilesTest, TheListEnds) {
  for (int i = 0; i < 150; ++i) {
    index_[format("more.{}", i)] = kFirst;
  }
  write();
  const std::vector<std::string> lines = problems();
  ASSERT_EQ(lines.size(), 102U);
  EXPECT_EQ(lines.back(), "and 200 more");
}

TEST_F(HuggingFaceFilesTest, AKeyIsInTheIndexOnce) {
  write();
  write_test_file(
      path("model.safetensors.index.json"),
      format(R"({{"weight_map": {{"a": "{0}", "b": "{0}", "a": "{1}"}}}})", kFirst, kSecond));
  EXPECT_EQ(problems().front(), "model.safetensors.index.json: byte 98: key 'a' appears twice");
  std::string config = kConfig;
  config.insert(config.size() - 1, ", \"hidden_size\": 16");
  write_test_file(path("config.json"), config);
  EXPECT_THAT(problems().front(),
              testing::AllOf(StartsWith("config.json: byte "),
                             HasSubstr("key 'hidden_size' appears twice")));
}

TEST_F(HuggingFaceFilesTest, NamesWhatIsThereInPlaceOfWeights) {
  const auto refusal = [&] {
    return error_of(ErrorCode::kInvalidData, [&] { HuggingFaceFiles(directory_.path(), ""); });
  };
  EXPECT_THAT(
      refusal(),
      ::testing::EndsWith("has neither model.safetensors nor model.safetensors.index.json"));
  write_test_file(path("pytorch_model.bin"), "x");
  EXPECT_THAT(refusal(),
              HasSubstr("it has pytorch_model.bin, which is not read: save the model as"));
  write_test_file(path("adapter_model.safetensors"), "x");
  EXPECT_THAT(refusal(), HasSubstr("it has adapter_model.safetensors, an adapter"));
  write_test_file(path(kFirst), "x");
  EXPECT_THAT(refusal(), HasSubstr(format("it has {} without the index", kFirst)));
  write_test_file(path("model.safetensors"), "version https://git-lfs.github.com/spec/v1\noid");
  EXPECT_THAT(refusal(),
              HasSubstr("model.safetensors is a Git LFS pointer, expected a safetensors "));
}

}  // namespace
}  // namespace tessera
