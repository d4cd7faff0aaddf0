#include "tessera/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/tokenizer/bpe_tokenizer.h"
#include "tessera/tokenizer/tokenizer_files.h"
#include "tessera/tokenizer/tokenizer_impl.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

void require_id(std::int32_t id, std::int32_t vocab_size, std::string_view what) {
  TESSERA_REQUIRE(id >= 0 && id < vocab_size,
                  ErrorCode::kInvalidArgument,
                  "{} is {}, but the tokenizer has ids 0 to {}",
                  what,
                  id,
                  vocab_size - 1);
}

void require_no_hole(std::int32_t id, std::span<const std::int32_t> holes, std::string_view what) {
  TESSERA_REQUIRE(!std::ranges::binary_search(holes, id),
                  ErrorCode::kInvalidArgument,
                  "{} is {}, which belongs to no token: the vocabulary leaves this id out",
                  what,
                  id);
}

void require_token(std::int32_t id, const TokenizerImpl& impl, std::string_view what) {
  require_id(id, impl.vocab_size(), what);
  require_no_hole(id, impl.holes(), what);
}

void require_decodable(std::span<const std::int32_t> ids, const TokenizerImpl& impl) {
  const std::int32_t vocab_size = impl.vocab_size();
  const std::span<const std::int32_t> holes = impl.holes();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool is_token =
        ids[i] >= 0 && ids[i] < vocab_size && !std::ranges::binary_search(holes, ids[i]);
    if (!is_token) {
      require_token(ids[i], impl, format("id {} of {} to decode", i, ids.size()));
    }
  }
}

void require_marks(const TextMarks& marks, const TokenizerImpl& impl) {
  for (const auto* ids : {&marks.before, &marks.eos, &marks.after}) {
    for (const std::int32_t id : *ids) {
      require_token(id, impl, "a mark of texts");
    }
  }
  if (marks.bos) {
    require_id(*marks.bos, impl.vocab_size(), "BOS");
  }
}

// Errors: kInvalidData for an id of a text that is not below `limit`.
void require_rows(std::span<const std::int32_t> ids,
                  std::int32_t limit,
                  const TokenizerImpl& impl) {
  if (limit == impl.vocab_size()) {
    return;
  }
  const auto other = std::ranges::find_if(ids, [&](std::int32_t id) { return id >= limit; });
  if (other != ids.end()) {
    fail(
        ErrorCode::kInvalidData,
        "the text has the token \"{}\", id {}, which the model has no row for: its ids are 0 to {}",
        impl.spelling(*other),
        *other,
        limit - 1);
  }
}

std::optional<std::int32_t> find_token(std::string_view spelling, const TokenizerImpl& impl) {
  for (const bool special : {true, false}) {
    for (std::int32_t id = 0; id < impl.vocab_size(); ++id) {
      if (impl.is_special(id) == special && impl.spelling(id) == spelling &&
          !std::ranges::binary_search(impl.holes(), id)) {
        return id;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerSpec spec)
    : Tokenizer(std::make_shared<const BpeTokenizer>(std::move(spec))) {}

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerImpl> impl)
    : impl_(std::move(impl)),
      marks_(std::make_shared<const TextMarks>(impl_->marks())),
      id_limit_(impl_->vocab_size()) {}

Tokenizer Tokenizer::within(std::int64_t vocab) const {
  Tokenizer result = *this;
  result.id_limit_ = static_cast<std::int32_t>(std::min<std::int64_t>(vocab, vocab_size()));
  return result;
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const Tokenizer tokenizer(load_tokenizer_files(path));
  std::error_code error;
  const bool is_directory = std::filesystem::is_directory(path, error);
  return tokenizer.with_marks(read_text_marks(is_directory ? path : path.parent_path(), tokenizer));
}

void Tokenizer::save(const std::filesystem::path& path) const {
  write_file_atomic(path, format_tokenizer_json(spec()));
}

std::int32_t Tokenizer::vocab_size() const {
  return impl_->vocab_size();
}

std::span<const std::int32_t> Tokenizer::holes() const {
  return impl_->holes();
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<std::int32_t> ids;
  encode(text, ids, options);
  return ids;
}

void Tokenizer::encode(std::string_view text,
                       std::vector<std::int32_t>& out,
                       EncodeOptions options) const {
  const std::size_t first = out.size();
  if (options.add_special) {
    out.insert(out.end(), marks_->before.begin(), marks_->before.end());
  }
  impl_->encode(text, options, {.ids = out});
  if (options.add_special) {
    out.insert(out.end(), marks_->after.begin(), marks_->after.end());
  }
  require_rows(std::span(out).subspan(first), id_limit_, *impl_);
}

void Tokenizer::encode(std::string_view text,
                       const std::function<void(std::span<const std::int32_t>)>& sink,
                       EncodeOptions options) const {
  std::vector<std::int32_t> part;
  if (options.add_special) {
    part = marks_->before;
  }
  const TokenOutput::Flush flush = [&](std::vector<std::int32_t>& ids) {
    require_rows(ids, id_limit_, *impl_);
    sink(ids);
    ids.clear();
  };
  impl_->encode(text, options, {.ids = part, .flush = &flush});
  if (options.add_special) {
    part.insert(part.end(), marks_->after.begin(), marks_->after.end());
  }
  flush(part);
}

std::size_t Tokenizer::find_cut(std::string_view text, std::size_t most) const {
  return impl_->find_cut(text, most);
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, DecodeOptions options) const {
  require_decodable(ids, *impl_);
  std::vector<std::int32_t> wanted;
  wanted.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (!options.skip_special || !impl_->is_special(id)) {
      wanted.push_back(id);
    }
  }
  if (!options.continues) {
    return impl_->decode(wanted);
  }
  std::string text;
  for (const std::int32_t id : wanted) {
    text += impl_->token_bytes(id);
  }
  return text;
}

TextMarks Tokenizer::own_marks() const {
  return impl_->marks();
}

Tokenizer Tokenizer::with_marks(TextMarks marks) const {
  require_marks(marks, *impl_);
  Tokenizer other = *this;
  other.marks_ = std::make_shared<const TextMarks>(std::move(marks));
  return other;
}

std::optional<std::int32_t> Tokenizer::eos() const {
  return marks_->eos.empty() ? std::nullopt : std::optional(marks_->eos.front());
}

std::optional<std::int32_t> Tokenizer::find(std::string_view spelling) const {
  return find_token(spelling, *impl_);
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  require_token(id, *impl_, "the token id");
  return impl_->token_bytes(id);
}

bool Tokenizer::is_special(std::int32_t id) const {
  require_id(id, vocab_size(), "the token id");
  return impl_->is_special(id);
}

std::string Tokenizer::spelling(std::int32_t id) const {
  require_token(id, *impl_, "the token id");
  return impl_->spelling(id);
}

std::string Tokenizer::kind() const {
  return impl_->kind();
}

bool Tokenizer::is_lossless() const {
  return impl_->is_lossless();
}

bool Tokenizer::has_spec() const {
  return impl_->spec() != nullptr;
}

const TokenizerSpec& Tokenizer::spec() const {
  const TokenizerSpec* spec = impl_->spec();
  TESSERA_REQUIRE(spec != nullptr,
                  ErrorCode::kUnsupported,
                  "a {} has no tokenizer.json: keep its .model file",
                  kind());
  return *spec;
}

}  // namespace tessera
