#include "tessera/data/packed_conversations.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/data/conversation.h"
#include "tessera/data/token_stream.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of a sequence: inputs, labels, positions, documents.
struct Sequence {
  std::vector<std::int32_t> inputs, labels, positions, documents;

  bool operator==(const Sequence&) const = default;
};

Sequence read(const SequenceSource& source, std::int64_t index) {
  const std::vector<std::int32_t> unset(static_cast<std::size_t>(source.sequence_length()), -9);
  Sequence s = {.inputs = unset, .labels = unset, .positions = unset, .documents = unset};
  source.read(
      index,
      {.inputs = s.inputs, .labels = s.labels, .positions = s.positions, .documents = s.documents});
  return s;
}

using Conversation = std::vector<std::int32_t>;

constexpr std::int32_t t(std::int32_t id) {
  return as_trained(id);
}

TokenStream make_stream(const std::vector<Conversation>& conversations) {
  TokenStream stream;
  stream.holds_conversations = true;
  for (const Conversation& conversation : conversations) {
    stream.document_starts.push_back(static_cast<std::int64_t>(stream.tokens.size()));
    stream.tokens.append(conversation);
  }
  stream.tokens.seal();
  return stream;
}

// The second fits behind the first, the third does not; the fourth is longer than a sequence.
const std::vector<Conversation> kConversations = {{1, 2, t(3)},
                                                  {4, t(5), t(6), 7},
                                                  {8, t(9)},
                                                  {10, 11, 12, 13, 14, 15, t(16), t(17)},
                                                  {18, t(19)}};

TEST(PackedConversations, LaysWholeOnesWithPaddingBehind) {
  const SequenceSource source(make_stream(kConversations), {.sequence_length = 5, .padding = 99});
  ASSERT_EQ(source.num_sequences(), 4);
  EXPECT_EQ(read(source, 0),
            (Sequence{.inputs = {1, 2, 4, 5, 6},
                      .labels = {-1, 3, 5, 6, -1},
                      .positions = {0, 1, 0, 1, 2},
                      .documents = {0, 0, 1, 1, 1}}));
  EXPECT_EQ(read(source, 1),
            (Sequence{.inputs = {8, 99, 99, 99, 99},
                      .labels = {9, -1, -1, -1, -1},
                      .positions = {0, 0, 1, 2, 3},
                      .documents = {0, 1, 1, 1, 1}}));
  // Cut behind its sixth token; nothing of what is trained is left.
  EXPECT_EQ(read(source, 2),
            (Sequence{.inputs = {10, 11, 12, 13, 14},
                      .labels = {-1, -1, -1, -1, -1},
                      .positions = {0, 1, 2, 3, 4},
                      .documents = {0, 0, 0, 0, 0}}));
  EXPECT_THAT(read(source, 3).inputs, ElementsAre(18, 99, 99, 99, 99));
  const Packing packing = source.packing();
  EXPECT_EQ(packing.conversations, 5);
  EXPECT_EQ(packing.sequences, 4);
  EXPECT_EQ(packing.places, 20);
  EXPECT_EQ(packing.filled, 5 + 1 + 5 + 1);
  EXPECT_EQ(packing.labels, 3 + 1 + 0 + 1);
  EXPECT_EQ(packing.cut, 1);
  EXPECT_EQ(packing.cut_to_nothing, 1);
}

TEST(PackedConversations, WithoutDocumentMaskASequenceIsOneDocument) {
  const SequenceSource source(make_stream(kConversations),
                              {.sequence_length = 5, .document_mask = false});
  EXPECT_THAT(read(source, 0).positions, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(read(source, 1).positions, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(read(source, 1).documents, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(read(source, 1).labels, ElementsAre(9, -1, -1, -1, -1));
}

std::vector<Conversation> random_conversations(std::mt19937& random, std::size_t count) {
  std::vector<Conversation> conversations(count);
  std::int32_t id = 0;
  for (Conversation& conversation : conversations) {
    conversation.resize(2 + random() % 20);
    for (std::int32_t& token : conversation) {
      token = random() % 3 == 0 ? t(id) : id;
      ++id;
    }
  }
  return conversations;
}

// Token by token, all ids being different: which pairs of neighbours the sequences hold.
TEST(PackedConversations, EveryLabelOfWhatFitsCountsOnceInOrder) {
  std::mt19937 random(3);
  const std::vector<Conversation> conversations = random_conversations(random, 300);
  const std::int64_t length = 16;
  std::vector<std::vector<std::int32_t>> wanted;
  for (const Conversation& conversation : conversations) {
    for (std::size_t i = 1; i < std::min<std::size_t>(conversation.size(), 17); ++i) {
      if (is_trained(conversation[i])) {
        wanted.push_back({id_of(conversation[i - 1]), id_of(conversation[i])});
      }
    }
  }
  const SequenceSource source(make_stream(conversations), {.sequence_length = length});
  std::vector<std::vector<std::int32_t>> found;
  for (std::int64_t i = 0; i < source.num_sequences(); ++i) {
    const Sequence sequence = read(source, i);
    const std::size_t before = found.size();
    for (std::size_t at = 0; at < sequence.inputs.size(); ++at) {
      if (sequence.labels[at] != kIgnoredLabel) {
        found.push_back({sequence.inputs[at], sequence.labels[at]});
      }
    }
    EXPECT_EQ(source.num_valid_labels(i), std::ssize(found) - static_cast<std::int64_t>(before));
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(source.packing().labels, std::ssize(wanted));
}

TEST(PackedConversations, ASplitKeepsConversationsWhole) {
  const auto corpus = std::make_shared<const Corpus>(make_stream(kConversations));
  const SequenceOptions options = {.sequence_length = 5};
  const CorpusSplit split = split_corpus(corpus, 0.5);
  const SequenceSource train({split.train}, options);
  const SequenceSource validation({split.validation}, options);
  EXPECT_EQ(train.packing().conversations, 4);
  EXPECT_EQ(validation.packing().conversations, 1);
  EXPECT_THAT(read(validation, 0).inputs, ElementsAre(18, 0, 0, 0, 0));
  // The last conversation is not cut in two: it stays where it begins.
  const CorpusSplit tiny = split_corpus(corpus, 0.05);
  EXPECT_EQ(SequenceSource({tiny.train}, options).packing().conversations, 5);
  try {
    const SequenceSource none({tiny.validation}, options);
    FAIL() << "a part without a conversation";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
    EXPECT_THAT(error.what(), HasSubstr("found no conversation here"));
  }
}

TEST(PackedConversations, StandBesideOtherParts) {
  TokenStream text;
  text.document_starts = {0};
  text.tokens.append(std::vector<std::int32_t>{50, 51, 52, 53, 54, 55});
  text.tokens.seal();
  const auto plain = std::make_shared<const Corpus>(std::move(text));
  const auto chat = std::make_shared<const Corpus>(make_stream(kConversations));
  const SequenceSource source({{.corpus = plain, .begin = 0, .end = 6},
                               {.corpus = chat, .begin = 0, .end = chat->num_tokens()}},
                              {.sequence_length = 5});
  EXPECT_THAT(source.part_sequences(), ElementsAre(1, 4));
  EXPECT_THAT(read(source, 0).labels, ElementsAre(51, 52, 53, 54, 55));
  EXPECT_EQ(source.num_valid_labels(0), 5);
  EXPECT_THAT(read(source, 1).labels, ElementsAre(-1, 3, 5, 6, -1));
  EXPECT_EQ(source.num_valid_labels(1), 3);
}

}  // namespace
}  // namespace tessera
