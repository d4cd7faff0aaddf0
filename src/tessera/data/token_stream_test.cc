#include "tessera/data/token_stream.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

std::vector<std::int32_t> tokens_of(std::string_view text) {
  std::vector<std::int32_t> tokens;
  for (const char c : text) {
    tokens.push_back(static_cast<unsigned char>(c));
  }
  return tokens;
}

// One token per byte, in two parts; BOS 256, EOS 257.
TextEncoder byte_encoder() {
  const auto encode = [](std::string_view text, bool, const TokenSink& sink) {
    sink(tokens_of(text.substr(0, text.size() / 3)));
    sink(tokens_of(text.substr(text.size() / 3)));
  };
  return {.encode = encode, .before = {256}, .eos = 257};
}

class TokenStreamTest : public ::testing::Test {
 protected:
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    write_test_file(directory_.path() / name, text);
    return directory_.path() / name;
  }

  TestDirectory directory_;
};

TEST_F(TokenStreamTest, AFileIsADocument) {
  const std::vector<std::filesystem::path> files = {write("b", "xy\n"), write("a", "z")};
  const TokenStream stream = tokenize_text_files(files, byte_encoder(), {});
  EXPECT_THAT(stream.tokens, ElementsAre(256, 'x', 'y', '\n', 257, 256, 'z', 257));
  EXPECT_THAT(stream.document_starts, ElementsAre(0, 5));
}

TEST_F(TokenStreamTest, ASeparatorCutsDocuments) {
  const std::vector<std::filesystem::path> files = {write("a", "<|>one<|><|>two<|>"),
                                                    write("b", "three<|")};
  const TokenStream stream = tokenize_text_files(
      files, byte_encoder(), {.document_separator = "<|>", .add_bos = false, .add_eos = false});
  EXPECT_THAT(stream.tokens, ElementsAreArray(tokens_of("onetwothree<|")));
  EXPECT_THAT(stream.document_starts, ElementsAre(0, 3, 6));
}

TEST_F(TokenStreamTest, MarksOnlyWhatTheTokenizerHasAndTheOptionsAsk) {
  const std::vector<std::filesystem::path> files = {write("a", "x")};
  TextEncoder encoder = byte_encoder();
  EXPECT_THAT(tokenize_text_files(files, encoder, {.add_bos = false}).tokens,
              ElementsAre('x', 257));
  encoder.eos.reset();
  EXPECT_THAT(tokenize_text_files(files, encoder, {}).tokens, ElementsAre(256, 'x'));
}

TEST_F(TokenStreamTest, ADocumentWithoutTokensIsNone) {
  const std::vector<std::filesystem::path> files = {write("a", "x|y|z")};
  TextEncoder encoder = byte_encoder();
  encoder.encode = [](std::string_view text, bool, const TokenSink& sink) {
    sink(text == "y" ? std::vector<std::int32_t>{} : tokens_of(text));
  };
  const TokenStream stream = tokenize_text_files(
      files, encoder, {.document_separator = "|", .add_bos = false, .add_eos = false});
  EXPECT_THAT(stream.tokens, ElementsAre('x', 'z'));
  EXPECT_THAT(stream.document_starts, ElementsAre(0, 1));
}

TEST_F(TokenStreamTest, BytesThatAreNotUtf8ReachTheTokenizer) {
  const std::string bytes("\xff\x00\xc3(", 4);
  const std::vector<std::filesystem::path> files = {write("a", bytes)};
  EXPECT_THAT(tokenize_text_files(files, byte_encoder(), {}).tokens,
              ElementsAre(256, 0xff, 0, 0xc3, '(', 257));
}

