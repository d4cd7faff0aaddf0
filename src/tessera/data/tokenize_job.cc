#include "tessera/data/tokenize_job.h"

#include <cerrno>
#include <cstring>
#include <future>
#include <optional>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/megatron.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::size_t kWriteBytes = std::size_t{1} << 20U;

// A file that grows behind what an earlier run is known to have written.
class GrowingFile {
 public:
  GrowingFile(std::filesystem::path path, std::int64_t size)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)),
        size_(size) {
    TESSERA_REQUIRE(file_.get() >= 0 && ::ftruncate(file_.get(), size) == 0 &&
                        ::lseek(file_.get(), 0, SEEK_END) == size,
                    ErrorCode::kDeviceError,
                    "cannot write {}: {}",
                    path_.string(),
                    std::strerror(errno));
  }

  // To be filled by the caller, then offered.
  std::string& buffer() { return buffer_; }

  void offer() {
    if (buffer_.size() >= kWriteBytes) {
      flush();
    }
  }

  // The system has everything so far.
  void flush() {
    write_all(file_, buffer_, path_);
    size_ += static_cast<std::int64_t>(buffer_.size());
    buffer_.clear();
  }

  // What the system has is on the disk. Others may write meanwhile.
  void sync() const {
    TESSERA_REQUIRE(::fsync(file_.get()) == 0,
                    ErrorCode::kDeviceError,
                    "cannot flush {}: {}",
                    path_.string(),
                    std::strerror(errno));
  }

  std::int64_t size() const { return size_ + static_cast<std::int64_t>(buffer_.size()); }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::string buffer_;
  std::int64_t size_;
};

// What the journal holds: how far the two partial files are good, and where to read on.
struct Journal {
  std::string work;  // what the run is asked to do, to know it again
  bool is_complete = false;
  std::int64_t bin_bytes = 0;
  std::int64_t documents = 0;
  ReadState state;
};

std::string write_journal(const Journal& journal) {
  const ReadState& state = journal.state;
  return json{{"format", "tessera-tokenize"},
              {"work", journal.work},
              {"complete", journal.is_complete},
              {"bin_bytes", journal.bin_bytes},
              {"documents", journal.documents},
              {"file", state.file},
              {"offset", state.offset},
              {"document_open", state.document_open},
              {"open_tokens", state.open_tokens},
              {"lines", state.lines},
              {"file_documents", state.file_documents},
              {"num_skipped", state.num_skipped},
              {"first_skipped", state.first_skipped},
              {"input_bytes", state.input_bytes}}
             .dump(-1, ' ', false, json::error_handler_t::replace) +
         "\n";
}

