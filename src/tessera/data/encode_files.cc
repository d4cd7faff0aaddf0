#include "tessera/data/encode_files.h"

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/threads.h"
#include "tessera/base/units.h"
#include "tessera/data/document_writer.h"
#include "tessera/data/encode_stretch.h"
#include "tessera/data/stretch_reader.h"
#include "tessera/data/text_stream.h"

namespace tessera {
namespace {

// Stretches per thread that wait for one before them to be written.
constexpr std::size_t kWaitingPerThread = 8;

// Deals the stretches of the files to threads, in turn.
class StretchDealer {
 public:
  struct Ticket {
    std::int64_t number;  // from 0, in the order of the files
    Stretch stretch;
    std::exception_ptr error;  // of reading it
  };

  explicit StretchDealer(StretchReader reader) : reader_(std::move(reader)) {}

  // The next stretch; nothing at the end, and once anything has failed.
  std::optional<Ticket> take() {
    const std::scoped_lock lock(mutex_);
    if (ended_) {
      return std::nullopt;
    }
    Ticket ticket{.number = num_taken_, .stretch = {}, .error = {}};
    try {
      std::optional<Stretch> stretch = reader_.next();
      if (!stretch) {
        ended_ = true;
        return std::nullopt;
      }
      ticket.stretch = std::move(*stretch);
    } catch (...) {
      ticket.error = std::current_exception();
      ended_ = true;
    }
    ++num_taken_;
    return ticket;
  }

  void stop() {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }

 private:
  std::mutex mutex_;
  StretchReader reader_;
  std::int64_t num_taken_ = 0;
  bool ended_ = false;
};

// Writes the stretches that threads have encoded in the order of their numbers; whoever has the
// next one writes it.
class OrderedWriter {
 public:
  // At most `most_waiting` stretches wait for one before them.
  OrderedWriter(DocumentWriter& writer, std::size_t most_waiting)
      : writer_(writer), most_waiting_(most_waiting) {}

  // Writes the stretch and those that waited for it, or lets it wait; false once anything has
  // failed.
  bool give(std::int64_t number, EncodedStretch encoded) {
    std::unique_lock lock(mutex_);
    turn_.wait(lock,
               [&] { return error_ || number == num_written_ || waiting_.size() < most_waiting_; });
    if (error_) {
      return false;
    }
    waiting_.emplace(number, std::move(encoded));
    try {
      for (auto first = waiting_.begin(); first != waiting_.end() && first->first == num_written_;
           first = waiting_.erase(first)) {
        writer_.write(std::move(first->second));
        ++num_written_;
      }
    } catch (...) {
      error_ = std::current_exception();
    }
    turn_.notify_all();
    return !error_;
  }

  // To be called after the last give().
  void rethrow_error() const {
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  DocumentWriter& writer_;
  std::size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable turn_;
  std::map<std::int64_t, EncodedStretch> waiting_;
  std::int64_t num_written_ = 0;
  std::exception_ptr error_;
};

EncodedStretch encode_ticket(StretchDealer::Ticket ticket,
                             const TextEncoder& encoder,
                             const TextOptions& options) {
  if (ticket.error) {
    EncodedStretch unread;
    unread.error = ticket.error;
    return unread;
  }
  return encode_stretch(std::move(ticket.stretch), encoder, options);
}

// Runs `work` on this thread and on as many others as there may be.
template <class Work>
void run_on_threads(int threads, const Work& work) {
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads; ++i) {
    if (!start_thread(helpers, work)) {
      break;
    }
  }
  work();
}

// Calls body(stream, path) with each file: a bad last one must not cost the time of encoding all
// the others.
template <class Body>
void for_each_text(std::span<const std::filesystem::path> files,
                   const TextOptions& options,
                   const Body& body) {
  TESSERA_REQUIRE(
      !files.empty(), ErrorCode::kInvalidData, "no data files given: expected at least one");
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::filesystem::path& path = files[i];
    const TextStream stream(path, stream_options(options, i));
    std::error_code error;
    TESSERA_REQUIRE(std::filesystem::file_size(path, error) > 0,
                    ErrorCode::kInvalidData,
                    "{} is empty: expected text",
                    path.string());
    body(stream, path);
  }
}

}  // namespace

TextFormat format_of(const TextOptions& options, std::size_t file) {
  return options.formats.empty() ? options.format : options.formats[file];
}

void require_texts(std::span<const std::filesystem::path> files, const TextOptions& options) {
  for_each_text(files, options, [](const TextStream&, const std::filesystem::path&) {});
}

void introduce_texts(std::span<const std::filesystem::path> files, const TextOptions& options) {
  for_each_text(files, options, say_what_is_odd);
}

std::int64_t total_bytes(std::span<const std::filesystem::path> files) {
  std::int64_t total = 0;
  for (const std::filesystem::path& file : files) {
    std::error_code error;
    const auto size = std::filesystem::file_size(file, error);
    total += error ? 0 : static_cast<std::int64_t>(size);
  }
  return total;
}

ReadState encode_files(std::span<const std::filesystem::path> files,
                       const TextEncoder& encoder,
                       const TextOptions& options,
                       const ReadState& start,
                       DocumentSink& sink) {
  TESSERA_REQUIRE(options.format != TextFormat::kChat || encoder.encode_conversation,
                  ErrorCode::kInvalidArgument,
                  "conversations without a chat template: expected an encoder with one");
  require_texts(files, options);
  StretchDealer dealer(StretchReader(files, options, encoder, start));
  DocumentWriter writer(files, encoder, options, start, sink);
  OrderedWriter ordered(writer, kWaitingPerThread * static_cast<std::size_t>(options.threads));
  // Each thread takes the next stretch, encodes it beside the others, and gives it to the sink in
  // the order of the files.
  run_on_threads(options.threads, [&] {
    while (std::optional<StretchDealer::Ticket> ticket = dealer.take()) {
      const std::int64_t number = ticket->number;
      if (!ordered.give(number, encode_ticket(std::move(*ticket), encoder, options))) {
        dealer.stop();
        return;
      }
    }
  });
  ordered.rethrow_error();
  writer.warn_of_unknown_keys();
  return writer.state();
}

std::string describe_skipped(const ReadState& state) {
  return format("skipped {}, the first {}",
                format_plural(state.num_skipped, "broken line"),
                state.first_skipped);
}

}  // namespace tessera