TEST_F(TokenStreamTest, ThreadsAndWavesDoNotChangeTheResult) {
  std::vector<std::filesystem::path> files;
  std::string expected;
  for (int i = 0; i < 600; ++i) {  // more than two waves
    files.push_back(write(format("{}", i), format("text of {}|second of {}", i, i * i)));
    expected += format("text of {}second of {}", i, i * i);
  }
  TextOptions options{.document_separator = "|", .add_bos = false, .add_eos = false};
  const TokenStream one = tokenize_text_files(files, byte_encoder(), options);
  EXPECT_THAT(one.tokens, ElementsAreArray(tokens_of(expected)));
  EXPECT_EQ(one.document_starts.size(), 1200U);
  options.threads = 5;
  const TokenStream five = tokenize_text_files(files, byte_encoder(), options);
  EXPECT_THAT(five.tokens, ElementsAreArray(one.tokens));
  EXPECT_EQ(five.document_starts, one.document_starts);
}

// A document longer than a batch goes from the tokenizer to the file part by part.
TEST_F(TokenStreamTest, LongDocumentsStandWhereShortOnesDo) {
  const std::string text(std::size_t{5} << 20U, 'a');
  const std::vector<std::filesystem::path> files = {write("a", "xy|" + text + "|z|" + text)};
  const TokenStream stream =
      tokenize_text_files(files, byte_encoder(), {.document_separator = "|", .threads = 2});
  EXPECT_EQ(stream.tokens.size(), 2 * text.size() + 3 + 8);
  const auto length = static_cast<std::int64_t>(text.size());
  EXPECT_THAT(stream.document_starts, ElementsAre(0, 4, length + 6, length + 9));
  EXPECT_EQ(stream.tokens.tokens()[static_cast<std::size_t>(length) + 7], 'z');
  EXPECT_EQ(stream.tokens.tokens().back(), 257);
}

TEST_F(TokenStreamTest, AnErrorOfTheTokenizerComesThrough) {
  const std::vector<std::filesystem::path> files = {write("a", "x|x|x|bad|x|x")};
  TextEncoder encoder = byte_encoder();
  encoder.encode = [](std::string_view text, bool, const TokenSink& sink) {
    if (text == "bad") {
      throw std::runtime_error("cannot encode");
    }
    sink(tokens_of(text));
  };
  EXPECT_THROW(tokenize_text_files(files, encoder, {.document_separator = "|", .threads = 3}),
               std::runtime_error);
}

std::string invalid_data(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    return error.message();
  }
  return "no error";
}

TEST_F(TokenStreamTest, RefusesBadFilesByName) {
  const std::filesystem::path good = write("good", "text");
  int num_encoded = 0;
  TextEncoder encoder = byte_encoder();
  encoder.encode = [&](std::string_view text, bool, const TokenSink& sink) {
    ++num_encoded;
    sink(tokens_of(text));
  };
  const auto message = [&](const std::filesystem::path& bad) {
    const std::vector<std::filesystem::path> files = {good, bad};
    return invalid_data([&] { tokenize_text_files(files, encoder, {.document_separator = "|"}); });
  };
  const std::filesystem::path missing = directory_.path() / "missing";
  EXPECT_EQ(message(missing),
            format("cannot open {}: No such file or directory", missing.string()));
  const std::filesystem::path empty = write("empty", "");
  EXPECT_EQ(message(empty), format("{} is empty: expected text", empty.string()));
  EXPECT_EQ(message(directory_.path()),
            format("{} is not a regular file but a directory", directory_.path().string()));
  EXPECT_EQ(num_encoded, 0) << "every file is checked before the first is encoded";
  const std::filesystem::path separators = write("separators", "||");
  EXPECT_EQ(message(separators),
            format("{} holds document separators only: expected text", separators.string()));
  EXPECT_EQ(invalid_data([&] { tokenize_text_files({}, encoder, {}); }),
            "no data files given: expected at least one");
}

TEST_F(TokenStreamTest, RefusesAnUnreadableFile) {
  const std::filesystem::path path = write("secret", "text");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  const std::vector<std::filesystem::path> files = {path};
  if (::access(path.c_str(), R_OK) == 0) {
    // Root reads everything: for it there is no unreadable file to refuse.
    EXPECT_EQ(tokenize_text_files(files, byte_encoder(), {}).tokens.size(), 6U);
    return;
  }
  EXPECT_EQ(invalid_data([&] { tokenize_text_files(files, byte_encoder(), {}); }),
            format("cannot open {}: Permission denied", path.string()));
}

}  // namespace
}  // namespace tessera
