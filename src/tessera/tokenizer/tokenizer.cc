#include "tessera/tokenizer/tokenizer.h"

#include <array>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/tokenizer/added_tokens.h"
#include "tessera/tokenizer/bpe_model.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/tokenizer_json.h"
#include "tessera/tokenizer/word_cache.h"

namespace tessera {
namespace {

// The first that a tokenizer has counts.
constexpr std::array<std::string_view, 4> kBosNames = {
    "<|begin_of_text|>", "<s>", "<|startoftext|>", "<|endoftext|>"};
constexpr std::array<std::string_view, 3> kEosNames = {"<|end_of_text|>", "</s>", "<|endoftext|>"};

std::optional<std::int32_t> find_special(const TokenizerSpec& spec,
                                         std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    for (const AddedToken& token : spec.added) {
      if (token.special && token.content == name) {
        return token.id;
      }
    }
  }
  return std::nullopt;
}

void require_id(std::int32_t id, std::int32_t vocab_size, std::string_view what) {
  TESSERA_REQUIRE(id >= 0 && id < vocab_size,
                  ErrorCode::kInvalidArgument,
                  "{} is {}, but the tokenizer has ids 0 to {}",
                  what,
                  id,
                  vocab_size - 1);
}

TokenizerSpec checked(TokenizerSpec spec) {
  check_spec(spec, ErrorCode::kInvalidArgument);
  return spec;
}

}  // namespace

struct Tokenizer::State {
  TokenizerSpec spec;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokenFinder plain_added;
  AddedTokenFinder all_added;
  std::vector<bool> special;
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;

  explicit State(TokenizerSpec given)
      : spec(checked(std::move(given))),
        pre_tokenizer(spec.pattern),
        model(spec),
        plain_added(spec.added, false),
        all_added(spec.added, true),
        special(spec.tokens.size()),
        bos(find_special(spec, kBosNames)),
        eos(find_special(spec, kEosNames)) {
    for (const AddedToken& token : spec.added) {
      special[static_cast<std::size_t>(token.id)] = token.special;
    }
  }

  // Appends the tokens of text; calls before_word() before each word.
  template <class BeforeWord>
  void encode(std::string_view text,
              EncodeOptions options,
              std::vector<std::int32_t>& out,
              const BeforeWord& before_word) const {
    WordCache cache(text.size());
    BpeModel::Scratch scratch;
    const AddedTokenFinder& finder = options.parse_special ? all_added : plain_added;
    std::size_t at = 0;
    while (const auto match = finder.find(text, at)) {
      encode_plain(text.substr(at, match->begin - at), cache, scratch, out, before_word);
      out.push_back(match->token->id);
      at = match->begin + match->token->content.size();
    }
    encode_plain(text.substr(at), cache, scratch, out, before_word);
  }

  std::int32_t vocab_size() const { return static_cast<std::int32_t>(spec.tokens.size()); }

  // Appends the tokens of text without added tokens; calls before_word() before each word.
  template <class BeforeWord>
  void encode_plain(std::string_view text,
                    WordCache& cache,
                    BpeModel::Scratch& scratch,
                    std::vector<std::int32_t>& out,
                    const BeforeWord& before_word) const {
    const char* text_end = text.data() + text.size();
    pre_tokenizer.split(text, [&](std::string_view word) {
      before_word();
      if (word.size() > WordCache::kMaxWordBytes) {
        model.encode_word(word, scratch, out);
        return;
      }
      const WordCache::Key key = WordCache::key_of(word, text_end);
      WordCache::Entry& place = cache.place_of(key);
      if (place.key == key) [[likely]] {
        out.insert(out.end(), place.ids.begin(), place.ids.begin() + place.num_ids);
        return;
      }
      const std::size_t before = out.size();
      model.encode_word(word, scratch, out);
      WordCache::store(place, key, std::span(out).subspan(before));
    });
  }
};

Tokenizer::Tokenizer(TokenizerSpec spec) : state_(std::make_shared<State>(std::move(spec))) {}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  return with_context([&] { return format("in {}", path.string()); },
                      [&] { return Tokenizer(parse_tokenizer_json(text)); });
}

void Tokenizer::save(const std::filesystem::path& path) const {
  write_file_atomic(path, format_tokenizer_json(state_->spec));
}

std::int32_t Tokenizer::vocab_size() const {
  return state_->vocab_size();
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<std::int32_t> ids;
  encode(text, ids, options);
  return ids;
}

void Tokenizer::encode(std::string_view text,
                       std::vector<std::int32_t>& out,
                       EncodeOptions options) const {
  state_->encode(text, options, out, [] {});
}

void Tokenizer::encode(std::string_view text,
                       const std::function<void(std::span<const std::int32_t>)>& sink,
                       EncodeOptions options) const {
  constexpr std::size_t kPartTokens = std::size_t{1} << 16U;
  std::vector<std::int32_t> part;
  const auto flush = [&] {
    sink(part);
    part.clear();
  };
  state_->encode(text, options, part, [&] {
    if (part.size() >= kPartTokens) {
      flush();
    }
  });
  flush();
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, DecodeOptions options) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    TESSERA_REQUIRE(ids[i] >= 0 && ids[i] < vocab_size(),
                    ErrorCode::kInvalidArgument,
                    "id {} of {} to decode is {}, but the tokenizer has ids 0 to {}",
                    i,
                    ids.size(),
                    ids[i],
                    vocab_size() - 1);
    const auto id = static_cast<std::size_t>(ids[i]);
    if (!options.skip_special || !state_->special[id]) {
      text += state_->spec.tokens[id];
    }
  }
  return text;
}

std::optional<std::int32_t> Tokenizer::bos() const {
  return state_->bos;
}

std::optional<std::int32_t> Tokenizer::eos() const {
  return state_->eos;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  require_id(id, vocab_size(), "the token id");
  return state_->spec.tokens[static_cast<std::size_t>(id)];
}

bool Tokenizer::is_special(std::int32_t id) const {
  require_id(id, vocab_size(), "the token id");
  return state_->special[static_cast<std::size_t>(id)];
}

const TokenizerSpec& Tokenizer::spec() const {
  return state_->spec;
}

}  // namespace tessera
