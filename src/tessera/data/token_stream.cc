#include "tessera/data/token_stream.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera {
namespace {

// Files are mapped and encoded so many at a time, to bound mappings; documents so many bytes at a
// time, to bound tokens in memory.
constexpr std::size_t kFilesPerWave = 256;
constexpr std::size_t kBytesPerBatch = std::size_t{4} << 20U;

MappedFile open_text(const std::filesystem::path& path) {
  MappedFile file(path);
  TESSERA_REQUIRE(
      !file.bytes().empty(), ErrorCode::kInvalidData, "{} is empty: expected text", path.string());
  return file;
}

void append_documents(std::string_view text,
                      std::string_view separator,
                      std::vector<std::string_view>& documents) {
  while (!text.empty()) {
    const std::size_t end = separator.empty() ? text.size() : text.find(separator);
    const std::string_view document = text.substr(0, end);
    if (!document.empty()) {
      documents.push_back(document);
    }
    text.remove_prefix(end == std::string_view::npos
                           ? text.size()
                           : std::min(end + separator.size(), text.size()));
  }
}

// The longest front part of `documents` of at most kBytesPerBatch, at least one document.
std::span<const std::string_view> next_batch(std::span<const std::string_view> documents) {
  std::size_t count = 1;
  std::size_t bytes = documents[0].size();
  while (count < documents.size() && bytes + documents[count].size() <= kBytesPerBatch) {
    bytes += documents[count].size();
    ++count;
  }
  return documents.first(count);
}

// encoded[i] = encode(documents[i]), on up to `threads` threads. An error of `encode` is rethrown.
std::vector<std::vector<std::int32_t>> encode_all(std::span<const std::string_view> documents,
                                                  const TextEncoder& encoder,
                                                  int threads) {
  std::vector<std::vector<std::int32_t>> encoded(documents.size());
  std::atomic<std::size_t> next = 0;
  std::exception_ptr first_error;
  std::mutex error_mutex;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < documents.size(); i = next++) {
        encoder.encode(documents[i], [&](std::span<const std::int32_t> tokens) {
          encoded[i].insert(encoded[i].end(), tokens.begin(), tokens.end());
        });
      }
    } catch (...) {
      const std::scoped_lock lock(error_mutex);
      first_error = std::current_exception();
      next = documents.size();
    }
  };
  const std::size_t num_helpers =
      std::min(static_cast<std::size_t>(std::max(threads, 1)), documents.size()) - 1;
  std::vector<std::jthread> helpers;
  helpers.reserve(num_helpers);
  for (std::size_t i = 0; i < num_helpers; ++i) {
    helpers.emplace_back(work);
  }
  work();
  helpers.clear();
  if (first_error) {
    std::rethrow_exception(first_error);
  }
  return encoded;
}

// Appends a document; write(sink) gives its tokens.
template <class Write>
void append_document(const TextEncoder& encoder,
                     const TextOptions& options,
                     TokenStream& stream,
                     const Write& write) {
  const std::size_t start = stream.tokens.size();
  if (options.add_bos && encoder.bos) {
    stream.tokens.append({&*encoder.bos, 1});
  }
  write([&](std::span<const std::int32_t> tokens) { stream.tokens.append(tokens); });
  if (options.add_eos && encoder.eos) {
    stream.tokens.append({&*encoder.eos, 1});
  }
  if (stream.tokens.size() > start) {
    stream.document_starts.push_back(static_cast<std::int64_t>(start));
  }
}

// Several documents are encoded side by side; the tokens of a long one are never in memory.
void append_batch(std::span<const std::string_view> documents,
                  const TextEncoder& encoder,
                  const TextOptions& options,
                  TokenStream& stream) {
  if (documents.size() == 1) {
    append_document(encoder, options, stream, [&](const TokenSink& sink) {
      encoder.encode(documents[0], sink);
    });
    return;
  }
  for (const std::vector<std::int32_t>& encoded : encode_all(documents, encoder, options.threads)) {
    append_document(encoder, options, stream, [&](const TokenSink& sink) { sink(encoded); });
  }
}

void append_files(std::span<const std::filesystem::path> paths,
                  const TextEncoder& encoder,
                  const TextOptions& options,
                  TokenStream& stream) {
  std::vector<MappedFile> files;
  std::vector<std::string_view> documents;
  for (const std::filesystem::path& path : paths) {
    files.push_back(open_text(path));
    const std::size_t before = documents.size();
    append_documents(files.back().text(), options.document_separator, documents);
    TESSERA_REQUIRE(documents.size() > before,
                    ErrorCode::kInvalidData,
                    "{} holds document separators only: expected text",
                    path.string());
  }
  for (std::span<const std::string_view> rest = documents; !rest.empty();) {
    const std::span<const std::string_view> batch = next_batch(rest);
    append_batch(batch, encoder, options, stream);
    rest = rest.subspan(batch.size());
  }
}

}  // namespace

TokenStream tokenize_text_files(std::span<const std::filesystem::path> files,
                                const TextEncoder& encoder,
                                const TextOptions& options) {
  TESSERA_REQUIRE(
      !files.empty(), ErrorCode::kInvalidData, "no data files given: expected at least one");
  // A bad last file must not cost the time of encoding all the others.
  for (const std::filesystem::path& path : files) {
    open_text(path);
  }
  TokenStream stream{.tokens = TokenFile(options.scratch), .document_starts = {}};
  while (!files.empty()) {
    const std::size_t count = std::min(files.size(), kFilesPerWave);
    append_files(files.first(count), encoder, options, stream);
    files = files.subspan(count);
  }
  stream.tokens.seal();
  return stream;
}

}  // namespace tessera
