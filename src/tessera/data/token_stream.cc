#include "tessera/data/token_stream.h"

#include <cstddef>

#include "tessera/base/log.h"

namespace tessera {
namespace {

class StreamSink : public DocumentSink {
 public:
  explicit StreamSink(TokenStream& stream) : stream_(stream) {}

  void append(std::span<const std::int32_t> tokens) override { stream_.tokens.append(tokens); }

  void end_document() override {
    stream_.document_starts.push_back(start_);
    start_ = static_cast<std::int64_t>(stream_.tokens.size());
  }

 private:
  TokenStream& stream_;
  std::int64_t start_ = 0;
};

}  // namespace

TokenStream tokenize_text_files(std::span<const std::filesystem::path> files,
                                const TextEncoder& encoder,
                                const TextOptions& options) {
  TokenStream stream{.tokens = TokenFile(options.scratch), .document_starts = {}};
  StreamSink sink(stream);
  const ReadState end = encode_files(files, encoder, options, {}, sink);
  stream.tokens.seal();
  stream.num_skipped = end.num_skipped;
  stream.holds_conversations = options.format == TextFormat::kChat;
  if (end.num_skipped > 0) {
    log_warning(describe_skipped(end));
  }
  return stream;
}

}  // namespace tessera
