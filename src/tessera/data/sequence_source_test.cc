#include "tessera/data/sequence_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/token_stream.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

struct Sequence {
  explicit Sequence(std::size_t length)
      : inputs(length, -9), labels(length, -9), positions(length, -9), documents(length, -9) {}

  SequenceBuffers buffers() {
    return {.inputs = inputs, .labels = labels, .positions = positions, .documents = documents};
  }

  std::vector<std::int32_t> inputs, labels, positions, documents;
};

Sequence read(const SequenceSource& source, std::int64_t index) {
  Sequence sequence(static_cast<std::size_t>(source.sequence_length()));
  source.read(index, sequence.buffers());
  return sequence;
}

// Tokens 100, 101, ...; documents of the given lengths.
TokenStream make_stream(const std::vector<std::int64_t>& lengths) {
  TokenStream stream;
  for (const std::int64_t length : lengths) {
    stream.document_starts.push_back(static_cast<std::int64_t>(stream.tokens.size()));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(100 + stream.tokens.size()));
    stream.tokens.append(tokens);
  }
  stream.tokens.seal();
  return stream;
}

// Documents begin at tokens 0, 3, 8, 9.
const std::vector<std::int64_t> kLengths = {3, 5, 1, 6};

TEST(SequenceSource, CutsWithOneSharedToken) {
  const SequenceSource source(make_stream(kLengths), {.sequence_length = 4});
  EXPECT_EQ(source.num_tokens(), 15);
  EXPECT_EQ(source.num_documents(), 4);
  ASSERT_EQ(source.num_sequences(), 3);  // 13 tokens; the tail of 2 is dropped
  EXPECT_THAT(read(source, 0).inputs, ElementsAre(100, 101, 102, 103));
  EXPECT_THAT(read(source, 0).labels, ElementsAre(101, 102, 103, 104));
  EXPECT_THAT(read(source, 2).inputs, ElementsAre(108, 109, 110, 111));
  EXPECT_THAT(read(source, 2).labels, ElementsAre(109, 110, 111, 112));
}

TEST(SequenceSource, KeepsTheTail) {
  const SequenceOptions options = {.sequence_length = 4, .mask_boundary = true, .keep_tail = true};
  const SequenceSource source(make_stream(kLengths), options);
  ASSERT_EQ(source.num_sequences(), 4);
  EXPECT_THAT(read(source, 2).inputs, ElementsAre(108, 109, 110, 111));
  EXPECT_THAT(read(source, 3).inputs, ElementsAre(112, 113, 0, 0));
  EXPECT_THAT(read(source, 3).labels, ElementsAre(113, 114, -1, -1));
  EXPECT_EQ(source.num_valid_labels(3), 2);
  EXPECT_EQ(source.num_valid_labels(2), 3) << "document 3 begins at token 109";
  // Nothing is left where the labels fill the sequences, and a part may be one tail.
  EXPECT_EQ(SequenceSource(make_stream({9}), options).num_sequences(), 2);
  const SequenceSource two(make_stream({2}), options);
  ASSERT_EQ(two.num_sequences(), 1);
  EXPECT_THAT(read(two, 0).labels, ElementsAre(101, -1, -1, -1));
}

