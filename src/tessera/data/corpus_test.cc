#include "tessera/data/corpus.h"

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/data/megatron.h"
#include "tessera/data/sequence_source.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::filesystem::path kGoldens =
    std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/megatron";

std::vector<std::int32_t> all_tokens(const Corpus& corpus) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(corpus.num_tokens()));
  corpus.read(0, tokens);
  return tokens;
}

std::vector<std::int64_t> starts(const Corpus& corpus) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i <= corpus.num_documents(); ++i) {
    result.push_back(corpus.document_start(i));
  }
  return result;
}

template <class T>
std::string raw(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class CorpusTest : public ::testing::Test {
 protected:
  std::filesystem::path write(std::string_view name, std::string_view bytes) const {
    write_test_file(directory_.path() / name, bytes);
    return directory_.path() / name;
  }

  TestDirectory directory_;
};

TEST_F(CorpusTest, ReadsMegatronFilesAsTheScriptWroteThem) {
  const Corpus corpus = Corpus::open_megatron({{kGoldens / "u16.bin", kGoldens / "i32"}});
  EXPECT_THAT(all_tokens(corpus),
              ElementsAre(1, 2, 3, 65535, 4, 5, 6, 7, 8, 9, 10, 70000, 1, 2, 2, 2, 100000));
  EXPECT_THAT(starts(corpus), ElementsAre(0, 3, 4, 4, 10, 11, 13, 17));
  EXPECT_EQ(corpus.documents_up_to(-1), 0);
  EXPECT_EQ(corpus.documents_up_to(3), 2);
  EXPECT_EQ(corpus.documents_up_to(4), 4);
  EXPECT_EQ(corpus.documents_up_to(100), 7);
  std::vector<std::int32_t> across(4);
  corpus.read(9, across);
  EXPECT_THAT(across, ElementsAre(9, 10, 70000, 1));
  EXPECT_EQ(corpus.place(12), (kGoldens / "i32.bin").string() + ": token 1");
}

TEST_F(CorpusTest, SaysThatIdsWithoutAnIndexAreNotMegatrons) {
  const std::filesystem::path alone = write("train.bin", "abcd");
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { Corpus::open_megatron({&alone, 1}); }),
              HasSubstr("say format = \"tokens\""));
}

TEST_F(CorpusTest, WritesTheBytesOfTheScript) {
  const std::vector<std::int64_t> lengths = {2, 4, 1};
  write_megatron_index(directory_.path() / "out", TokenType::kU16, write("lengths", raw(lengths)));
  EXPECT_EQ(read_file(directory_.path() / "out.idx"), read_file(kGoldens / "plain.idx"));
}

// No file of 4 GB: the index alone.
TEST_F(CorpusTest, CutsADocumentThatIsTooLongForOneSequence) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int64_t> lengths = {3, most + 5, 7};
  write_megatron_index(directory_.path() / "out", TokenType::kI32, write("lengths", raw(lengths)));
  const MappedFile file(directory_.path() / "out.idx");
  const MegatronIndex index(file.bytes(), "out.idx");
  EXPECT_EQ(index.num_sequences(), 4);
  EXPECT_EQ(index.num_documents(), 3);
  EXPECT_EQ(index.num_tokens(), most + 15);
  EXPECT_EQ(index.document_start(2), most + 8);
}

TEST_F(CorpusTest, RefusesAnIndexThatIsNotThatOfTheBin) {
  const std::string bin = read_file(kGoldens / "plain.bin");
  write("a.idx", read_file(kGoldens / "plain.idx"));
  for (const std::string& bad : {bin + "xx", bin.substr(0, bin.size() - 1), std::string()}) {
    write("a.bin", bad);
    EXPECT_EQ(error_of(ErrorCode::kInvalidData,
                       [&] { Corpus::open_megatron({{directory_.path() / "a"}}); }),
              format("{0}.bin: found {1} bytes, expected 14: its index, {0}.idx, lists 7 tokens of "
                     "2 bytes; the two files do not belong together, or one is cut off",
                     (directory_.path() / "a").string(),
                     bad.size()));
  }
}

