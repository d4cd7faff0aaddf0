#include "tessera/data/token_stream.h"

#include <cstddef>

#include "tessera/base/log.h"
#include "tessera/base/status_line.h"

namespace tessera {
namespace {

class StreamSink : public DocumentSink {
 public:
  StreamSink(TokenStream& stream, std::int64_t total_bytes)
      : stream_(stream), line_("tokenizing", total_bytes) {
    line_.reach(0);
  }

  void append(std::span<const std::int32_t> tokens) override { stream_.tokens.append(tokens); }

  void end_document() override {
    stream_.document_starts.push_back(start_);
    start_ = static_cast<std::int64_t>(stream_.tokens.size());
  }

  void reached(const ReadState& state) override { line_.reach(state.input_bytes); }

 private:
  TokenStream& stream_;
  std::int64_t start_ = 0;
  WorkLine line_;
};

}  // namespace

TokenStream tokenize_text_files(std::span<const std::filesystem::path> files,
                                const TextEncoder& encoder,
                                const TextOptions& options) {
  TokenStream stream{.tokens = TokenFile(options.scratch), .document_starts = {}};
  introduce_texts(files, options);
  StreamSink sink(stream, total_bytes(files));
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