// Nothing where the text is no journal: then the work begins anew.
std::optional<Journal> read_journal(const std::string& text) {
  const json object = json::parse(text, nullptr, false);
  try {
    Journal journal;
    journal.work = object.at("work").get<std::string>();
    journal.is_complete = object.at("complete").get<bool>();
    journal.bin_bytes = object.at("bin_bytes").get<std::int64_t>();
    journal.documents = object.at("documents").get<std::int64_t>();
    ReadState& state = journal.state;
    state.file = object.at("file").get<std::int64_t>();
    state.offset = object.at("offset").get<std::int64_t>();
    state.document_open = object.at("document_open").get<bool>();
    state.open_tokens = object.at("open_tokens").get<std::int64_t>();
    state.lines = object.at("lines").get<std::int64_t>();
    state.file_documents = object.at("file_documents").get<std::int64_t>();
    state.num_skipped = object.at("num_skipped").get<std::int64_t>();
    state.first_skipped = object.at("first_skipped").get<std::string>();
    state.input_bytes = object.at("input_bytes").get<std::int64_t>();
    return journal;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

// Whatever changes the output, and the files' sizes and times, which say that they are the same.
std::string describe_work(std::span<const std::filesystem::path> files,
                          const TokenizeOptions& options) {
  const TextOptions& text = options.text;
  std::string work = format("2|{}|{}|{}|{}|{}|{}|{}|{}",
                            options.encoder_name,
                            to_string(options.type),
                            text.document_separator,
                            text.field,
                            text.skip_broken,
                            text.add_bos,
                            text.add_eos,
                            files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::filesystem::path& file = files[i];
    std::error_code error;
    work += format("|{}|{}|{}|{}",
                   format_of(text, i) == TextFormat::kJsonl ? "jsonl" : "text",
                   std::filesystem::absolute(file, error).string(),
                   std::filesystem::file_size(file, error),
                   std::filesystem::last_write_time(file, error).time_since_epoch().count());
  }
  // Bytes that are no UTF-8 cannot stand in the journal.
  return json::parse(json(work).dump(-1, ' ', false, json::error_handler_t::replace))
      .get<std::string>();
}

std::filesystem::path with_suffix(const std::filesystem::path& prefix, std::string_view suffix) {
  return prefix.string() + std::string(suffix);
}

struct Paths {
  explicit Paths(const std::filesystem::path& prefix)
      : bin(with_suffix(prefix, ".bin")),
        idx(with_suffix(prefix, ".idx")),
        partial_bin(with_suffix(prefix, ".bin.partial")),
        lengths(with_suffix(prefix, ".lengths.partial")),
        journal(with_suffix(prefix, ".journal")),
        lock(with_suffix(std::filesystem::absolute(prefix), ".lock")) {}

  std::filesystem::path bin, idx, partial_bin, lengths, journal, lock;
};

// Held while the output is written; its file goes with it.
class OutputLock {
 public:
  explicit OutputLock(std::filesystem::path path)
      : path_(std::move(path)),
        lock_(path_,
              format("the output {}", std::filesystem::path(path_).replace_extension().string())) {}

  ~OutputLock() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }

  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  std::filesystem::path path_;
  FileLock lock_;
};

// The journal of an earlier run of the same work whose partial files are there.
std::optional<Journal> find_journal(const Paths& paths, const std::string& work) {
  std::error_code error;
  if (!std::filesystem::exists(paths.journal, error)) {
    return std::nullopt;
  }
  std::optional<Journal> journal = read_journal(read_file(paths.journal));
  if (!journal || journal->work != work) {
    return std::nullopt;
  }
  const auto holds = [&](const std::filesystem::path& path, std::int64_t bytes) {
    const auto size = std::filesystem::file_size(path, error);
    return !error && static_cast<std::int64_t>(size) >= bytes;
  };
  const bool is_usable = journal->is_complete || (holds(paths.partial_bin, journal->bin_bytes) &&
                                                  holds(paths.lengths, 8 * journal->documents));
  return is_usable ? journal : std::nullopt;
}

class MegatronSink : public DocumentSink {
 public:
  MegatronSink(const Paths& paths,
               const TokenizeOptions& options,
               const Journal& start,
               std::int64_t total_bytes)
      : paths_(paths),
        options_(options),
        journal_(start),
        bin_(paths.partial_bin, start.bin_bytes),
        lengths_(paths.lengths, 8 * start.documents),
        document_tokens_(start.state.open_tokens),
        progress_{.total_bytes = total_bytes} {}

  void append(std::span<const std::int32_t> tokens) override {
    append_tokens(tokens, options_.type, bin_.buffer());
    bin_.offer();
    document_tokens_ += static_cast<std::int64_t>(tokens.size());
  }

  void end_document() override {
    lengths_.buffer().append(reinterpret_cast<const char*>(&document_tokens_),
                             sizeof(document_tokens_));
    lengths_.offer();
    document_tokens_ = 0;
    ++journal_.documents;
  }

  void reached(const ReadState& state) override {
    journal_.state = state;
    if (bin_.size() - journal_.bin_bytes >= options_.save_bytes) {
      start_saving();
    }
    if (options_.progress) {
      options_.progress(progress());
    }
  }

  void complete() {
    journal_.is_complete = true;
    start_saving();
    end_saving();
  }

  TokenizeProgress progress() const {
    TokenizeProgress now = progress_;
    now.input_bytes = journal_.state.input_bytes;
    now.tokens = bin_.size() / size_of(options_.type);
    now.documents = journal_.documents;
    return now;
  }

 private:
  // Makes durable what there is, the files before the journal that vouches for them, while the work
  // goes on: all threads would wait for the disk otherwise.
  void start_saving() {
    end_saving();
    bin_.flush();
    lengths_.flush();
    journal_.bin_bytes = bin_.size();
    const auto save = [this, journal = write_journal(journal_)] {
      bin_.sync();
      lengths_.sync();
      write_file_atomic(paths_.journal, journal);
    };
    try {
      saving_ = std::async(std::launch::async, save);
    } catch (const std::system_error&) {
      save();  // without a thread all wait
    }
  }

  void end_saving() {
    if (saving_.valid()) {
      saving_.get();
    }
  }

  const Paths& paths_;
  const TokenizeOptions& options_;
  Journal journal_;  // as of the last reached(), its bin_bytes of the last start_saving()
  GrowingFile bin_;
  GrowingFile lengths_;
  std::int64_t document_tokens_;
  TokenizeProgress progress_;
  std::future<void> saving_;  // the last, whose end its destructor awaits
};

// Turns complete partial files into the data set; each step may find that a killed run has done it.
void publish(const Paths& paths, const TokenizeOptions& options) {
  std::error_code error;
  if (std::filesystem::exists(paths.partial_bin, error)) {
    std::filesystem::rename(paths.partial_bin, paths.bin);
  }
  if (std::filesystem::exists(paths.lengths, error)) {
    write_megatron_index(options.prefix, options.type, paths.lengths);
    std::filesystem::remove(paths.lengths);
  }
  std::filesystem::remove(paths.journal);
}

// Of a run that failed: without a journal no other goes on from the partial files.
void remove_what_is_lost(const Paths& paths) {
  std::error_code error;
  if (!std::filesystem::exists(paths.journal, error)) {
    std::filesystem::remove(paths.partial_bin, error);
    std::filesystem::remove(paths.lengths, error);
  }
}

void require_free(const Paths& paths, const TokenizeOptions& options) {
  for (const std::filesystem::path& path : {paths.bin, paths.idx}) {
    std::error_code error;
    TESSERA_REQUIRE(options.force || !std::filesystem::exists(path, error),
                    ErrorCode::kInvalidConfig,
                    "{} exists: choose another --output, or replace it with --force",
                    path.string());
  }
}

}  // namespace

TokenizeResult tokenize_to_megatron(std::span<const std::filesystem::path> files,
                                    const TextEncoder& encoder,
                                    const TokenizeOptions& options) {
  const Paths paths(options.prefix);
  const OutputLock lock(paths.lock);
  const std::string work = describe_work(files, options);
  std::optional<Journal> found = find_journal(paths, work);
  if (!found) {
    require_free(paths, options);
    std::error_code absent;
    std::filesystem::remove(paths.journal, absent);
  }
  Journal start = found.value_or(Journal{.work = work, .state = {}});
  TokenizeResult result;
  result.resumed_bytes = start.state.input_bytes;
  result.state = start.state;
  if (start.is_complete) {
    result.end = {.input_bytes = start.state.input_bytes,
                  .total_bytes = total_bytes(files),
                  .tokens = start.bin_bytes / size_of(options.type),
                  .documents = start.documents};
  } else {
    try {
      MegatronSink sink(paths, options, start, total_bytes(files));
      result.state = encode_files(files, encoder, options.text, start.state, sink);
      sink.complete();
      result.end = sink.progress();
    } catch (...) {
      remove_what_is_lost(paths);
      throw;
    }
  }
  publish(paths, options);
  return result;
}

}  // namespace tessera
