#include "tessera/data/tokenize_job.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/data/corpus.h"
#include "tessera/data/token_stream.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TextEncoder byte_encoder() {
  const auto encode = [](std::string_view text, bool, const TokenSink& sink) {
    sink(std::vector<std::int32_t>(text.begin(), text.end()));
  };
  const auto find_cut = [](std::string_view text, std::size_t most) {
    const std::size_t at = text.rfind(' ', most);
    return at == std::string_view::npos ? 0 : at;
  };
  return {.encode = encode, .find_cut = find_cut, .before = {256}, .eos = 257};
}

// byte_encoder(), until the texts that may be encoded are used up.
TextEncoder failing_encoder(int& texts) {
  TextEncoder encoder = byte_encoder();
  encoder.encode = [&texts, whole = encoder.encode](
                       std::string_view text, bool continues, const TokenSink& sink) {
    if (--texts < 0) {
      throw std::runtime_error("the power is off");
    }
    whole(text, continues, sink);
  };
  return encoder;
}

class TokenizeJobTest : public ::testing::Test {
 protected:
  TokenizeJobTest() {
    std::string lines;
    for (int i = 0; i < 60'000; ++i) {
      lines += format("{{\"text\": \"line {} of this file\"}}\n", i);
    }
    for (const std::string name : {"a.jsonl", "b.jsonl"}) {
      write_test_file(path(name), lines);
      files_.push_back(path(name));
    }
  }

  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }

  TokenizeOptions options(const std::string& prefix) const {
    TokenizeOptions result;
    result.text.format = TextFormat::kJsonl;
    result.text.scratch = directory_.path();
    result.prefix = path(prefix);
    result.save_bytes = 100'000;
    return result;
  }

  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(prefix + ".")) {
        found.push_back(name);
      }
    }
    return found;
  }

  TestDirectory directory_;
  std::vector<std::filesystem::path> files_;
};

TEST_F(TokenizeJobTest, WritesWhatTrainingReadsFromTheText) {
  TokenizeOptions job = options("out");
  job.text.threads = 3;
  const TokenizeResult result = tokenize_to_megatron(files_, byte_encoder(), job);
  EXPECT_THAT(names("out"), UnorderedElementsAre("out.bin", "out.idx"));
  const Corpus corpus = Corpus::open_megatron({{path("out")}});
  const Corpus text(tokenize_text_files(files_, byte_encoder(), job.text));
  ASSERT_EQ(corpus.num_tokens(), text.num_tokens());
  EXPECT_EQ(result.end.tokens, text.num_tokens());
  EXPECT_EQ(result.end.documents, 120'000);
  ASSERT_EQ(corpus.num_documents(), 120'000);
  std::vector<std::int32_t> a(static_cast<std::size_t>(text.num_tokens()));
  std::vector<std::int32_t> b(a.size());
  corpus.read(0, a);
  text.read(0, b);
  EXPECT_TRUE(a == b);
  for (std::int64_t i = 0; i <= corpus.num_documents(); ++i) {
    ASSERT_EQ(corpus.document_start(i), text.document_start(i));
  }
}

TEST_F(TokenizeJobTest, GoesOnAfterAStopToTheSameBytes) {
  tokenize_to_megatron(files_, byte_encoder(), options("whole"));
  for (const int texts : {100, 30'000, 65'000, 119'999}) {
    int left = texts;
    const TokenizeOptions job = options("out");
    EXPECT_THROW(tokenize_to_megatron(files_, failing_encoder(left), job), std::runtime_error);
    left = 120'000;
    const TokenizeResult result = tokenize_to_megatron(files_, failing_encoder(left), job);
    EXPECT_EQ(result.resumed_bytes > 0, texts > 100) << texts;
    EXPECT_LE(120'000 - left, 120'000 - texts + 40'000) << "the rest, and what was not saved";
    EXPECT_TRUE(read_file(path("out.bin")) == read_file(path("whole.bin"))) << texts;
    EXPECT_TRUE(read_file(path("out.idx")) == read_file(path("whole.idx"))) << texts;
    EXPECT_THAT(names("out"), UnorderedElementsAre("out.bin", "out.idx"));
    std::filesystem::remove(path("out.bin"));
    std::filesystem::remove(path("out.idx"));
  }
}

TEST_F(TokenizeJobTest, LeavesNothingThatNoRunGoesOnFrom) {
  write_test_file(path("empty.jsonl"), "");
  for (const char* last : {"none.jsonl", "empty.jsonl"}) {
    files_.back() = path(last);
    EXPECT_NE(error_of(ErrorCode::kInvalidData,
                       [&] { tokenize_to_megatron(files_, byte_encoder(), options("out")); }),
              "");
    EXPECT_THAT(names("out"), IsEmpty());
  }
  files_.back() = path("b.jsonl");
  int left = 100;
  EXPECT_THROW(tokenize_to_megatron(files_, failing_encoder(left), options("out")),
               std::runtime_error);
  EXPECT_THAT(names("out"), IsEmpty());
  left = 70'000;
  EXPECT_THROW(tokenize_to_megatron(files_, failing_encoder(left), options("out")),
               std::runtime_error);
  EXPECT_THAT(names("out"),
              UnorderedElementsAre("out.bin.partial", "out.lengths.partial", "out.journal"));
}

TEST_F(TokenizeJobTest, BeginsAnewWhereTheWorkChanged) {
  int left = 70'000;
  EXPECT_THROW(tokenize_to_megatron(files_, failing_encoder(left), options("out")),
               std::runtime_error);
  TokenizeOptions other = options("out");
  other.text.add_bos = false;
  EXPECT_EQ(tokenize_to_megatron(files_, byte_encoder(), other).resumed_bytes, 0);
  EXPECT_EQ(Corpus::open_megatron({{path("out")}}).num_documents(), 120'000);
}

TEST_F(TokenizeJobTest, ReplacesAnOutputOnlyWhenAsked) {
  TokenizeOptions job = options("out");
  write_test_file(path("out.idx"), "mine");
  EXPECT_THAT(error_of(ErrorCode::kInvalidConfig,
                       [&] { tokenize_to_megatron(files_, byte_encoder(), job); }),
              HasSubstr("out.idx exists: choose another --output, or replace it with --force"));
  EXPECT_EQ(read_file(path("out.idx")), "mine");
  job.force = true;
  tokenize_to_megatron(files_, byte_encoder(), job);
  EXPECT_EQ(Corpus::open_megatron({{path("out")}}).num_documents(), 120'000);
}

}  // namespace
}  // namespace tessera
