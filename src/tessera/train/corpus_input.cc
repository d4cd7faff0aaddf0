#include "tessera/train/corpus_input.h"

#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/data/byte_stream.h"
#include "tessera/data/token_stream.h"
#include "tessera/train/text_encoder.h"

namespace tessera {

DataFormat format_by_name(std::filesystem::path path) {
  if (compression_of(path) != Compression::kNone) {
    path.replace_extension();
  }
  const std::filesystem::path extension = path.extension();
  if (extension == ".jsonl" || extension == ".ndjson") {
    return DataFormat::kJsonl;
  }
  std::error_code error;
  // Half a pair is one too: opening it names the file that is missing.
  const bool is_prefix = !std::filesystem::exists(path, error) &&
                         (std::filesystem::exists(path.string() + ".idx", error) ||
                          std::filesystem::exists(path.string() + ".bin", error));
  return extension == ".bin" || extension == ".idx" || is_prefix ? DataFormat::kMegatron
                                                                 : DataFormat::kText;
}

TextFormat text_format(DataFormat format) {
  return format == DataFormat::kChat    ? TextFormat::kChat
         : format == DataFormat::kJsonl ? TextFormat::kJsonl
                                        : TextFormat::kText;
}

std::shared_ptr<const Corpus> open_corpus(const CorpusInput& input,
                                          const Tokenizer& tokenizer,
                                          std::atomic<std::int64_t>* bytes) {
  if (input.format == DataFormat::kMegatron) {
    return std::make_shared<const Corpus>(Corpus::open_megatron(input.files));
  }
  if (input.format == DataFormat::kTokens) {
    return std::make_shared<const Corpus>(
        Corpus::open_tokens(input.files, input.token_type, tokenizer.eos()));
  }
  TextEncoder encoder = input.format == DataFormat::kChat
                            ? chat_encoder(tokenizer, input.chat_template)
                            : text_encoder(tokenizer);
  if (bytes != nullptr) {
    encoder.encode = [bytes, encode = std::move(encoder.encode)](
                         std::string_view text, bool continues, const TokenSink& sink) {
      *bytes += static_cast<std::int64_t>(text.size());
      encode(text, continues, sink);
    };
  }
  TextOptions options = input.text;
  options.format = text_format(input.format);
  return std::make_shared<const Corpus>(tokenize_text_files(input.files, encoder, options));
}

}  // namespace tessera
