#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/token_stream.h"
#include "tessera/data/token_type.h"

namespace tessera {

class CorpusSegment;

// Tokens of one source of data, one behind the other, and where its documents begin; they stay in
// the files that hold them. Immutable and safe to read from several threads.
class Corpus {
 public:
  Corpus();
  explicit Corpus(TokenStream stream);
  ~Corpus();
  Corpus(Corpus&& other) noexcept;
  Corpus& operator=(Corpus&& other) noexcept;
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  // Files of bare ids, or as token_layout() knows them, one behind the other; a document ends
  // behind each `end` and with each file. Errors: kInvalidData naming a file that is empty,
  // unreadable or holds a part of an id.
  static Corpus open_tokens(std::span<const std::filesystem::path> files,
                            TokenType type,
                            std::optional<std::int32_t> end);

  // Megatron data sets; each path is PREFIX, PREFIX.bin or PREFIX.idx. Errors: kInvalidData as
  // MegatronIndex, and where the index is not that of the .bin.
  static Corpus open_megatron(std::span<const std::filesystem::path> paths);

  // Adds the documents of `other` behind its own. Errors: kInvalidData where conversations would
  // follow other data, or the other way round.
  void append(Corpus other);

  std::int64_t num_tokens() const;
  std::int64_t num_documents() const;

  // Whether each document is a conversation, its tokens as as_trained() marks them.
  bool holds_conversations() const { return holds_conversations_; }

  // Whether a document was text, of which its tokens were made here.
  bool is_text(std::int64_t document) const;

  // Number of its first token; that of the end for num_documents().
  std::int64_t document_start(std::int64_t document) const;

  // How many documents begin at or before `token`. O(log documents).
  std::int64_t documents_up_to(std::int64_t token) const;

  // out[i] = token first + i; kNoToken for what is no i32. Errors: kInvalidArgument unless they are
  // there.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

  // body(first, tokens) for those from `begin` to `end` that came as ids, a stretch at a time and
  // in order: not for what was made of text here.
  void for_each_given(std::int64_t begin,
                      std::int64_t end,
                      const std::function<void(std::int64_t first,
                                               std::span<const std::int32_t> tokens)>& body) const;

  // The file that holds a token and its number there, for messages.
  std::string place(std::int64_t token) const;

 private:
  struct PlacedSegment {
    std::unique_ptr<const CorpusSegment> segment;
    std::int64_t first_token;  // its number in the corpus, and that of its first document
    std::int64_t first_document;
  };

  const PlacedSegment& with_token(std::int64_t token) const;
  const PlacedSegment& with_document(std::int64_t document) const;
  void add(std::unique_ptr<const CorpusSegment> segment);

  std::vector<PlacedSegment> segments_;
  bool holds_conversations_ = false;
};

}  // namespace tessera
