#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>

#include "tessera/data/encode_files.h"
#include "tessera/data/encode_stretch.h"

namespace tessera {

// Gives the documents of encoded stretches to a sink, in the order of the files, and knows how far
// it came.
class DocumentWriter {
 public:
  // Keeps views of all but `start`.
  DocumentWriter(std::span<const std::filesystem::path> files,
                 const TextEncoder& encoder,
                 const TextOptions& options,
                 const ReadState& start,
                 DocumentSink& sink);

  // The stretch that follows the one before. Errors: those of the stretch and of the sink;
  // kInvalidData for a broken line unless such lines are skipped, and for a file without documents.
  void write(EncodedStretch encoded);

  const ReadState& state() const { return state_; }

  // Warns if messages of conversations had keys that are not known.
  void warn_of_unknown_keys() const;

 private:
  void rethrow_error(const EncodedStretch& encoded) const;
  void write_pieces(const EncodedStretch& encoded);
  void write_spooled(const EncodedStretch& encoded);
  void append(std::span<const std::int32_t> tokens);
  void end_document();
  std::string place(const EncodedStretch& encoded, std::int64_t line) const;
  std::string place_of_text(const EncodedStretch& encoded, std::int64_t at) const;
  void report_broken(const EncodedStretch& encoded);
  void end_file();

  std::span<const std::filesystem::path> files_;
  const TextEncoder& encoder_;
  const TextOptions& options_;
  DocumentSink& sink_;
  ReadState state_;
  std::set<std::string> unknown_keys_;
};

}  // namespace tessera