TEST(SequenceSource, NumbersDocumentsWithinTheSequence) {
  const SequenceSource source(make_stream(kLengths), {.sequence_length = 4});
  EXPECT_THAT(read(source, 0).positions, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(read(source, 0).documents, ElementsAre(0, 0, 0, 1));
  // Goes on inside a document: a sequence knows nothing of the one before.
  EXPECT_THAT(read(source, 1).positions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(read(source, 1).documents, ElementsAre(0, 0, 0, 0));
  // Begins with a document of one token.
  EXPECT_THAT(read(source, 2).positions, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(read(source, 2).documents, ElementsAre(0, 1, 1, 1));
}

TEST(SequenceSource, WithoutDocumentMaskSeesOneDocument) {
  const SequenceSource source(make_stream(kLengths),
                              {.sequence_length = 7, .document_mask = false});
  ASSERT_EQ(source.num_sequences(), 2);  // uses all 15 tokens
  EXPECT_THAT(read(source, 1).inputs, ElementsAre(107, 108, 109, 110, 111, 112, 113));
  EXPECT_THAT(read(source, 1).positions, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(read(source, 1).documents, ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

TEST(SequenceSource, MasksLabelsAcrossBoundaries) {
  for (const bool document_mask : {true, false}) {
    const SequenceSource source(
        make_stream(kLengths),
        {.sequence_length = 4, .document_mask = document_mask, .mask_boundary = true});
    EXPECT_THAT(read(source, 0).labels, ElementsAre(101, 102, -1, 104));
    // The boundary lies between this sequence and the next.
    EXPECT_THAT(read(source, 1).labels, ElementsAre(105, 106, 107, -1));
    EXPECT_THAT(read(source, 2).labels, ElementsAre(-1, 110, 111, 112));
    EXPECT_EQ(source.num_valid_labels(0), 3);
    EXPECT_EQ(source.num_valid_labels(1), 3);
    EXPECT_EQ(source.num_valid_labels(2), 3);
  }
}

// docs/design/data-order.md read token by token.
Sequence expected_sequence(const TokenStream& stream,
                           const SequenceOptions& options,
                           std::int64_t index) {
  const auto is_start = [&](std::int64_t token) {
    return std::count(stream.document_starts.begin(), stream.document_starts.end(), token) != 0;
  };
  Sequence sequence(static_cast<std::size_t>(options.sequence_length));
  const std::int64_t begin = index * options.sequence_length;
  std::int32_t document = 0;
  std::int64_t document_begin = begin;
  for (std::size_t t = 0; t < sequence.inputs.size(); ++t) {
    const std::int64_t token = begin + static_cast<std::int64_t>(t);
    if (t > 0 && is_start(token)) {
      ++document;
      document_begin = token;
    }
    const bool ignored = options.mask_boundary && is_start(token + 1);
    sequence.inputs[t] = static_cast<std::int32_t>(100 + token);
    sequence.labels[t] = ignored ? kIgnoredLabel : static_cast<std::int32_t>(101 + token);
    sequence.positions[t] = static_cast<std::int32_t>(token - document_begin);
    sequence.documents[t] = document;
  }
  return sequence;
}

TEST(SequenceSource, AgreesWithADirectReading) {
  const std::vector<std::int64_t> lengths = {1, 1, 7, 2, 30, 1, 12, 5, 64, 3};
  const TokenStream stream = make_stream(lengths);
  for (std::int64_t length = 1; length <= 125; ++length) {
    const SequenceOptions options{.sequence_length = length, .mask_boundary = length % 3 != 0};
    const SequenceSource source(make_stream(lengths), options);
    ASSERT_EQ(source.num_sequences(), 125 / length);
    for (std::int64_t i = 0; i < source.num_sequences(); ++i) {
      const Sequence expected = expected_sequence(stream, options, i);
      const Sequence found = read(source, i);
      ASSERT_EQ(found.inputs, expected.inputs);
      ASSERT_EQ(found.labels, expected.labels);
      ASSERT_EQ(found.positions, expected.positions);
      ASSERT_EQ(found.documents, expected.documents);
      ASSERT_EQ(source.num_valid_labels(i),
                length - std::count(expected.labels.begin(), expected.labels.end(), kIgnoredLabel));
    }
  }
}

Error caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::kInternal, "no error"};
}

TEST(SequenceSource, RefusesASequenceLongerThanTheData) {
  const Error error = caught([] { SequenceSource(make_stream({3, 5}), {.sequence_length = 8}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
  EXPECT_EQ(error.message(),
            "data.sequence_length = 8 is longer than the data: found 8 tokens, expected at least "
            "9; add data, or set data.sequence_length to at most 7");
  EXPECT_EQ(SequenceSource(make_stream({3, 5}), {.sequence_length = 7}).num_sequences(), 1);
}

TEST(SequenceSource, RefusesBadArguments) {
  const Error zero = caught([] { SequenceSource(make_stream({3}), {.sequence_length = 0}); });
  EXPECT_EQ(zero.code(), ErrorCode::kInvalidConfig);
  EXPECT_EQ(zero.message(), "data.sequence_length is 0: expected at least 1");

  const SequenceSource source(make_stream({9}), {.sequence_length = 4});
  Sequence good(4);
  for (const std::int64_t index : {-1, 2}) {
    const Error error = caught([&] { source.read(index, good.buffers()); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), format("sequence {}: expected one in [0, 2)", index));
    EXPECT_EQ(caught([&] { source.num_valid_labels(index); }).message(), error.message());
  }
  Sequence bad(4);
  bad.labels.resize(3);
  EXPECT_EQ(caught([&] { source.read(0, bad.buffers()); }).message(),
            "buffers of 4, 3, 4 and 4 tokens: expected 4 each");
}

}  // namespace
}  // namespace tessera