TEST_F(CorpusTest, RefusesEveryLieOfAnIndex) {
  const std::string good = read_file(kGoldens / "u16.idx");  // 6 sequences, 5 documents
  const auto refusal = [&](std::string bytes) {
    return error_of(ErrorCode::kInvalidData,
                    [&] { MegatronIndex(std::as_bytes(std::span(bytes)), "a.idx"); });
  };
  const auto changed = [&](std::size_t at, auto value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    return bytes;
  };
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(refusal(good.substr(0, size)), StartsWith("a.idx: byte "));
  }
  EXPECT_EQ(refusal(good.substr(0, 33)),
            "a.idx: byte 33: found the end of the file, expected an index of at least 34 bytes");
  EXPECT_EQ(
      refusal(good.substr(0, good.size() - 1)),
      "a.idx: byte 153: found the end of the file, expected it at byte 154, behind 6 sequences "
      "and 6 entries of documents");
  EXPECT_THAT(refusal(changed(0, 'X')), HasSubstr("byte 0: found no \"MMIDIDX\""));
  EXPECT_THAT(refusal(changed(9, std::uint64_t{2})), HasSubstr("byte 9: found version 2"));
  EXPECT_THAT(refusal(changed(17, std::uint8_t{6})), HasSubstr("byte 17: found type 6 of tokens"));
  EXPECT_THAT(refusal(changed(18, std::uint64_t{1} << 62U)),
              HasSubstr("byte 18: found 4611686018427387904 sequences"));
  EXPECT_THAT(refusal(changed(26, ~std::uint64_t{0})), HasSubstr("entries of documents in a file"));
  EXPECT_THAT(refusal(changed(26, std::uint64_t{0})), HasSubstr("at least one entry"));
  EXPECT_THAT(refusal(changed(34, std::int32_t{-1})),
              HasSubstr("byte 34: found a sequence of -1 tokens"));
  EXPECT_EQ(refusal(changed(34 + 24 + 8, std::int64_t{7})),
            "a.idx: byte 66: found that sequence 1 begins at byte 7 of the .bin, expected 6, where "
            "the one before it ends");
  EXPECT_EQ(refusal(changed(34 + 24 + 48 + 8, std::int64_t{9})),
            "a.idx: byte 114: found that document 1 begins with sequence 9, expected one from 0 to "
            "6");
  EXPECT_EQ(refusal(changed(34 + 24 + 48 + 40, std::int64_t{5})),
            "a.idx: byte 146: found that document 5 begins with sequence 5, expected 6");
}

TEST_F(CorpusTest, ReadsBareTokens) {
  const std::filesystem::path a = write("a", raw<std::uint16_t>({1, 2, 9, 3, 9}));
  const std::filesystem::path b = write("b", raw<std::uint16_t>({65535}));
  const Corpus corpus = Corpus::open_tokens({{a, b}}, TokenType::kU16, 9);
  EXPECT_THAT(all_tokens(corpus), ElementsAre(1, 2, 9, 3, 9, 65535));
  EXPECT_THAT(starts(corpus), ElementsAre(0, 3, 5, 6));
  const std::filesystem::path wide = write("c", raw<std::uint32_t>({1, 4'000'000'000, 3}));
  EXPECT_THAT(all_tokens(Corpus::open_tokens({{wide}}, TokenType::kU32, std::nullopt)),
              ElementsAre(1, kNoToken, 3));
  const std::filesystem::path odd = write("odd", "abc");
  EXPECT_EQ(error_of(ErrorCode::kInvalidData,
                     [&] { Corpus::open_tokens({{odd}}, TokenType::kU16, std::nullopt); }),
            odd.string() + ": found 3 bytes, expected tokens of 2 bytes each (u16)");
}

TEST_F(CorpusTest, AnIdThatIsNoTokensIsNamed) {
  const std::filesystem::path a = write("a", raw<std::uint16_t>({1, 2, 300, 3, 4}));
  const auto corpus =
      std::make_shared<const Corpus>(Corpus::open_tokens({{a}}, TokenType::kU16, std::nullopt));
  std::vector<std::int32_t> memory(8);
  const std::span<std::int32_t> words(memory);
  const SequenceBuffers buffers = {.inputs = words.first(2),
                                   .labels = words.subspan(2, 2),
                                   .positions = words.subspan(4, 2),
                                   .documents = words.subspan(6, 2)};
  const SequenceSource source({{.corpus = corpus, .begin = 0, .end = 5}},
                              {.sequence_length = 2, .vocab = 300});
  EXPECT_EQ(error_of(ErrorCode::kInvalidData, [&] { source.read(0, buffers); }),
            a.string() +
                ": token 2: found id 300, expected an id from 0 to 299: the file was made "
                "with another tokenizer or is of another type");
}

TEST_F(CorpusTest, ASplitCutsAtADocument) {
  // Documents begin at 0, 3, 4, 4, 10; 11 tokens.
  const auto corpus =
      std::make_shared<const Corpus>(Corpus::open_megatron({{kGoldens / "u16.idx"}}));
  const auto cut = [&](double share) {
    const CorpusSplit split = split_corpus(corpus, share);
    EXPECT_EQ(split.train.begin, 0);
    EXPECT_EQ(split.train.end, split.validation.begin);
    EXPECT_EQ(split.validation.end, 11);
    return split.train.end;
  };
  EXPECT_EQ(cut(0), 11);
  EXPECT_EQ(cut(0.05), 11) << "half a token is none";
  EXPECT_EQ(cut(0.1), 10);
  EXPECT_EQ(cut(0.5), 10) << "at 6, inside a document";
  EXPECT_EQ(cut(0.7), 4);
  EXPECT_EQ(cut(0.8), 3);
  // One document is cut where the share says.
  const std::filesystem::path one = write("one", raw<std::uint16_t>({1, 2, 3, 4}));
  const auto single =
      std::make_shared<const Corpus>(Corpus::open_tokens({{one}}, TokenType::kU16, std::nullopt));
  EXPECT_EQ(split_corpus(single, 0.5).train.end, 2);
}

// Empty documents begin where the next does and hide nothing.
TEST_F(CorpusTest, SequencesPassEmptyDocuments) {
  const auto corpus =
      std::make_shared<const Corpus>(Corpus::open_megatron({{kGoldens / "u16.idx"}}));
  const SequenceSource source(
      {{.corpus = corpus, .begin = 0, .end = 11}, {.corpus = corpus, .begin = 2, .end = 8}},
      {.sequence_length = 5, .mask_boundary = true});
  EXPECT_EQ(source.num_sequences(), 3);
  EXPECT_THAT(source.part_sequences(), ElementsAre(2, 1));
  EXPECT_EQ(source.num_tokens(), 17);
  std::vector<std::int32_t> inputs(5), labels(5), positions(5), documents(5);
  const SequenceBuffers buffers = {
      .inputs = inputs, .labels = labels, .positions = positions, .documents = documents};
  source.read(0, buffers);
  EXPECT_THAT(inputs, ElementsAre(1, 2, 3, 65535, 4));
  EXPECT_THAT(labels, ElementsAre(2, 3, -1, -1, 5));
  EXPECT_THAT(positions, ElementsAre(0, 1, 2, 0, 0));
  EXPECT_THAT(documents, ElementsAre(0, 0, 0, 1, 2));
  EXPECT_EQ(source.num_valid_labels(0), 3);
  source.read(2, buffers);
  EXPECT_THAT(inputs, ElementsAre(3, 65535, 4, 5, 6));
  EXPECT_THAT(labels, ElementsAre(-1, -1, 5, 6, 7));
}

}  // namespace
}  // namespace tessera
